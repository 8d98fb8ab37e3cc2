"""How many groups and workers the job has, as the program of this rank is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Headcount:
    """Changed by the step, on all ranks of a group in the same one."""

    groups: int
    workers: int
    changes: int = 0
    """How often it was changed."""
    read: int = 0
    """The last change that the program has seen."""

    def read_workers(self) -> int:
        """The number of workers, for the program: from now on it may divide by it."""
        self.read = self.changes
        return self.workers

    def change(self, groups: int, workers: int) -> None:
        """There are so many now."""
        self.groups, self.workers = groups, workers
        self.changes += 1
