"""How a benchmark ends the processes that it started."""

from __future__ import annotations

import subprocess
from typing import Any


def end_within(process: subprocess.Popen[Any], seconds: float) -> None:
    """Wait for the process to end by itself. Kill it after `seconds`."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
