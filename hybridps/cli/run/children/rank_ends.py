"""How the ranks of a child ended, where each of them prints it because mpirun does not tell."""

from __future__ import annotations

import re
import signal
from typing import NamedTuple

from hybridps.errors import FAILED
from hybridps.mpi_groups.rank_end import SAYS

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

    def hear(self, line: str) -> str | None:
        """Note the line of a rank that has ended. Return the text of another before it; None for any other line."""
        said = _SAID.fullmatch(line)
        if said is None:
            return None
        self._statuses.setdefault(int(said["rank"]), int(said["status"]))
        return said["before"]

    def judge(self, status: int) -> Verdict:
        """Return how the child ended, if mpirun exited with `status`.

        A rank that ends without MPI_Finalize makes mpirun kill the others, which then print nothing.
        """
        for rank, own in self._statuses.items():
            if own:
                return Verdict(own, rank)
        if status in _UNTOLD and 0 < len(self._statuses) < self._ranks:
            return Verdict(FAILED, next(iter(self._statuses)), vanished=True)
        return Verdict(status)
