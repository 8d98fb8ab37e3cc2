"""mpi-ESGD: synchronous SGD inside a group, Elastic SGD across groups (MXNET-MPI, 2018).

| trigger | tier | sends | clock | rule | codec |
|---|---|---|---|---|---|
| every step | group | gradients, by allreduce | | sum | the group's |
| every tau steps | servers | weights | free-running, or as given | Elastic, or another | exact |

Each step, in a group of m workers with batch b each,

    w <- w - eta / (m b) sum of the group's g_i.

Before that, every tau steps, the group and the centre move towards each other (Zhang, Choromanska, LeCun, 2015):

    d = alpha (w - centre),   centre <- centre + d (Elastic1),   w <- w - d (Elastic2).

alpha is 0.9 / C for C groups by default; the synchronous form is stable for 0 <= C alpha <= 1. All ranks of a group
stay identical. dist-ESGD is the case m = 1.

The gradients that `reduce_` returns stand for the sum over all workers: the group's sum times workers / m. So a
script that divides by the number of all workers takes the same steps with every algorithm.
"""

from __future__ import annotations

import numpy as np

from hybridps.algorithms.algorithm import Algorithm
from hybridps.algorithms.row import EverySteps, Row
from hybridps.ps.clocks import Clock
from hybridps.ps.model import Rules
from hybridps.ps.rules import AnyRule, Elastic, ElasticTogether, Mean, Outer
from hybridps.tensor_collectives import Levels, Tensor, allreduce_
from hybridps.tiers import Tier

RULES = (Elastic, ElasticTogether, Outer, Mean)
"""The rules that have a meaning for weights."""


def row(tau: int, rule: AnyRule, clock: Clock) -> Row:
    """Weights every `tau` steps. `rule`: one of `RULES`; `Outer` is an outer optimiser on the difference."""
    return Row(sends="weights", holds="weights", trigger=EverySteps(tau), rule=rule, clock=clock)


class MpiESGD(Algorithm):
    """See `Algorithm` for the methods. `workers`: of all groups."""

    name = "elastic"

    def __init__(self, levels: Levels, tier: Tier, row: Row, *, workers: int, has_centre: bool) -> None:
        super().__init__(levels, tier, row)
        self.has_centre = has_centre
        self._divisor = levels.group.size / workers
        """Of the group's sum, which so stands for the sum over all workers."""
        self.reduce_, self.finish_ = self._reduce_in_group_, lambda: None

    def averages(self, step: int) -> bool:
        return self.has_centre and self.row.trigger.due(step)

    def _reduce_in_group_(self, table: str, gradients: Tensor, start: int, stop: int, rules: Rules = ()) -> None:
        if gradients.dtype.kind == "f":
            allreduce_(gradients, self.levels.group, "sum", start, stop, self._divisor)
            return
        allreduce_(gradients, self.levels.group, "sum", start, stop)
        for vector in gradients.vectors:
            vector[start:stop] = np.rint(vector[start:stop] / self._divisor)
