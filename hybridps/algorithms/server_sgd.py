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

from hybridps.algorithms.algorithm import Algorithm
from hybridps.algorithms.row import Row
from hybridps.ps.clocks import Clock
from hybridps.ps.rules import SGD, Adam, AnyRule, Foreign, Momentum, Nesterov

RULES = (SGD, Momentum, Nesterov, Adam, Foreign)
"""The rules that update weights by gradients."""


def row(rule: AnyRule, clock: Clock) -> Row:
    """Gradients every step. `rule`: one of `RULES`."""
    return Row(sends="gradients", holds="weights", rule=rule, clock=clock)


class ServerSGD(Algorithm):
    """See `Algorithm` for the methods."""

    name = "async"
    updates = True

    @property
    def keeps_gradients(self) -> bool:
        # Gradients are quantised in place; and between nodes ranks would copy them first, to add them up in place.
        return self.levels.one_node and self._residuals is None

    def updating(self, rule: AnyRule) -> Algorithm:
        return ServerSGD(self.levels, self.tier, row(rule, self.row.clock))
