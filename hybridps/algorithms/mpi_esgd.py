"""mpi-ESGD: synchronous SGD inside a group, Elastic SGD across groups (MXNET-MPI, 2018).

| tier | what | when | clock | rule |
|---|---|---|---|---|
| group | gradients, allreduce | every step | | sum |
| servers | weights | every tau steps | free-running | Elastic, or another |

Each step, in a group of m workers with batch b each:

    w <- w - eta / (m b) sum of the group's g_i

and before it, every tau steps, with the centre (Zhang, Choromanska, LeCun, 2015):

    d = alpha (w - centre),   centre <- centre + d (Elastic1),   w <- w - d (Elastic2)

alpha is 0.9 / C for C groups by default; stable in the synchronous case for 0 <= C alpha <= 1. All ranks
of a group stay identical. dist-ESGD is the case m = 1.

The gradients that `reduce_` returns stand for the sum over all workers: the group's sum times workers /
m. So a script that divides by the number of all workers takes the same steps with every algorithm.
"""

from __future__ import annotations

import numpy as np

from hybridps.algorithms.uplink import Uplink
from hybridps.memory import Layout
from hybridps.ps.rules import Rule, Sum
from hybridps.tensor_collectives import Levels, Tensor, allreduce_


class MpiESGD:
    """See `Algorithm` for the methods. `tau`: steps between exchanges.

    `rule`: `Elastic`, or another one that works on weights: `ElasticTogether`, its synchronous form, or `Outer`, an
    outer optimiser on the difference.
    """

    name = "elastic"
    updates = False

    def __init__(self, levels: Levels, uplink: Uplink, *, workers: int, rule: Rule, tau: int, has_centre: bool) -> None:
        self.levels = levels
        self.uplink = uplink
        self.rule = rule
        self.tau = tau
        self.has_centre = has_centre
        self._scale = workers / levels.group.size

    def initialise(self, table: str, layout: Layout, values: Tensor) -> None:
        self.uplink.register(f"{table}.initial", layout, values, Sum())

    def join_gradients(self, table: str, layout: Layout) -> None:
        pass

    def join_weights(self, table: str, layout: Layout, weights: Tensor) -> bool:
        return self.uplink.register(f"{table}.weights", layout, weights, self.rule)

    def reduce_(self, table: str, gradients: Tensor, start: int, stop: int) -> None:
        allreduce_(gradients, self.levels.group, "sum", start, stop)
        if self._scale != 1:
            for vector in gradients.vectors:
                np.multiply(vector[start:stop], vector.dtype.type(self._scale), out=vector[start:stop])

    def finish_(self) -> None:
        pass

    def averages(self, step: int) -> bool:
        return self.has_centre and step > 0 and step % self.tau == 0

    def average_(self, table: str, weights: Tensor) -> None:
        self.uplink.start(f"{table}.weights", weights, 0, weights.length)
        self.uplink.finish()

    @property
    def distance(self) -> float:
        return self.uplink.distance

    def read_centre(self, table: str, out: Tensor) -> None:
        self.uplink.pull(f"{table}.weights", out)

    def close(self) -> None:
        self.uplink.close()
