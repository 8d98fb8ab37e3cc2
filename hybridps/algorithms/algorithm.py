"""The base class of all algorithms: it says what is communicated and when, not how."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import ClassVar

import numpy as np
from msgspec.structs import replace

from hybridps.algorithms.row import Row
from hybridps.codecs import Quantised, Residuals, codec_of, spec_for
from hybridps.errors import ConfigError
from hybridps.memory import Layout
from hybridps.packing import pack_arrays, unpack_arrays
from hybridps.ps.model import Joining, Meeting, Rules
from hybridps.ps.rules import AnyRule, Sum
from hybridps.tensor_collectives import Levels, Tensor, broadcast_
from hybridps.tiers import Exchange, Run, Tier, check_same_layout, hand_over

UNDER_WAY = 8
"""The number of buckets usually begun before the oldest one is finished. With 4, the servers were idle at times."""


class Algorithm:
    """One rank's part in an algorithm, over one group and one tier.

    A *table* is a flat buffer with a layout: the gradients and the weights of the keys of one dtype. All ranks of a
    group call the same operations in the same order. `drop` and `close` do not wait for other ranks.
    """

    has_centre = True
    """Whether the servers hold the centre, a model of their own."""

    updates: ClassVar[bool] = False
    """Whether the servers update the weights. `reduce_` and `finish_` then return new weights instead of gradients."""

    reduce_: Callable[..., Exchange | None]
    """`reduce_(table, gradients, start, stop, rules=())`: begin to replace elements `start:stop` of the gradients by
    their sum over all workers, or by new weights if `updates`. The span may have any length. `rules` (`Rules`) applies
    to these elements instead of the table's rule. An element takes part in one reduction at a time. `finish_` is given
    what this returns."""

    finish_: Callable[[Exchange | None], Mapping[int, int] | None]
    """Finish what a `reduce_` has begun; its elements may then be used. As `Tier.finish`."""

    def __init__(self, levels: Levels, tier: Tier, row: Row, workers: int = 1) -> None:
        """`workers`: the number of workers in all groups together."""
        self.levels = levels
        """The levels of the group. `levels.tensor` allocates memory in which gradients are reduced fastest."""
        self.tier = tier
        self.row = row
        self.workers = workers
        self.skipped = 0
        """The number of times that weights were not exchanged because a server was away."""
        self._residuals: Residuals | None = None
        """What this worker has not sent yet of its gradients; None unless gradients are compressed."""
        # These are the tier's own methods, so that a step calls its tier directly.
        self.reduce_, self.finish_ = tier.sum_, tier.finish

    @property
    def name(self) -> str:
        """The short name of the algorithm, as in the KVStore type."""
        return self.row.name

    @cached_property
    def averages_weights(self) -> bool:
        """Whether each group trains its own weights and averages them with others."""
        return self.row.sends == "weights" and (self.has_centre or self.row.tier == "gossip")

    @property
    def sums_in_group(self) -> bool:
        """Whether `reduce_` begins by summing the unchanged gradients over the group."""
        return self._residuals is None and (self.row.sends == "weights" or not self.tier.has_servers)

    @property
    def is_synchronous(self) -> bool:
        """Whether every round has a contribution from each group."""
        return self.row.is_synchronous

    @property
    def trains_in_step(self) -> bool:
        """Whether all groups do each step together, so that one that was restarted needs the state of another one."""
        return self.row.trains_in_step

    @property
    def keeps_gradients(self) -> bool:
        """Whether `reduce_` can leave gradients of one vector unchanged and write the new weights elsewhere."""
        return False

    def updating(self, rule: AnyRule) -> Algorithm | None:
        """Return this algorithm with the update done at the servers by `rule`, for tables of its own.

        Returns None if the workers must update.
        """
        return None

    def initialise(self, table: str, layout: Layout, values: Tensor) -> bool:
        """Give all ranks of all groups the same `values`: those of the first group's leader.

        A group that starts after all others have their values, or rejoins them, keeps those of its own leader until it
        joins the weights. Returns whether this is such a group, with the same result on all of its ranks. Raises
        LayoutError, with the first keys that differ, unless all ranks and groups give the same layout.
        """
        if self.tier.rejoining.restarted:
            check_same_layout(self.levels.group, table, layout)
            broadcast_(values, self.levels.group)
            return True
        joining = self.tier.register(f"{table}.initial", layout, values, Sum())
        self.tier.drop(f"{table}.initial")
        return joining is Joining.DROPPED

    def join_gradients(self, table: str, layout: Layout) -> None:
        """Register a table of gradients. Call this before the first `reduce_`. Raises LayoutError like `initialise`."""
        check_same_layout(self.levels.group, table, layout)

    def join_rows(self, table: str, layout: Layout) -> None:
        """Register a table in which rows of several keys follow each other. Its values are sent exactly.

        Otherwise the same as `join_gradients`.
        """
        check_same_layout(self.levels.group, table, layout)

    def join_weights(self, table: str, layout: Layout, weights: Tensor, receives: bool = False) -> bool:
        """Register a table of weights. Call this before the first `average_` or `read_centre`.

        `receives`: new weights are written to `weights`; only if `keeps_gradients`. Returns whether the centre existed
        already, with the same result on all ranks of the group; `weights` then hold the centre. Raises LayoutError like
        `initialise`.
        """
        return self.register(table, layout, weights, receives).takes_centre

    def averages(self, step: int) -> bool:
        """Return whether the caller must call `average_` in this step (0, 1, ...), before the local update."""
        return False

    def average_(self, table: str, weights: Tensor, step: int) -> int:
        """Average the weights with others in place, if the trigger says so. Call this only if `averages(step)`.

        Returns the payload bytes that this group has sent, with the same result on all of its ranks; 0 if it sent
        nothing.
        """
        return 0

    @property
    def decides_ahead(self) -> bool:
        """Whether `average_` may be called in any step, after which `next_tau` says when a later call is due."""
        return False

    def next_tau(self, tables: Iterable[str]) -> int:
        """Return the number of steps between two later averagings of these tables, as the last one has decided.

        Only if `decides_ahead`. This is a collective of the group; call it after `average_` of all these tables in a
        step.
        """
        raise NotImplementedError

    @property
    def distance(self) -> float:
        """|w - centre| / |w| at the last averaging that this rank saw; nan if there was none.

        If several parts were exchanged, this is the root mean square over them, weighted by length.
        """
        return self.tier.distance

    def change(self, table: str) -> float:
        """Return |w - reference| / |reference| when this rank last compared them.

        The reference is the weights after the last exchange. Returns nan where this rank does not compare them: on
        followers, or where the step alone decides.
        """
        return math.nan

    def follow(self, groups: int, workers: int, hands_in: bool) -> None:
        """Use these numbers of groups and workers of the job from now on. `hands_in`: this group is about to leave."""

    def note_rate(self, step: int, rate: float) -> None:
        """Note the learning rate of a step, for an alpha that follows it. Call this before `average_` in that step."""

    def read_centre(self, table: str, out: Tensor) -> None:
        """Read the centre of a table into `out`. Only for algorithms with `has_centre`."""
        self.tier.pull(table, out)

    def drop(self, tables: Iterable[str]) -> None:
        """Give up tables that have no operation under way. The servers free a table when all groups have dropped it."""
        for table in tables:
            self.tier.drop(table)
            if self._residuals is not None:
                self._residuals.drop(table)

    def barrier(self) -> None:
        """Return when all workers of all groups have called it."""
        self.tier.barrier()

    def hand_over_(self, arrays: Mapping[str, np.ndarray]) -> bool:
        """Let groups that were restarted take part again, if the groups train in step. Call this before each epoch.

        All ranks of all groups call it, with no operation under way, and before they join tables of gradients. A group
        that was restarted alone waits here for the others, and all of its ranks get the `arrays` of a group that
        has trained: weights, states of the optimizer, the number of the epoch. They are changed in place; all groups
        give the same names, shapes and dtypes. Returns whether this group was such a group. Raises LayoutError if the
        arrays differ, and the errors of `Rejoining.meet`.
        """
        if not self.meets_others:
            return False
        return self.meet(lambda: pack_arrays(arrays), lambda given: unpack_arrays(given, arrays)).joins

    @property
    def meets_others(self) -> bool:
        """Whether the groups meet before each epoch, so that those that were restarted get what others have."""
        return self.trains_in_step and self.tier.rejoining.possible

    def meet(self, pack: Callable[[], bytes], unpack: Callable[[bytes], None], run: Run | None = None) -> Meeting:
        """Do what `hand_over_` does, if `meets_others`, with what `pack` returns in the group that gives.

        In a group that joins, `unpack` is called with it. `run`, if given, does what communicates.
        """
        return hand_over(self.tier, pack, unpack, run)

    def close(self) -> None:
        """Drop all tables. The job's connection and levels stay open for its other algorithms."""
        self.tier.close()

    def register(self, table: str, layout: Layout, values: Tensor | None, keeps_values: bool = False) -> Joining:
        """Join a table with the rule, clock and codec of the row. Arguments and result are those of `Tier.register`."""
        codec = spec_for(self.row.codec, layout.dtype)
        joining = self.tier.register(table, layout, values, self.row.rule, self.row.clock, codec, keeps_values)
        if self._residuals is not None and isinstance(codec, Quantised):
            self._residuals.add(table, layout.length, layout.dtype)
        return joining

    def compress(self, quantised: Quantised) -> None:
        """Compress float32 and float64 gradients in the tables that are registered from now on.

        Each worker contributes its quantised gradients, and adds the remainder to its next gradients.
        `quantised.workers` is the number of workers in the largest group. All ranks of all groups must give the same
        `quantised`; otherwise registering a table raises LayoutError or ServerError. Raises ConfigError if the
        algorithm sends weights.
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

    def _reduce_quantised_(
        self, table: str, gradients: Tensor, start: int, stop: int, rules: Rules = ()
    ) -> Exchange | None:
        residuals = self._residuals
        if residuals is not None and table in residuals:
            residuals.quantise_(table, [vector[start:stop] for vector in gradients.vectors], start)
            if gradients.rows is not None:
                gradients.rows.codec = codec_of(residuals.spec)
        return self.tier.sum_(table, gradients, start, stop, rules)


def reduce_all_(algorithm: Algorithm, table: str, gradients: Tensor, bucket: int) -> None:
    """Reduce all gradients in buckets of `bucket` elements, from last to first, as a backward pass produces them."""
    starts = range(0, gradients.length, bucket)[::-1]
    under_way: deque[Exchange | None] = deque()
    for start in starts:
        under_way.append(algorithm.reduce_(table, gradients, start, min(start + bucket, gradients.length)))
        if len(under_way) > UNDER_WAY:
            algorithm.finish_(under_way.popleft())
    for exchange in under_way:
        algorithm.finish_(exchange)
