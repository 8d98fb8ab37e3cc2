"""The cost of an epoch of each hybridps algorithm: workers are coupled tightly in groups, and loosely across them.

There are C groups of m workers, and M bytes of model. In every step the workers of a group allreduce their gradients.
Across groups:

| algorithm | what is sent | when | who waits |
|---|---|---|---|
| sync | gradients, over the servers | every step | all groups for each other |
| async | gradients, over the servers | every step | a group for its own answer |
| elastic | weights, over the servers | every tau steps | a group for its own answer |
| gossip | weights, between two groups | every tau steps | the two for each other |
| adaptive | weights, between two groups | in a `traffic` part of the times of gossip | the two for each other |

These costs assume that no communication is hidden behind compute. The schedule of one iteration (`ssgd`) says what is
hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from hybridps.errors import OracleError
from hybridps.oracle.hybrid.ps_tier import Numbers, Tier, exchange_seconds, server_busy_seconds
from hybridps.oracle.machines import Link
from hybridps.oracle.paradl import PAPER, Answer, Work, answer, predict
from hybridps.oracle.paradl.costs import GRADIENTS, PEERS, SERVERS, Costs

ALGORITHMS = ("sync", "async", "elastic", "gossip", "adaptive")


@dataclass(frozen=True)
class Scheme:
    """An algorithm with its parameters, or a strategy of ParaDL, which has none.

    `tau` may be an array, like the numbers of `tier`.
    """

    algorithm: str
    groups: int = 1
    tau: Numbers = 1
    traffic: float = 1.0
    tier: Tier = Tier()

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS and self.algorithm not in PAPER:
            raise OracleError(f"unknown algorithm {self.algorithm!r}: use one of {', '.join(ALGORITHMS)}")
        if self.groups < 1 or np.min(self.tau) < 1:
            raise OracleError(f"groups={self.groups} and tau={self.tau}: give 1 or more")
        if not 0 < self.traffic <= 1:
            raise OracleError(f"traffic={self.traffic:g} is a part of the exchanges: give more than 0, and up to 1")

    @property
    def period(self) -> Numbers:
        """The number of steps between two exchanges across groups."""
        if self.algorithm in ("sync", "async"):
            return 1
        return self.tau / self.traffic if self.algorithm == "adaptive" else self.tau

    @property
    def has_servers(self) -> bool:
        return self.groups > 1 and self.algorithm in ("sync", "async", "elastic")


@dataclass(frozen=True)
class Step:
    """The seconds of one step of a worker, by activity. They are arrays if the `Scheme` has arrays."""

    compute_seconds: float
    group_seconds: float
    across_seconds: Numbers

    @property
    def seconds(self) -> Numbers:
        return self.compute_seconds + self.group_seconds + self.across_seconds


def scheme_of(algorithm: str, numbers: Mapping[str, float]) -> Scheme:
    """Make a scheme from named numbers: groups, tau, traffic, and the fields of `Tier`."""
    whole = {name: int(value) for name, value in numbers.items() if name != "traffic"}
    tier = Tier(**{name: value for name, value in whole.items() if name not in ("groups", "tau")})
    return Scheme(algorithm, whole.get("groups", 1), whole.get("tau", 1), numbers.get("traffic", 1.0), tier)


def step(work: Work, scheme: Scheme, pes: int, batch: int) -> Step:
    """Return the seconds of one step of `pes` workers with a global batch."""
    members = ceil(pes / scheme.groups)
    compute = batch / pes * work.passes_seconds + work.update_seconds
    inner = work.machine.link(members)
    group = inner.allreduce_seconds(members, work.weight_bytes)
    if scheme.groups == 1:
        return Step(compute, group, 0.0)
    link = work.machine.link(pes)
    clients = scheme.groups if scheme.algorithm == "sync" else 1
    own = (
        exchange_seconds(work.machine, link, scheme.tier, clients, work.weight_bytes)
        if scheme.has_servers
        else link.message_seconds(work.weight_bytes)
    )
    own = own + broadcast_seconds(inner, members, work.weight_bytes)
    if scheme.algorithm in ("async", "elastic"):
        # Groups that do not wait for each other still share the servers. A round of all groups takes at least the time
        # that its exchanges keep the servers busy.
        busy = server_busy_seconds(work.machine, link, scheme.tier, scheme.groups, work.weight_bytes)
        own = np.maximum(own, busy - scheme.period * (compute + group))
    return Step(compute, group, own / scheme.period)


def costs_of(work: Work, scheme: Scheme, pes: int, batch: int) -> Costs:
    """Return the costs of an epoch. `scheme` must not have arrays."""
    one = step(work, scheme, pes, batch)
    iterations = work.network.samples / batch
    averages_weights = scheme.groups > 1 and scheme.algorithm not in ("sync", "async")
    kept = 2 * work.weight_bytes + (work.weight_bytes if averages_weights else 0.0)
    across: Mapping[str, float] = {SERVERS if scheme.has_servers else PEERS: iterations * float(one.across_seconds)}
    return Costs(
        work.network.samples / pes * work.passes_seconds,
        iterations * work.update_seconds,
        2 * work.bytes_per_item * batch / pes * work.activation_items + kept,
        {GRADIENTS: iterations * one.group_seconds, **(across if scheme.groups > 1 else {})},
        replicated_bytes=kept if pes > 1 else 0.0,
    )


def predict_scheme(work: Work, scheme: Scheme, pes: int, batch: int) -> Answer:
    """Predict an algorithm of hybridps, or a strategy. Raises OracleError for impossible numbers."""
    if scheme.algorithm not in ALGORITHMS:
        return predict(work, scheme.algorithm, pes, batch)
    if pes < 1 or batch < 1:
        raise OracleError(f"pes={pes} and batch={batch}: give 1 or more")
    limits = [f"pes: {pes} > {batch}, the global batch"] if pes > batch else []
    if scheme.groups > pes:
        limits.append(f"groups: {scheme.groups} > {pes} workers")
    return answer(work, scheme.algorithm, pes, batch, costs_of(work, scheme, pes, batch), limits)


def broadcast_seconds(link: Link, members: int, message_bytes: float) -> float:
    """Return the seconds of a broadcast: scatter along a tree, then a ring allgather.

    They are (log2 m + m - 1) a + 2 (m - 1) / m M b.
    """
    if members == 1:
        return 0.0
    starts = ceil(log2(members)) + members - 1
    return starts * link.latency_seconds + 2 * (members - 1) / members * message_bytes * link.seconds_per_byte
