"""What light groups exchange, and what must hold after any faults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np

from benchmarks.chaos.chains import DivergedError, check_chain, digest
from hybridps.memory import Arena, Layout
from hybridps.ps.client import Client
from hybridps.ps.clocks import BulkSynchronous, Clock, FreeRunning
from hybridps.ps.rules import SGD, Elastic, Momentum, Rule, Sum
from hybridps.shared_memory import shared_memory

TABLE = "w"
WIDTH = 1000
"""The number of elements of a table for each group of its job, and in the tables of weights."""


class Share(Protocol):
    """The part of one group in a job: its values, and its record of what it did."""

    def exchange(self, client: Client) -> None:
        """Make one exchange, and wait for its end."""

    def leave_under_way(self, client: Client) -> None:
        """Begin an exchange whose end nobody sees, as the group dies in it."""

    def come_back(self) -> None:
        """Continue after a death, with a new client."""


class LightJob:
    """A kind of job. Groups are numbered from 0."""

    name: ClassVar[str]
    rule: ClassVar[Rule]
    clock: ClassVar[Clock | None] = None

    def __init__(self, groups: int) -> None:
        self.groups = groups
        self.shares = [self.make_share(group) for group in range(groups)]

    @property
    def is_synchronous(self) -> bool:
        """Whether groups wait for each other in every round."""
        return isinstance(self.clock or self.rule.clocks[0](), BulkSynchronous)

    @property
    def layout(self) -> Layout:
        """The layout of the job's table."""
        return Layout.of("float32", {TABLE: (self.groups, WIDTH), "rest": (77,)})

    def make_share(self, group: int) -> Share:
        raise NotImplementedError

    def check(self, centre: np.ndarray) -> str:
        """Check what all groups received, and the final centre. Return a text that says what holds.

        Raises DivergedError.
        """
        raise NotImplementedError


def memory(layout: Layout, group: int) -> np.ndarray:
    """Return zeros; for every other group, in memory that servers of this host can reach."""
    return shared_memory(layout.nbytes).view(np.float32) if group % 2 else np.zeros(layout.length, np.float32)


def rows_of(layout: Layout, flat: np.ndarray) -> np.ndarray:
    """Return the row of each group in an array of a table."""
    return Arena(layout, flat).view(TABLE)


class _Synchronous:
    """A group of a job in which all groups get the same answers."""

    def __init__(self, layout: Layout, group: int) -> None:
        self.layout, self.group = layout, group
        self.values, self.answer = memory(layout, group), memory(layout, group)
        self.lives: list[list[int]] = [[]]
        self._random = np.random.default_rng(group)

    def exchange(self, client: Client) -> None:
        self._fill()
        client.exchange(TABLE, self.values, self.answer, 0, self.layout.length).wait()
        self._look()
        self.lives[-1].append(digest(self.answer))

    def leave_under_way(self, client: Client) -> None:
        self._fill()
        client.exchange(TABLE, self.values, self.answer, 0, self.layout.length)

    def come_back(self) -> None:
        # Operations of the previous life may still read and write the old arrays.
        self.values, self.answer = memory(self.layout, self.group), memory(self.layout, self.group)
        self.lives.append([])

    def _fill(self) -> None:
        self.values[:] = self._random.standard_normal(self.layout.length, np.float32)

    def _look(self) -> None:
        """Check the answer."""


class _Summing(_Synchronous):
    """Each group has a row, to which it adds ones."""

    def _fill(self) -> None:
        super()._fill()
        rows = rows_of(self.layout, self.values)
        rows[:] = 0
        rows[self.group] = 1

    def _look(self) -> None:
        rows = rows_of(self.layout, self.answer)
        if not (rows[self.group] == 1).all() or not ((rows == 0) | (rows == 1)).all():
            raise DivergedError(f"group {self.group} got a sum in which a contribution counts not exactly once")


class SumJob(LightJob):
    """Sums of all groups, in step: each contribution counts once, and all groups get the same bits."""

    name, rule = "sum", Sum()

    def make_share(self, group: int) -> Share:
        return _Summing(self.layout, group)

    def check(self, centre: np.ndarray) -> str:
        return f"{check_chain(_lives(self.shares))} rounds, the same bits for all groups, each contribution once"


class MomentumJob(LightJob):
    """Weights that the server updates with momentum, in step: all groups get the same bits."""

    name, rule = "momentum", Momentum(rate=0.01, momentum=0.9)

    def make_share(self, group: int) -> Share:
        return _Synchronous(self.layout, group)

    def check(self, centre: np.ndarray) -> str:
        return f"{check_chain(_lives(self.shares))} rounds, the same bits for all groups"


def _lives(shares: Sequence[Share]) -> list[list[int]]:
    return [life for share in shares if isinstance(share, _Synchronous) for life in share.lives]


class _Elastic:
    """Weights that drift, and the total that was added to them."""

    def __init__(self, layout: Layout, group: int) -> None:
        self.layout, self.group = layout, group
        self.weights, self.answer = memory(layout, group), memory(layout, group)
        self.added = 0.0

    def exchange(self, client: Client) -> None:
        self.weights += np.float32(self.group + 1)
        self.added += self.group + 1
        client.exchange(TABLE, self.weights, self.answer, 0, self.layout.length).wait()
        self.weights -= self.answer

    def leave_under_way(self, client: Client) -> None:
        """Do nothing: nobody could know whether the centre has moved, so the expected sum would be unknown."""

    def come_back(self) -> None:
        weights, self.answer = memory(self.layout, self.group), memory(self.layout, self.group)
        np.copyto(weights, self.weights)
        self.weights = weights


class ElasticJob(LightJob):
    """Elastic averaging, each group at its own pace: weights and centre add up to the total that was added."""

    name, rule = "elastic", Elastic(0.25)

    def make_share(self, group: int) -> Share:
        return _Elastic(self.layout, group)

    def check(self, centre: np.ndarray) -> str:
        shares = [share for share in self.shares if isinstance(share, _Elastic)]
        added = sum(share.added for share in shares)
        there = centre.astype(np.float64) + sum(share.weights.astype(np.float64) for share in shares)
        off = float(np.abs(there / max(added, 1.0) - 1).max())
        if off > 1e-4:
            raise DivergedError(f"weights and centre add up to {1 + off:.6f} times what was added to them")
        return f"weights and centre conserved to {off:.1e}"


class _Counting:
    """Gradients of one in the group's own row."""

    def __init__(self, layout: Layout, group: int) -> None:
        self.layout, self.group = layout, group
        self.counted = self.unknown = 0
        self.come_back()

    def come_back(self) -> None:
        self.values, self.answer = memory(self.layout, self.group), memory(self.layout, self.group)
        rows_of(self.layout, self.values)[self.group] = 1

    def exchange(self, client: Client) -> None:
        client.exchange(TABLE, self.values, self.answer, 0, self.layout.length).wait()
        self.counted += 1

    def leave_under_way(self, client: Client) -> None:
        client.exchange(TABLE, self.values, self.answer, 0, self.layout.length)
        self.unknown += 1


class AsyncJob(LightJob):
    """Asynchronous SGD: each gradient that was answered counts exactly once, others at most once.

    The rate is a power of two, so sums in any order have the same bits.
    """

    name, rule, clock = "async", SGD(rate=2.0**-7), FreeRunning()

    def make_share(self, group: int) -> Share:
        return _Counting(self.layout, group)

    def check(self, centre: np.ndarray) -> str:
        rows = -rows_of(self.layout, centre) * 2**7
        for share in (share for share in self.shares if isinstance(share, _Counting)):
            row = rows[share.group]
            if row.min() < share.counted or row.max() > share.counted + share.unknown:
                raise DivergedError(
                    f"of group {share.group} {row.min():g} to {row.max():g} gradients count, and {share.counted} were "
                    f"answered, {share.unknown} were under way when it died"
                )
        answered = sum(share.counted for share in self.shares if isinstance(share, _Counting))
        return f"{answered} gradients, each counts once"


JOBS = (SumJob, MomentumJob, ElasticJob, AsyncJob)
