"""Searches for the best configuration of each number of PEs, and for what limits doubling that number."""

from __future__ import annotations

from collections.abc import Sequence
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
"""Configurations count as equally fast within this part of the time. The search then chooses the one that couples the
workers most tightly."""


class Constraints(msgspec.Struct, frozen=True, kw_only=True):
    """The space that the search covers: the strategies, and the algorithms with all numbers below."""

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


class Infeasible(msgspec.Struct, frozen=True):
    """A number of PEs for which no configuration is feasible, and the limits."""

    pes: int
    limits: tuple[str, ...]


class Plan(msgspec.Struct, frozen=True):
    """The answer as written to JSON. `best` is the fastest choice; among equals, the one with the fewest PEs."""

    best: Choice
    choices: tuple[Choice, ...]
    infeasible: tuple[Infeasible, ...]
    configurations: int
    """The number of configurations that were compared."""


@dataclass(frozen=True)
class Candidate:
    scheme: Scheme
    answer: Answer

    @property
    def seconds(self) -> float:
        return self.answer.prediction.seconds_per_epoch


def plan(work: Work, batch: int, pes: Sequence[int], constraints: Constraints | None = None) -> Plan:
    """Find the best choice for each number of PEs. Raises OracleError if nothing is feasible with any of them."""
    search = _Search(work, batch, constraints or Constraints())
    counts = sorted(set(pes))
    found = {count: search.best(count) for count in sorted({*counts, *(2 * count for count in counts)})}
    choices = [search.choice(fastest, found[2 * count]) for count in counts if (fastest := found[count])]
    infeasible = [Infeasible(count, search.limits(count)) for count in counts if not found[count]]
    if not choices:
        reasons = "; ".join(limit for each in infeasible for limit in each.limits)
        raise OracleError(f"nothing is feasible with {min(pes)} to {max(pes)} PEs: {reasons}")
    best = min(choices, key=lambda choice: (choice.seconds_per_epoch, choice.pes))
    return Plan(best, tuple(choices), tuple(infeasible), search.compared)


def constraints_of(names: Sequence[str], **bounds: float | None) -> Constraints:
    """Make constraints from names of strategies and algorithms, and from the bounds that are not None.

    Without names, the defaults apply. Raises OracleError for unknown names.
    """
    given: dict[str, Any] = {name: value for name, value in bounds.items() if value is not None}
    if names:
        algorithms = tuple(name for name in names if name in ALGORITHMS)
        strategies = tuple(strategy_of(name, "paper") for name in names if name not in ALGORITHMS)
        given |= {"algorithms": algorithms, "strategies": strategies}
    return Constraints(**given)


class _Search:
    def __init__(self, work: Work, batch: int, constraints: Constraints) -> None:
        self.compared = 0
        """The number of configurations that were compared."""
        self._work = work
        self._batch = batch
        self._constraints = constraints
        self._alone_seconds = predict(work, "serial", 1, batch).prediction.seconds_per_epoch

    def best(self, pes: int) -> Candidate | None:
        """Return the fastest feasible strategy or algorithm, with any number of groups; None if none is feasible."""
        known = self._constraints
        schemes = [Scheme(name) for name in known.strategies]
        self.compared += len(schemes)
        for algorithm, groups in product(known.algorithms, _divisors(pes, known.most_groups)):
            schemes.append(self._best_scheme(pes, algorithm, groups))
        candidates = [Candidate(scheme, self._predict(scheme, pes)) for scheme in schemes]
        feasible = [candidate for candidate in candidates if candidate.answer.prediction.feasible]
        return min(feasible, key=lambda candidate: candidate.seconds, default=None)

    def choice(self, best: Candidate, doubled: Candidate | None) -> Choice:
        prediction, scheme = best.answer.prediction, best.scheme
        speedup = best.seconds / doubled.seconds if doubled else None
        enough = speedup is not None and speedup >= 2 * self._constraints.least_efficiency
        return Choice(
            pes=prediction.pes,
            strategy=prediction.strategy,
            groups=scheme.groups,
            servers=int(scheme.tier.servers) if scheme.has_servers else 0,
            tau=int(scheme.tau),
            chunk_bytes=int(scheme.tier.chunk_bytes) if scheme.has_servers else 0,
            seconds_per_epoch=best.seconds,
            compute_seconds_per_epoch=prediction.compute_seconds_per_epoch,
            communication_seconds_per_epoch=prediction.communication_seconds_per_epoch,
            memory_bytes_per_pe=prediction.memory_bytes_per_pe,
            efficiency=self._alone_seconds / (prediction.pes * best.seconds),
            doubling_speedup=speedup,
            stopped_by=() if enough else self._stopped_by(best, doubled),
        )

    def limits(self, pes: int) -> tuple[str, ...]:
        """Return the limits of each strategy or, without strategies, of each algorithm in one group."""
        names = self._constraints.strategies or self._constraints.algorithms
        answers = [self._predict(Scheme(name), pes).prediction for name in names]
        return tuple(f"{one.strategy}: {limit}" for one in answers for limit in one.limits)

    def _stopped_by(self, best: Candidate, doubled: Candidate | None) -> tuple[str, ...]:
        """Return why doubling stops: the limits that twice the PEs exceed in equal groups, or the largest costs."""
        groups = 2 * best.scheme.groups if best.scheme.groups > 1 else 1
        pes = 2 * best.answer.prediction.pes
        same = self._predict(replace(best.scheme, groups=groups), pes)
        if doubled is None or not same.prediction.feasible:
            return same.prediction.limits or self.limits(pes)
        losses = [found for found in same.bottlenecks() if found.name != "memory redundancy"]
        return tuple(str(found) for found in losses[:2])

    def _best_scheme(self, pes: int, algorithm: str, groups: int) -> Scheme:
        """Return the best servers, tau and chunk size of an algorithm with this number of groups."""
        known = self._constraints
        taus = _powers(known.most_tau) if algorithm in ("elastic", "gossip", "adaptive") else [1]
        grid = list(product(taus, _powers(known.most_servers), sorted(known.chunk_bytes, reverse=True)))
        if groups == 1:
            grid = grid[:1]
        self.compared += len(grid)
        tau, servers, chunk_bytes = np.array(grid, float).T
        schemes = Scheme(algorithm, groups, tau, tier=Tier(servers, chunk_bytes))
        seconds = np.broadcast_to(step(self._work, schemes, pes, self._batch).seconds, len(grid))
        first = int(np.flatnonzero(seconds <= seconds.min() * (1 + TOLERANCE))[0])
        chosen_tau, chosen_servers, chosen_chunk = grid[first]
        return Scheme(algorithm, groups, chosen_tau, tier=Tier(chosen_servers, chosen_chunk))

    def _predict(self, scheme: Scheme, pes: int) -> Answer:
        return predict_scheme(self._work, scheme, pes, self._batch)


def _divisors(number: int, most: int) -> list[int]:
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return sorted(divisor for divisor in {*small, *(number // divisor for divisor in small)} if divisor <= most)


def _powers(most: int) -> list[int]:
    """Return 1, 2, 4, ... up to `most`."""
    return [1 << power for power in range(most.bit_length())]
