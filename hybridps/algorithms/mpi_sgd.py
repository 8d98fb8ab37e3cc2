"""mpi-SGD: synchronous SGD over all workers of all groups (MXNET-MPI, 2018).

| tier | what | when | clock | rule |
|---|---|---|---|---|
| group | gradients, allreduce | every step | | sum |
| servers | the group's gradients | every step | bulk-synchronous | sum |

    g = sum over all C m workers of g_i,    w <- w - eta / (C m b) g

for C groups of m workers with batch b each. The update is the framework's, on every rank. With one
group and no server this is one allreduce. dist-SGD is the case m = 1. The servers have gradients only, so that a group
which comes when others have trained is refused: nobody could give it the weights.
"""

from __future__ import annotations

from hybridps.algorithms.uplink import Uplink
from hybridps.errors import ServerError
from hybridps.memory import Layout
from hybridps.ps.rules import Sum
from hybridps.tensor_collectives import Levels, Tensor, allreduce_


class MpiSGD:
    """See `Algorithm` for the methods."""

    name = "sync"
    has_centre = False
    updates = False

    def __init__(self, levels: Levels, uplink: Uplink) -> None:
        self.levels = levels
        self.uplink = uplink

    def initialise(self, table: str, layout: Layout, values: Tensor) -> None:
        self.uplink.register(f"{table}.initial", layout, values, Sum())

    def join_gradients(self, table: str, layout: Layout) -> None:
        self.uplink.register(f"{table}.gradients", layout, None, Sum())
        if self.uplink.begun(f"{table}.gradients", layout):
            raise ServerError(
                f"groups of this job have trained before this one came to {table!r}, and with the algorithm sync the "
                "servers have gradients only, not the weights: start all groups together, with another name of the job "
                "(HYBRIDPS_JOB); or use elastic, where a group that comes takes the centre"
            )

    def join_weights(self, table: str, layout: Layout, weights: Tensor) -> bool:
        return False

    def reduce_(self, table: str, gradients: Tensor, start: int, stop: int) -> None:
        if not self.uplink.start_sum(f"{table}.gradients", gradients, start, stop):
            allreduce_(gradients, self.levels.group, "sum", start, stop)
            self.uplink.start(f"{table}.gradients", gradients, start, stop)

    def finish_(self) -> None:
        self.uplink.finish()

    def averages(self, step: int) -> bool:
        return False

    def average_(self, table: str, weights: Tensor) -> None:
        pass

    @property
    def distance(self) -> float:
        return float("nan")

    def read_centre(self, table: str, out: Tensor) -> None:
        pass

    def close(self) -> None:
        self.uplink.close()
