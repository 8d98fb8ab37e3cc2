"""SGD with the update at the servers: mpi-ASGD, which is asynchronous, and its synchronous and bounded-stale forms.

| name | trigger | tier | sends | clock | rule | codec |
|---|---|---|---|---|---|---|
| async, stale | every step | group | gradients, reduced to the leader | | sum | the group's |
| async | every step | servers | the group's gradients, for weights | free-running | SGD, or another | exact |
| stale | every step | servers | the group's gradients, for weights | bounded-stale | SGD, or another | exact |

In the asynchronous form (mpi-ASGD of MXNET-MPI, 2018; dist-ASGD for groups of one worker), the server updates whenever
a group's gradients arrive, and the group continues from the new weights:

    w <- w - eta / (m b) (sum of the group's g_i).

The rule's `rescale` is then 1 / (m b). With the bulk-synchronous clock, which sums over C groups, it is 1 / (C m b).
With `BoundedStale(s)` a group waits while another group is more than s steps behind it (Ho et al., 2013). In `stale`, s
is 3 unless the setting `staleness` says otherwise.
"""

from __future__ import annotations

import msgspec

from hybridps.algorithms.algorithm import Algorithm
from hybridps.algorithms.row import Asked, Definition, Row
from hybridps.errors import ConfigError
from hybridps.ps.clocks import BoundedStale, BulkSynchronous, Clock, FreeRunning
from hybridps.ps.rules import SGD, Adam, AnyRule, Foreign, Momentum, Nesterov, Sum

RULES = (SGD, Momentum, Nesterov, Adam, Foreign)
"""The rules that update weights with gradients."""

STALENESS = 3
"""How many steps a group may be ahead in `stale`, by default."""


def row(asked: Asked, usual: Clock) -> Row:
    """Return the row: gradients in every step, for new weights. The clock is `usual` unless another one is asked for.

    Raises ConfigError if there is no rule or no server.
    """
    if asked.rule is None or not asked.has_servers:
        raise ConfigError(
            "it updates at the servers, and there is no "
            f"{'rule' if asked.rule is None else 'server'}: give a rule, as in job.algorithm('async', "
            "rule=SGD(rate=0.1)), in a job that has servers"
        )
    return Row(sends="gradients", holds="weights", rule=asked.rule, clock=asked.clock or usual)


def asynchronous(asked: Asked) -> Row:
    """Return the row of `async`: free-running, or bounded-stale if the setting `staleness` is given.

    Without servers there is one group, and its workers update.
    """
    if asked.rule is None and asked.clock is None and not asked.has_servers:
        return Row(sends="gradients", holds="gradients", rule=Sum(), clock=BulkSynchronous())
    staleness = asked.settings.staleness
    return row(asked, FreeRunning() if staleness is None else BoundedStale(staleness))


def stale(asked: Asked) -> Row:
    """Return the row of `stale`."""
    staleness = STALENESS if asked.settings.staleness is None else asked.settings.staleness
    settings = msgspec.structs.replace(asked.settings, staleness=staleness)
    return asynchronous(msgspec.structs.replace(asked, settings=settings))


class ServerSGD(Algorithm):
    """One rank's part in SGD with the update at the servers. `Algorithm` documents the methods."""

    updates = True

    @property
    def keeps_gradients(self) -> bool:
        # Quantising changes gradients in place. Between nodes, ranks sum in place, so they would have to copy first.
        return self.levels.one_node and self._residuals is None

    def updating(self, rule: AnyRule) -> Algorithm:
        row = Row(name=self.name, sends="gradients", holds="weights", rule=rule, clock=self.row.clock)
        return ServerSGD(self.levels, self.tier, row, self.workers)


ASYNC = Definition(asynchronous, rules=RULES, also=("mpi-asgd", "dist-asgd"), is_asynchronous=True)
STALE = Definition(stale, rules=RULES, also=("ssp", "mpi-ssp", "dist-ssp"), is_asynchronous=True)
