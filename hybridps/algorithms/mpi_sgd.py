"""mpi-SGD: synchronous SGD over all workers of all groups (MXNET-MPI, 2018).

| trigger | tier | sends | clock | rule | codec |
|---|---|---|---|---|---|
| every step | group | gradients, reduced to the leader | | sum | the group's |
| every step | servers | the group's gradients | bulk-synchronous | sum | exact |

For C groups of m workers with batch size b,

    g = sum over all C m workers of g_i,    w <- w - eta / (C m b) g.

Each rank computes the update in the framework. With one group and no server this is one allreduce; with m = 1 it is
dist-SGD. The servers hold gradients only, so they cannot give the weights to a group that starts after the others have
trained; such a group is refused. If the servers know the optimizer, they update and hold the weights, as with `async`.
Without servers, the ranks of a group on one node can do the same.
"""

from __future__ import annotations

from hybridps.algorithms import server_sgd
from hybridps.algorithms.algorithm import Algorithm
from hybridps.algorithms.row import Asked, Definition, Row
from hybridps.algorithms.server_sgd import ServerSGD
from hybridps.errors import LateError
from hybridps.memory import Layout
from hybridps.ps.clocks import BulkSynchronous
from hybridps.ps.rules import AnyRule, Sum
from hybridps.tensor_collectives import Levels, Tensor
from hybridps.tiers import Tier, UpdatingTier

ROW = Row(name="sync", sends="gradients", holds="gradients", rule=Sum(), clock=BulkSynchronous(equally=True))


def row(asked: Asked) -> Row:
    """Return the row: gradients in every step. Their sum is returned, or new weights if there is a rule."""
    if asked.rule is not None:
        return server_sgd.row(asked, BulkSynchronous(equally=True))
    settings = asked.settings
    codec = settings.wire if settings.backend == "hybridps" else "exact"
    return Row(
        sends="gradients",
        holds="gradients",
        rule=Sum(),
        clock=asked.clock or BulkSynchronous(equally=True),
        codec=codec,
    )


class MpiSGD(Algorithm):
    """One rank's part in synchronous SGD. `Algorithm` documents the methods."""

    has_centre = False

    def __init__(self, levels: Levels, tier: Tier, row: Row = ROW, workers: int = 1) -> None:
        super().__init__(levels, tier, row, workers)

    def updating(self, rule: AnyRule) -> Algorithm | None:
        tier = self.tier
        if not tier.has_servers:
            if not (self.levels.one_node and self.levels.shares_memory) or rule.whole_chunks:
                return None
            tier = UpdatingTier(self.levels)
        row = Row(name=self.name, sends="gradients", holds="weights", rule=rule, clock=BulkSynchronous(equally=True))
        return ServerSGD(self.levels, tier, row, self.workers)

    def join_gradients(self, table: str, layout: Layout) -> None:
        self.register(table, layout, None)
        self._refuse_if_late(table)

    def join_rows(self, table: str, layout: Layout) -> None:
        self.tier.register(table, layout, None, self.row.rule, self.row.clock)
        self._refuse_if_late(table)

    def join_weights(self, table: str, layout: Layout, weights: Tensor, receives: bool = False) -> bool:
        return False

    def _refuse_if_late(self, table: str) -> None:
        if self.tier.begun(table):
            raise LateError(
                f"other groups of this job had trained before this one came to {table!r}. With the algorithm sync the "
                "servers hold gradients, not weights: start all groups together, with another name of the job "
                "(HYBRIDPS_JOB), or use elastic, where a group that comes late takes the centre"
            )


SYNC = Definition(row, rules=server_sgd.RULES, also=("mpi-sgd", "dist-sgd"))
