"""Searches for the best configuration of each number of PEs, and for what limits doubling that number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import isqrt
from typing import Any

import msgspec
import numpy as np

from hybridps.errors import OracleError
from hybridps.oracle.hybrid.ps_tier import Tier
from hybridps.oracle.hybrid.schemes import ALGORITHMS, Scheme, predict_scheme, step
from hybridps.oracle.paradl import PAPER, Answer, Work, predict, strategy_of

TOLERANCE = 0.01
"""Of configurations that are as fast, up to this part, the one is chosen that couples the workers most tightly."""


class Constraints(msgspec.Struct, frozen=True, kw_only=True):
    """The space that the search covers: strategies as they are, and algorithms with all numbers below."""

    strategies: tuple[str, ...] = tuple(PAPER)
    algorithms: tuple[str, ...] = ("sync", "elastic")
    most_groups: int = 1 << 17
    most_servers: int = 64
    most_tau: int = 64
    chunk_bytes: tuple[int, ...] = tuple(1 << power for power in range(12, 23))
    least_efficiency: float = 0.5


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The best configuration of a number of PEs, and the effect of doubling them.

    `efficiency` is relative to one PE, `doubling_speedup` to this choice. `stopped_by` names the main cost of doubling,
    or the limits that forbid it; it is empty while doubling keeps the required efficiency.
    """

    pes: int
    strategy: str
    groups: int
    servers: int
    tau: int
    chunk_bytes: int
    seconds_per_epoch: float
    compute_seconds_per_epoch: float
    communication_seconds_per_epoch: float
    memory_bytes_per_pe: float
    efficiency: float
    doubling_speedup: float | None
    stopped_by: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    choices: tuple[Choice, ...]
    infeasible: dict[int, tuple[str, ...]]
    """Numbers of elements that nothing is feasible with, and the limits."""
    configurations: int
    """How many were compared."""

    @property
    def best(self) -> Choice:
        """The fastest choice; among equals, the one with the fewest PEs."""
        return min(self.choices, key=lambda choice: (choice.seconds_per_epoch, choice.pes))


@dataclass(frozen=True)
class Candidate:
    answer: Answer
    scheme: Scheme | None

    @property
    def seconds(self) -> float:
        return self.answer.prediction.seconds_per_epoch


def plan(work: Work, batch: int, pes: Sequence[int], constraints: Constraints | None = None) -> Plan:
    """The best choice for each number of PEs. Raises OracleError if no configuration is feasible with any of them."""
    constraints = constraints or Constraints()
    alone = predict(work, "serial", 1, batch).prediction.seconds_per_epoch
    found: dict[int, Candidate | None] = {}
    compared = 0
    for count in sorted({*pes, *(2 * count for count in pes)}):
        candidates, looked_at = _candidates(work, batch, count, constraints)
        compared += looked_at
        found[count] = min(candidates, key=lambda candidate: candidate.seconds, default=None)
    choices = [
        _choice(work, batch, alone, count, best, found[2 * count], constraints)
        for count in sorted(set(pes))
        if (best := found[count]) is not None
    ]
    infeasible = {count: _limits(work, batch, count, constraints) for count in sorted(set(pes)) if not found[count]}
    if not choices:
        reasons = "; ".join(limit for limits in infeasible.values() for limit in limits)
        raise OracleError(f"nothing is feasible with {min(pes)} to {max(pes)} PEs: {reasons}")
    return Plan(tuple(choices), infeasible, compared)


def constraints_of(names: Sequence[str], **bounds: float | None) -> Constraints:
    """Constraints from names of strategies and algorithms (none: the defaults), and the bounds that are not None.

    Raises OracleError for unknown names.
    """
    given: dict[str, Any] = {name: value for name, value in bounds.items() if value is not None}
    for name in names:
        if name not in ALGORITHMS:
            strategy_of(name, "paper")
    if names:
        algorithms = tuple(name for name in names if name in ALGORITHMS)
        given |= {"algorithms": algorithms, "strategies": tuple(name for name in names if name not in algorithms)}
    return msgspec.structs.replace(Constraints(), **given)


def _candidates(work: Work, batch: int, pes: int, constraints: Constraints) -> tuple[list[Candidate], int]:
    """The feasible answers, one per strategy and the best of each algorithm, and the number of answers compared."""
    answers = [Candidate(predict(work, name, pes, batch), None) for name in constraints.strategies]
    compared = len(answers)
    for algorithm, groups in product(constraints.algorithms, _divisors(pes, constraints.most_groups)):
        scheme, looked_at = _best_scheme(work, batch, pes, algorithm, groups, constraints)
        compared += looked_at
        answers.append(Candidate(predict_scheme(work, scheme, pes, batch), scheme))
    return [candidate for candidate in answers if candidate.answer.prediction.feasible], compared


def _best_scheme(
    work: Work, batch: int, pes: int, algorithm: str, groups: int, constraints: Constraints
) -> tuple[Scheme, int]:
    """The best servers, tau and chunk size of an algorithm with these groups, and the number of answers compared."""
    taus = list(_powers(constraints.most_tau)) if algorithm in ("elastic", "gossip", "adaptive") else [1]
    grid = list(product(taus, _powers(constraints.most_servers), sorted(constraints.chunk_bytes, reverse=True)))
    if groups == 1:
        grid = grid[:1]
    tau, servers, chunk_bytes = np.array(grid, float).T
    seconds = step(work, Scheme(algorithm, groups, tau, tier=Tier(servers, chunk_bytes)), pes, batch).seconds
    seconds = np.broadcast_to(seconds, len(grid))
    first = int(np.flatnonzero(seconds <= seconds.min() * (1 + TOLERANCE))[0])
    chosen_tau, chosen_servers, chosen_chunk = grid[first]
    return Scheme(algorithm, groups, chosen_tau, tier=Tier(chosen_servers, chosen_chunk)), len(grid)


def _choice(
    work: Work,
    batch: int,
    alone_seconds: float,
    pes: int,
    best: Candidate,
    doubled: Candidate | None,
    constraints: Constraints,
) -> Choice:
    prediction, scheme = best.answer.prediction, best.scheme
    speedup = best.seconds / doubled.seconds if doubled else None
    return Choice(
        pes=pes,
        strategy=prediction.strategy,
        groups=scheme.groups if scheme else 1,
        servers=int(scheme.tier.servers) if scheme and scheme.has_servers else 0,
        tau=int(scheme.tau) if scheme else 1,
        chunk_bytes=int(scheme.tier.chunk_bytes) if scheme and scheme.has_servers else 0,
        seconds_per_epoch=prediction.seconds_per_epoch,
        compute_seconds_per_epoch=prediction.compute_seconds_per_epoch,
        communication_seconds_per_epoch=prediction.communication_seconds_per_epoch,
        memory_bytes_per_pe=prediction.memory_bytes_per_pe,
        efficiency=alone_seconds / (pes * prediction.seconds_per_epoch),
        doubling_speedup=speedup,
        stopped_by=_stopped_by(work, batch, best, doubled, speedup, constraints),
    )


def _stopped_by(
    work: Work, batch: int, best: Candidate, doubled: Candidate | None, speedup: float | None, constraints: Constraints
) -> tuple[str, ...]:
    """The limits that the choice exceeds with twice the PEs, or else its largest cost there."""
    if speedup is not None and speedup >= 2 * constraints.least_efficiency:
        return ()
    prediction = best.answer.prediction
    same = _same_doubled(work, batch, best)
    if doubled is None or not same.prediction.feasible:
        return same.prediction.limits or _limits(work, batch, 2 * prediction.pes, constraints)
    losses = [found for found in same.bottlenecks() if found.name != "memory redundancy"]
    return tuple(str(found) for found in losses[:2])


def _same_doubled(work: Work, batch: int, best: Candidate) -> Answer:
    """The answer for the same strategy, or the same algorithm and group size, with twice the PEs."""
    prediction = best.answer.prediction
    if best.scheme is None:
        return predict(work, prediction.strategy, 2 * prediction.pes, batch)
    groups = 2 * best.scheme.groups if best.scheme.groups > 1 else 1
    return predict_scheme(work, replace(best.scheme, groups=groups), 2 * prediction.pes, batch)


def _limits(work: Work, batch: int, pes: int, constraints: Constraints) -> tuple[str, ...]:
    """The limits of each strategy or, without strategies, of each algorithm in one group."""
    answers = [predict(work, name, pes, batch) for name in constraints.strategies]
    answers = answers or [predict_scheme(work, Scheme(name), pes, batch) for name in constraints.algorithms]
    return tuple(f"{one.prediction.strategy}: {limit}" for one in answers for limit in one.prediction.limits)


def _divisors(number: int, most: int) -> list[int]:
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return sorted(divisor for divisor in {*small, *(number // divisor for divisor in small)} if divisor <= most)


def _powers(most: int) -> Iterator[int]:
    """1, 2, 4 ... up to `most`."""
    value = 1
    while value <= most:
        yield value
        value *= 2
