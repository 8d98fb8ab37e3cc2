"""The numbers of groups and workers of the job, as the program of this rank sees them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Headcount:
    """The numbers of groups and workers. The step changes them on all ranks of a group in the same step."""

    groups: int
    workers: int
    changes: int = 0
    """The number of changes so far."""
    read: int = 0
    """The number of changes when the program last read the number of workers."""

    def read_workers(self) -> int:
        """Return the number of workers to the program, which may divide by it from now on."""
        self.read = self.changes
        return self.workers

    def change(self, groups: int, workers: int) -> None:
        """Set the numbers of groups and workers."""
        self.groups, self.workers = groups, workers
        self.changes += 1
