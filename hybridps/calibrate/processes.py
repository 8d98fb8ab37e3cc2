"""Runs commands whose output matters only if they fail."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from tempfile import TemporaryFile

from hybridps.errors import OracleError


def run_at_once(
    commands: Sequence[Sequence[str]], seconds: float, environment: Mapping[str, str] | None = None
) -> None:
    """Run all commands side by side. Raises OracleError if one fails or takes longer than `seconds`."""
    with ExitStack() as stack:
        outputs = [stack.enter_context(TemporaryFile("w+")) for _ in commands]
        started = [
            subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            for command, output in zip(commands, outputs, strict=True)
        ]
        try:
            statuses = [process.wait(seconds) for process in started]
        except subprocess.TimeoutExpired:
            raise OracleError(f"{' '.join(commands[0])} took over {seconds} s") from None
        finally:
            for process in started:
                process.kill()
                process.wait()
        for command, status, output in zip(commands, statuses, outputs, strict=True):
            if status:
                output.seek(0)
                said = output.read().strip().splitlines()[-1:]
                raise OracleError(f"{' '.join(command)} ended with status {status}: {' '.join(said)}")
