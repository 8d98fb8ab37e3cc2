"""SGD with the update at the servers: mpi-ASGD, which is asynchronous, and its synchronous and bounded-stale forms.

| trigger | tier | sends | clock | rule | codec |
|---|---|---|---|---|---|
| every step | group | gradients, reduced to the leader | | sum | the group's |
| every step | servers | the group's gradients, for weights | free-running, or as given | SGD, or another | exact |

In the asynchronous form (mpi-ASGD of MXNET-MPI, 2018; dist-ASGD for groups of one worker), the server updates whenever
a group's gradients arrive, and the group goes on from the new weights:

    w <- w - eta / (m b) (sum of the group's g_i).

`rescale` of the rule is 1 / (m b) there, and 1 / (C m b) with the bulk-synchronous clock, which sums over C groups.
With `BoundedStale(s)` a group waits while another one is more than s steps behind it (Ho et al., 2013).
"""

from __future__ import annotations

from hybridps.algorithms.row import Row
from hybridps.algorithms.tier_algorithm import TierAlgorithm
from hybridps.memory import Layout
from hybridps.ps.clocks import Clock
from hybridps.ps.model import Joining
from hybridps.ps.rules import SGD, Adam, AnyRule, Momentum, Nesterov
from hybridps.tensor_collectives import Tensor, reduce_
from hybridps.tiers import check_same_layout

RULES = (SGD, Momentum, Nesterov, Adam)
"""The rules that update weights by gradients."""


def row(rule: AnyRule, clock: Clock) -> Row:
    """Gradients every step. `rule`: one of `RULES`."""
    return Row(sends="gradients", holds="weights", rule=rule, clock=clock)


class ServerSGD(TierAlgorithm):
    """See `Algorithm` for the methods."""

    name = "async"
    has_centre = True
    updates = True

    def join_gradients(self, table: str, layout: Layout) -> None:
        check_same_layout(self.levels.group, table, layout)

    def join_weights(self, table: str, layout: Layout, weights: Tensor) -> bool:
        return self.register(table, layout, weights) is Joining.LATE

    def reduce_(self, table: str, gradients: Tensor, start: int, stop: int) -> None:
        name = self.name_of(table)
        if not self.tier.exchange_rows(name, gradients, start, stop):
            reduce_(gradients, self.levels.group, start=start, stop=stop)
            self.tier.exchange(name, gradients, start, stop)

    def averages(self, step: int) -> bool:
        return False

    def average_(self, table: str, weights: Tensor) -> None:
        pass
