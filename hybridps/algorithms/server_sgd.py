"""SGD whose update is at the servers: mpi-ASGD, asynchronous, and its synchronous and bounded-stale kin.

| tier | what | when | clock | rule |
|---|---|---|---|---|
| group | gradients, reduced to the leader | every step | | sum |
| servers | the group's gradients; back come weights | every step | free-running, or as given | SGD, or another |

In the asynchronous case (mpi-ASGD of MXNET-MPI, 2018; dist-ASGD for groups of one worker), whenever a group comes:

    w <- w - eta / (m b) (sum of the group's g_i)       at the server; the group goes on from w

`rescale` of the rule is 1 / (m b) there, and 1 / (C m b) with the bulk-synchronous clock, which sums over C groups.
With `BoundedStale(s)` a group waits while another one is more than s steps behind it (Ho et al., 2013).
"""

from __future__ import annotations

from hybridps.algorithms.uplink import Uplink
from hybridps.memory import Layout
from hybridps.ps.clocks import Clock
from hybridps.ps.rules import Rule, Sum
from hybridps.tensor_collectives import Levels, Tensor, reduce_


class ServerSGD:
    """See `Algorithm` for the methods. `rule` and `clock`: what the servers do, and when."""

    name = "async"
    has_centre = True
    updates = True

    def __init__(self, levels: Levels, uplink: Uplink, rule: Rule, clock: Clock) -> None:
        self.levels = levels
        self.uplink = uplink
        self.rule = rule
        self.clock = clock

    def initialise(self, table: str, layout: Layout, values: Tensor) -> None:
        self.uplink.register(f"{table}.initial", layout, values, Sum())

    def join_gradients(self, table: str, layout: Layout) -> None:
        pass

    def join_weights(self, table: str, layout: Layout, weights: Tensor) -> bool:
        return self.uplink.register(f"{table}.weights", layout, weights, self.rule, self.clock)

    def reduce_(self, table: str, gradients: Tensor, start: int, stop: int) -> None:
        if not self.uplink.start_sum(f"{table}.weights", gradients, start, stop):
            reduce_(gradients, self.levels.group, start=start, stop=stop)
            self.uplink.start(f"{table}.weights", gradients, start, stop)

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
        self.uplink.pull(f"{table}.weights", out)

    def close(self) -> None:
        self.uplink.close()
