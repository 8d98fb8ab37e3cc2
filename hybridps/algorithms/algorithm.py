"""What an algorithm is: what is communicated, and when; never how."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

from msgspec.structs import replace

from hybridps.algorithms.row import Row
from hybridps.codecs import Quantised, Residuals, codec_of, spec_for
from hybridps.errors import ConfigError
from hybridps.memory import Layout
from hybridps.ps.clocks import BulkSynchronous
from hybridps.ps.model import Joining, Rules
from hybridps.ps.rules import AnyRule, Sum
from hybridps.tensor_collectives import Levels, Tensor
from hybridps.tiers import Tier, check_same_layout

UNDER_WAY = 8
"""Buckets that are begun before the oldest is finished. With 4 the servers were idle at times."""


class Algorithm:
    """One rank's part in an algorithm, over one group and one tier.

    A *table* is a flat buffer with a layout: the gradients and the weights of the keys of one dtype. All
    ranks of a group call the same operations in the same order; `drop` and `close` do not wait for other ranks.
    """

    has_centre = True
    """Whether the servers hold a model of their own, the centre."""

    updates: ClassVar[bool] = False
    """Whether the servers update: what `reduce_` and `finish_` bring are then the new weights, not gradients."""

    reduce_: Callable[..., None]
    """`reduce_(table, gradients, start, stop, rules=())`: begin to turn elements `start:stop` of the gradients, any
    span, into the sum over all workers, or into new weights where the servers update. `rules`: of these elements,
    instead of the table's (`Rules`). Of one element, one reduction is under way at a time."""

    finish_: Callable[[], Mapping[int, int] | None]
    """End the oldest `reduce_`: its elements may be used. Returns as `Tier.finish`."""

    def __init__(self, levels: Levels, tier: Tier, row: Row, workers: int = 1) -> None:
        """`workers`: of all groups."""
        self.levels = levels
        """The levels of the group; `levels.tensor` gives the memory that gradients are reduced fastest in."""
        self.tier = tier
        self.row = row
        self.workers = workers
        self.skipped = 0
        """Exchanges of weights that were left out, as a server was away."""
        self._residuals: Residuals | None = None
        """Of a worker whose gradients are compressed."""
        # The tier's own methods: no algorithm stands between a step and its tier.
        self.reduce_, self.finish_ = tier.sum_, tier.finish

    @property
    def name(self) -> str:
        """Short name, as in the KVStore type."""
        return self.row.name

    @property
    def averages_weights(self) -> bool:
        """Whether groups train weights of their own, which are averaged."""
        return self.row.sends == "weights" and (self.has_centre or self.row.tier == "gossip")

    @property
    def sums_in_group(self) -> bool:
        """Whether `reduce_` begins with a sum of the gradients as they are over the group."""
        return self._residuals is None and (self.row.sends == "weights" or not self.tier.has_servers)

    @property
    def is_synchronous(self) -> bool:
        """Whether every round has a contribution of each group."""
        return isinstance(self.row.clock, BulkSynchronous)

    @property
    def keeps_gradients(self) -> bool:
        """Whether `reduce_` can leave the gradients of one vector as they are, and bring new weights elsewhere."""
        return False

    def updating(self, rule: AnyRule) -> Algorithm | None:
        """This algorithm with the update at the servers, by `rule`, in tables of its own. None: workers update."""
        return None

    def initialise(self, table: str, layout: Layout, values: Tensor) -> None:
        """Make `values` the same on all ranks of all groups: those of the first group's leader.

        A group that comes after all others have theirs keeps its leader's values, until it joins the weights. Raises
        LayoutError, with the first keys that differ, unless all ranks and groups give the same layout.
        """
        self.tier.register(f"{table}.initial", layout, values, Sum())
        self.tier.drop(f"{table}.initial")

    def join_gradients(self, table: str, layout: Layout) -> None:
        """Register a table before its first `reduce_`. Raises LayoutError as `initialise`."""
        check_same_layout(self.levels.group, table, layout)

    def join_rows(self, table: str, layout: Layout) -> None:
        """As `join_gradients`, of a table in which rows of several keys follow each other: values travel exactly."""
        check_same_layout(self.levels.group, table, layout)

    def join_weights(self, table: str, layout: Layout, weights: Tensor, receives: bool = False) -> bool:
        """Register a table before its first `average_` or `read_centre`. Raises LayoutError as `initialise`.

        `receives`: where the algorithm `keeps_gradients`, new weights go to `weights`. Returns, alike on all ranks of
        the group, whether its centre was there already; then `weights` are the centre now.
        """
        return self.register(table, layout, weights, receives) is Joining.LATE

    def averages(self, step: int) -> bool:
        """Whether `average_` is to be called in this step (0, 1, ...), before the local update."""
        return False

    def average_(self, table: str, weights: Tensor, step: int) -> int:
        """Average the weights with others, in place, if the trigger says so. Only in steps that `averages`.

        Returns the payload bytes that this group has sent to others, alike on all of its ranks: 0 if it sent nothing.
        """
        return 0

    @property
    def decides_ahead(self) -> bool:
        """Whether `average_` may be called in any step, and `next_tau` after it says when a later one is due."""
        return False

    def next_tau(self, tables: Iterable[str]) -> int:
        """Where it `decides_ahead`: how many steps a later averaging of these tables comes after the one before it.

        A collective of the group, after `average_` of all of them in a step.
        """
        raise NotImplementedError

    @property
    def distance(self) -> float:
        """|w - centre| / |w| at the last averaging that this rank knows of; nan if there was none.

        Of the parts that were exchanged: their root mean square, by length.
        """
        return self.tier.distance

    def change(self, table: str) -> float:
        """How far the weights were from those after the last exchange, relative to these, when this rank last looked.

        nan where it does not look: on other ranks than the leader, or where the step alone decides.
        """
        return math.nan

    def follow(self, groups: int, workers: int, hands_in: bool) -> None:
        """From now on the job has so many groups, and sums stand for so many workers. `hands_in`: the group leaves."""

    def note_rate(self, step: int, rate: float) -> None:
        """The learning rate of a step, before `average_` of it: for an alpha that is tied to it."""

    def read_centre(self, table: str, out: Tensor) -> None:
        """Read the centre of a table. Only where `has_centre`."""
        self.tier.pull(table, out)

    def drop(self, tables: Iterable[str]) -> None:
        """Give up tables, with nothing of them under way. The servers free one when all groups have dropped it."""
        for table in tables:
            self.tier.drop(table)
            if self._residuals is not None:
                self._residuals.drop(table)

    def barrier(self) -> None:
        """Return when all workers of all groups have called it."""
        self.tier.barrier()

    def close(self) -> None:
        """Drop all tables. The job's connection and levels stay open for its other algorithms."""
        self.tier.close()

    def register(self, table: str, layout: Layout, values: Tensor | None, keeps_values: bool = False) -> Joining:
        """Join a table of the row, as `Tier.register`."""
        codec = spec_for(self.row.codec, layout.dtype)
        joining = self.tier.register(table, layout, values, self.row.rule, self.row.clock, codec, keeps_values)
        if self._residuals is not None and isinstance(codec, Quantised):
            self._residuals.add(table, layout.length, layout.dtype)
        return joining

    def compress(self, quantised: Quantised) -> None:
        """Compress gradients of float32 and float64 in the tables that are registered from now on.

        Each worker contributes what is left of its gradients when they are quantised, and keeps the rest for the next
        time; `quantised.workers` is the number of workers in the largest group. All ranks of all groups give the same:
        else registering a table raises LayoutError or ServerError. Raises ConfigError if the algorithm sends weights.
        """
        if self.row.sends != "gradients":
            raise ConfigError(
                f"the algorithm {self.name} sends weights, which cannot be compressed: leave the compression out, or "
                "use the algorithm sync"
            )
        self.row = replace(self.row, codec=quantised)
        self._residuals = Residuals(quantised)
        if not self.levels.one_node:
            codec_of(quantised).prepare()
        self.reduce_ = self._reduce_quantised_

    def _reduce_quantised_(self, table: str, gradients: Tensor, start: int, stop: int, rules: Rules = ()) -> None:
        residuals = self._residuals
        if residuals is not None and table in residuals:
            residuals.quantise_(table, [vector[start:stop] for vector in gradients.vectors], start)
            if gradients.rows is not None:
                gradients.rows.codec = codec_of(residuals.spec)
        self.tier.sum_(table, gradients, start, stop, rules)


def reduce_all_(algorithm: Algorithm, table: str, gradients: Tensor, bucket: int) -> None:
    """Reduce all gradients in buckets of `bucket` elements, the last first, as a backward pass brings them."""
    starts = range(0, gradients.length, bucket)[::-1]
    for number, start in enumerate(starts):
        algorithm.reduce_(table, gradients, start, min(start + bucket, gradients.length))
        if number >= UNDER_WAY:
            algorithm.finish_()
    for _ in starts[-UNDER_WAY:]:
        algorithm.finish_()
