"""The lines that a launcher and the servers it has started send each other, on pipes that no other process has."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hybridps.quantities import counted

if TYPE_CHECKING:
    from hybridps.ps.server import Server

AGAIN = "hybridps: tell me again"
"""What a later life of a server prints: it may not know what an earlier one has read."""

_HAS, _END, _DONE, _RETURNS = "hybridps: groups of", "end", "done", "returns"


class Groups(NamedTuple):
    """The groups of a job as a server reports them: those that joined, and the numbers of all groups and workers."""

    joined: frozenset[int] = frozenset()
    groups: int = 0
    workers: int = 0
    awaited: frozenset[int] = frozenset()
    """The groups that are to join, and have not arrived yet."""

    @property
    def there(self) -> frozenset[int]:
        """The groups that need the servers, besides those of the launch that started the servers."""
        return self.joined | self.awaited


def end_of(job: str, group: int, life: int, returns: bool) -> str:
    """Return the launcher's line for the end of a life of a group. `returns`: whether the group is started again."""
    return f"{_END} {job} {group} {life}{f' {_RETURNS}' if returns else ''}"


def done_of(job: str, epoch: float, step: int) -> str:
    """Return the launcher's line for the progress of a job: the epoch and the step that it has reached."""
    return f"{_DONE} {job} {epoch!r} {step}"


def groups_in(line: str) -> tuple[str, Groups] | None:
    """Return the job and its groups from a line of a server; None if it is another line."""
    if not line.startswith(_HAS):
        return None
    job, joined, awaited, groups, workers = line.removeprefix(_HAS).split()
    numbers = [frozenset(map(int, each.split(",")[1:])) for each in (joined, awaited)]
    return job, Groups(numbers[0], int(groups), int(workers), numbers[1])


def hear(server: Server) -> None:
    """Carry out the launcher's lines on standard input, until the input ends."""
    # This does not read sys.stdin: a thread that waits in it when the interpreter ends aborts the process. It reads all
    # waiting lines at once: the launcher writes whole lines, and a later life of the server must not begin within one.
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
    """Reports, for a server without a launcher, the groups that have joined or left a job. `say` prints a line."""

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
    """Return a line for each group that has joined a job or left it."""
    has = f"{counted(now.groups, 'group')}, {counted(now.workers, 'worker')}"
    return [f"group {group} has joined: {has}" for group in sorted(now.joined - before)] + [
        f"group {group} has left: {has}" for group in sorted(before - now.joined)
    ]
