"""Processes that end together with the process that started them. Standard library only, Linux only."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Collection
from pathlib import Path

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_SET_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER

_prctl = getattr(ctypes.CDLL(None), "prctl", None)
"""Looked up at import: `die_with_parent` may run between fork and exec."""


def die_with_parent(signal_number: int = signal.SIGKILL, parent: int | None = None) -> None:
    """Have the kernel send this process the signal when its parent ends, however it ends.

    This holds across exec, but not for the children of this process. `parent` is the expected process id of the parent:
    if that parent is gone already, this process ends at once.

    To the kernel, the parent is the *thread* that started this process, so start it from a long-lived thread. Call this
    only in a process that a launcher started: in a process started from a shell, it would end a job that is meant to
    outlive the shell (`nohup`).
    """
    if _prctl is None:
        return
    _prctl(_SET_DEATH_SIGNAL, int(signal_number), 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal_number)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends, so that it can find and end them."""
    if _prctl is not None:
        _prctl(_SET_SUBREAPER, 1, 0, 0, 0)


def end_orphans(mine: Collection[int], mark: str = "") -> int:
    """Kill every child of this process that is not in `mine`, and their descendants. Returns how many.

    After `adopt_orphans`, these are the processes that dead children left behind. `mark`: kill only those that were
    started with this `NAME=VALUE` in their environment.
    """
    ended = 0
    while orphans := [pid for pid in children() if pid not in mine and _has(pid, mark)]:
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            ended += 1
    return ended


def _has(pid: int, mark: str) -> bool:
    try:
        return not mark or mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def children() -> list[int]:
    """Process ids of the children of this process, including ended ones that nobody waited for."""
    here = os.getpid()
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if _parent(folder) == here]


def _parent(folder: Path) -> int | None:
    try:
        text = (folder / "stat").read_text(errors="replace")
    except OSError:
        return None
    # "pid (name) state parent ...", and the name may have spaces and parentheses
    return int(text.rpartition(")")[2].split()[1])
