"""The contract of an algorithm: what is communicated, and when; never how."""

from __future__ import annotations

from typing import Protocol

from hybridps.memory import Layout
from hybridps.tensor_collectives import Levels, Tensor

UNDER_WAY = 8
"""Buckets that are begun before the oldest is finished. With 4 the servers were idle at times."""


class Algorithm(Protocol):
    """One rank's part in an algorithm, over one group and one tier.

    A *table* is a flat buffer with a layout: the gradients and the weights of the keys of one dtype. All
    ranks of a group call the same operations in the same order; `drop` and `close` do not wait for other ranks.
    """

    name: str
    """Short name, as in the KVStore type."""

    has_centre: bool
    """Whether the servers hold a model of their own, the centre."""

    updates: bool
    """Whether the servers update: what `reduce_` and `finish_` bring are then the new weights, not gradients."""

    levels: Levels
    """The levels of the group; `levels.tensor` gives the memory that gradients are reduced fastest in."""

    def initialise(self, table: str, layout: Layout, values: Tensor) -> None:
        """Make `values` the same on all ranks of all groups: those of the first group's leader.

        A group that comes after all others have theirs keeps its leader's values, until it joins the weights. Raises
        LayoutError, with the first keys that differ, unless all ranks and groups give the same layout.
        """

    def join_gradients(self, table: str, layout: Layout) -> None:
        """Register a table before its first `reduce_`. Raises LayoutError as `initialise`."""

    def join_weights(self, table: str, layout: Layout, weights: Tensor) -> bool:
        """Register a table before its first `average_` or `read_centre`. Raises LayoutError as `initialise`.

        Returns, alike on all ranks of the group, whether its centre was there already; then `weights` are the centre
        now.
        """

    def reduce_(self, table: str, gradients: Tensor, start: int, stop: int) -> None:
        """Begin to turn elements `start:stop` of the gradients, any span, into the sum over all workers.

        Of one element, one reduction is under way at a time.
        """

    def finish_(self) -> None:
        """End the oldest `reduce_`: its elements may be used."""

    def averages(self, step: int) -> bool:
        """Whether the weights are averaged across groups in this step (0, 1, ...), before the local update."""

    def average_(self, table: str, weights: Tensor) -> None:
        """Average the weights with the centre, in place."""

    @property
    def distance(self) -> float:
        """|w - centre| / |w| at the last averaging that this rank knows of; nan if there was none."""

    def read_centre(self, table: str, out: Tensor) -> None:
        """Read the centre of a table. Only where `has_centre`."""

    def drop(self, table: str) -> None:
        """Give up a table, with nothing of it under way. The servers free it when all groups have dropped it."""

    def barrier(self) -> None:
        """Return when all workers of all groups have called it."""

    def close(self) -> None:
        """Drop all tables. The job's connection and levels stay open for its other algorithms."""


def reduce_all_(algorithm: Algorithm, table: str, gradients: Tensor, bucket: int) -> None:
    """Reduce all gradients in buckets of `bucket` elements, the last first, as a backward pass brings them."""
    starts = range(0, gradients.length, bucket)[::-1]
    for number, start in enumerate(starts):
        algorithm.reduce_(table, gradients, start, min(start + bucket, gradients.length))
        if number >= UNDER_WAY:
            algorithm.finish_()
    for _ in starts[-UNDER_WAY:]:
        algorithm.finish_()
