"""A child process that is killed at a chosen step of the code under test."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Killer:
    """Kills this process at step `kill_at` of the files that are `tested`, by their path. A step is a line, or an
    operation of the interpreter if `opcodes`."""

    def __init__(self, kill_at: int, tested: Callable[[str], bool], opcodes: bool = False) -> None:
        self._left = kill_at
        self._tested = tested
        self._opcodes = opcodes

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the steps that are made here."""
        sys.settrace(self._step)
        try:
            yield
        finally:
            sys.settrace(None)

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not self._tested(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes = self._opcodes
        if event == ("opcode" if self._opcodes else "line"):
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1
        return self._step


def is_killed(live: Callable[[], None]) -> bool:
    """Whether a child that lives so is killed before it has come to the end."""
    child = os.fork()
    if child == 0:
        try:
            live()
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0
