"""How the ranks of a child ended, where each of them prints it because mpirun does not tell."""

from __future__ import annotations

import math
import re
import signal
import time
from typing import NamedTuple

from hybridps.errors import FAILED
from hybridps.mpi_groups.rank_end import SAYS
from hybridps.processes import STOP_SECONDS

_SAID = re.compile(f"(?P<before>.*){SAYS.format('(?P<rank>[0-9]+)', '(?P<status>[0-9]+)')}")
_UNTOLD = (0, 128 + signal.SIGKILL, 128 + signal.SIGTERM, 255)
"""The exit statuses of mpirun after a rank has ended without MPI_Finalize: those of MPICH, and Intel MPI's 255."""


class Verdict(NamedTuple):
    """How a child ended: its exit status, the rank that failed first, and whether that rank left with status 0."""

    status: int
    first_rank: int | None = None
    vanished: bool = False


class RankEnds:
    """Collects how `ranks` ranks ended."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._statuses: dict[int, int] = {}
        """The exit status of each rank, in the order in which they ended."""
        self._failed_at = math.inf

    def hear(self, line: str) -> str | None:
        """Note the line of a rank that has ended. Return the text of another before it; None for any other line."""
        said = _SAID.fullmatch(line)
        if said is None:
            return None
        self._statuses.setdefault(int(said["rank"]), int(said["status"]))
        if int(said["status"]):
            self._failed_at = min(self._failed_at, time.monotonic())
        return said["before"]

    @property
    def is_overdue(self) -> bool:
        """Whether a rank has failed, and mpirun should have ended the others by now. MPICH's sometimes does not."""
        return time.monotonic() - self._failed_at > STOP_SECONDS

    def judge(self, status: int, was_killed: bool = False) -> Verdict:
        """Return how the child ended, if mpirun exited with `status`, or `was_killed`.

        A rank that ends without MPI_Finalize makes mpirun kill the others, which then print nothing.
        """
        for rank, own in self._statuses.items():
            if own:
                return Verdict(own, rank)
        if status in _UNTOLD and not was_killed and 0 < len(self._statuses) < self._ranks:
            return Verdict(FAILED, next(iter(self._statuses)), vanished=True)
        return Verdict(status)
