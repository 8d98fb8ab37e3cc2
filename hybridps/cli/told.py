"""What a launcher and the servers that it has started tell each other, line by line, on pipes that nobody else has."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hybridps.ps.server import Server

AGAIN = "hybridps: tell me again"
"""What a later life of a server prints: it may not know what an earlier one has read."""

_HAS, _END, _DONE, _RETURNS = "hybridps: groups of", "end", "done", "returns"


class Groups(NamedTuple):
    """The groups of a job, as a server says: those that have joined it; all groups, and their workers."""

    joined: frozenset[int] = frozenset()
    groups: int = 0
    workers: int = 0
    awaited: frozenset[int] = frozenset()
    """Those that are to join it, and have not come yet."""

    @property
    def there(self) -> frozenset[int]:
        """Those that need the servers, beside the groups of the launch that has started these."""
        return self.joined | self.awaited


def end_of(job: str, group: int, life: int, returns: bool) -> str:
    """The line of a launcher: the processes of a life of a group have ended; it is started again, or not."""
    return f"{_END} {job} {group} {life}{f' {_RETURNS}' if returns else ''}"


def done_of(job: str, epoch: float, step: int) -> str:
    """The line of a launcher: a job has done so much."""
    return f"{_DONE} {job} {epoch!r} {step}"


def groups_in(line: str) -> tuple[str, Groups] | None:
    """A job and its groups in a line of a server; None if it is another line."""
    if not line.startswith(_HAS):
        return None
    job, joined, awaited, groups, workers = line.removeprefix(_HAS).split()
    numbers = [frozenset(map(int, each.split(",")[1:])) for each in (joined, awaited)]
    return job, Groups(numbers[0], int(groups), int(workers), numbers[1])


def hear(server: Server) -> None:
    """Do what the lines of a launcher say, on standard input, until it ends."""
    # Not by sys.stdin: a thread that waits in it when the interpreter ends aborts the process. And all that waits at
    # once: the launcher writes whole lines, and a later life of the server must not begin within one.
    while told := os.read(0, 1 << 16):
        for line in told.decode().splitlines():
            kind, job, *rest = line.split()
            if kind == _DONE:
                server.note_done(job, float(rest[0]), int(rest[1]))
            else:
                server.end_group(job, int(rest[0]), returns=rest[2:] == [_RETURNS], life=int(rest[1]))


def groups_for_launcher(job: str, joined: Sequence[int], awaited: Sequence[int], groups: int, workers: int) -> None:
    """Tell the launcher which groups a job has."""
    numbers = ["".join(f",{number}" for number in each) for each in (joined, awaited)]
    with contextlib.suppress(OSError):
        print(f"{_HAS} {job} -{numbers[0]} -{numbers[1]} {groups} {workers}", flush=True)


class Newcomers:
    """Says, for a server without a launcher, which groups have joined or left a job. `say` prints a line."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._known: dict[str, frozenset[int]] = {}

    def __call__(self, job: str, joined: Sequence[int], awaited: Sequence[int], groups: int, workers: int) -> None:
        now = Groups(frozenset(joined), groups, workers)
        for line in changes(self._known.get(job, frozenset()), now):
            self._say(f"job {job!r}: {line}")
        self._known.pop(job, None)
        if joined:
            self._known[job] = now.joined


def changes(before: frozenset[int], now: Groups) -> list[str]:
    """What is to be said where groups have joined a job or left it."""
    has = f"{now.groups} groups, {now.workers} workers"
    return [f"group {group} has joined: {has}" for group in sorted(now.joined - before)] + [
        f"group {group} has left: {has}" for group in sorted(before - now.joined)
    ]
