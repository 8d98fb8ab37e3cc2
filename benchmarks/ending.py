"""How a benchmark ends the processes that it started."""

from __future__ import annotations

import subprocess
from typing import Any


def end_within(process: subprocess.Popen[Any], seconds: float) -> None:
    """Wait so long for the process to end by itself, and kill it then."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
