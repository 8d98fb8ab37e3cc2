"""The tier of one group that updates by itself: the ranks of a node turn gradients into new weights, as servers would.

Each rank adds up its part of the elements over all ranks, updates it by the rule, and writes the new weights to all
ranks, in one pass over memory that they share.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from hybridps.codecs import CodecSpec
from hybridps.errors import GroupError
from hybridps.memory import Layout
from hybridps.ps.clocks import Clock
from hybridps.ps.model import Joining, Rules, rules_of_span
from hybridps.ps.rules import Rule, apply_, warm_up
from hybridps.ps.rules.kernel import BLOCK
from hybridps.tensor_collectives import Levels, Tensor, allreduce_, broadcast_
from hybridps.tensor_collectives.kernels import find_not_finite
from hybridps.tensor_collectives.node.node import part_of
from hybridps.tensor_collectives.tensor import Rows
from hybridps.tiers.none import NoTier
from hybridps.tiers.tier import check_same_layout


@dataclass(frozen=True, eq=False)
class _Table:
    """A registered table.

    `out`: where new weights are written; None: they replace the gradients. `arrays`: the weights and the states of the
    rule, flat. `is_shared`: whether all ranks share the memory of `arrays`, except for weights that lie in `out`.
    """

    rule: Rule
    out: Tensor | None
    arrays: list[np.ndarray]
    is_shared: bool


class UpdatingTier(NoTier):
    """One rank's part in updating the weights of its group. `Tier` documents the methods.

    The group must be on one node, and rules must be computed by `update_`. All ranks must give the same rules;
    otherwise GroupError is raised on all of them. If the ranks cannot share memory for a table, each rank updates all
    of its elements. Every rank can read states.
    """

    def __init__(self, levels: Levels) -> None:
        super().__init__(levels.group)
        self._levels = levels
        self._tables: dict[str, _Table] = {}

    def register(
        self,
        table: str,
        layout: Layout,
        tensor: Tensor | None,
        rule: Rule,
        clock: Clock | None = None,
        codec: CodecSpec = "exact",
        keeps_values: bool = False,
    ) -> Joining:
        check_same_layout(self._group, table, layout, codec)
        assert tensor is not None
        self._agree(table, rule, zlib.crc32(f"{type(rule).__name__} {rule.states}".encode()))
        warm_up(rule, layout.dtype, "exact")
        broadcast_(tensor, self._group)
        in_out = keeps_values and tensor.rows_in(self._group) is not None
        count = rule.states + (not in_out)
        shared = self._levels.shared(layout.length, layout.dtype, count)
        arrays = list(np.zeros((count, layout.length), layout.dtype) if shared is None else shared)
        if in_out:
            arrays.insert(0, tensor.vectors[0] if shared is not None else tensor.vectors[0].copy())
        elif shared is None or self._group.rank == 0:
            arrays[0][:] = tensor.vectors[0]
        self._group.barrier()
        self._tables[table] = _Table(rule, tensor if keeps_values else None, arrays, shared is not None)
        return Joining.NEW

    def sum_(self, table: str, tensor: Tensor, start: int, stop: int, rules: Rules = ()) -> None:
        known = self._tables[table]
        if self._group.size > 1:
            self._agree(table, rules[0][1] if rules else known.rule, _digest(rules))
        out = known.out or tensor
        rows, answers = tensor.rows_in(self._group), out.rows_in(self._group)
        if rows is not None and answers is not None and known.is_shared:
            self._update_together(table, rows, answers, start, stop, rules)
            return
        if known.is_shared:
            # From here on each rank has its own copy. No rank continues before all have made theirs.
            own = [array.copy() for array in known.arrays]
            known = self._tables[table] = replace(known, arrays=own, is_shared=False)
        if known.out is not None:
            np.copyto(out.vectors[0][start:stop], tensor.vectors[0][start:stop])
        if rows is not None and rows.looks:
            out.looks_for_not_finite(stop - start)
        allreduce_(out, self._group, "sum", start, stop)
        _update_(known, out.vectors[:1], out.vectors, start, stop, rules)

    def pull(self, table: str, tensor: Tensor) -> None:
        np.copyto(tensor.vectors[0], self._tables[table].arrays[0])

    def pull_states(self, table: str) -> list[np.ndarray]:
        return [array.copy() for array in self._tables[table].arrays]

    def put_states(self, table: str, states: Mapping[int, np.ndarray]) -> None:
        known = self._tables[table]
        if known.is_shared and self._group.rank:
            return  # only the first rank's states count
        for number, state in states.items():
            np.copyto(known.arrays[number], state)
        if 0 in states and known.out is not None:
            rows = known.out.rows_in(self._group) if known.is_shared else None
            for row in known.out.vectors if rows is None else rows.array:
                row[: len(states[0])] = states[0]

    def drop(self, table: str) -> None:
        self._tables.pop(table, None)

    def _agree(self, table: str, rule: Rule, digest: int) -> None:
        """Wait for all ranks, and check that they apply the same rule. Raises GroupError on all if they do not."""
        least, most = self._levels.vote(digest)
        if least != most:
            raise GroupError(
                f"the workers of this group update with different numbers, this one with {rule}: give all the same "
                "learning rate, weight decay, batch size and other settings of the optimizer in each step, and let all "
                "do the same number of steps"
            )

    def _update_together(self, table: str, rows: Rows, answers: Rows, start: int, stop: int, rules: Rules) -> None:
        """Add up the rows of the node and update them, each rank its own part."""
        known, levels, node = self._tables[table], rows.levels, rows.levels.node
        levels.count((stop - start) * rows.nbytes_of_element)
        first, last = part_of(node.rank, node.size, start, stop, rows.itemsize)
        try:
            node.note_not_finite(*_update_(known, rows.array, answers.array, first, last, rules, bool(rows.looks)))
            node.meet()
        except BaseException:
            levels.give_up()
            raise


def _digest(rules: Rules) -> int:
    """Return a number that is the same in all processes for equal rules, and almost certainly differs for others."""
    return hash(tuple((end, *msgspec.structs.astuple(rule)) for end, rule in rules))


def _update_(
    known: _Table,
    sources: Sequence[np.ndarray] | np.ndarray,
    targets: Sequence[np.ndarray] | np.ndarray,
    start: int,
    stop: int,
    rules: Rules,
    looks: bool = False,
) -> tuple[int, int]:
    """Update elements `start:stop` of the table by the sum of the sources, and write the new weights to all targets.

    If `looks`, the sources are the rows of one array; returns a source that had NaN or Inf and its first such element.
    Otherwise, or if there is none, returns -1 and 0.
    """
    found = -1, 0
    for end, rule in rules_of_span(rules, start, stop) or ((stop, known.rule),):
        while start < end:
            parts = [source[start:end] for source in sources]
            centre, *states = (array[start:end] for array in known.arrays)
            into = [target[start:end] for target in targets]
            options: dict[str, Any] = {"step": 1, "contributions": 1, "check_finite": looks}
            start += apply_(rule, parts, into, centre, states, **options)
            if start < end:
                found, looks = find_not_finite(sources, start, min(start + BLOCK, end)), False
    return found
