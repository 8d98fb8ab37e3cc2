"""A table at MXNet's servers: its chunks, and what the servers do with them."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

import msgspec

from hybridps.errors import LayoutError
from hybridps.kvstore.ps_lite.native import Operation
from hybridps.ps.model import TableSpec
from hybridps.ps.rules import AnyRule


class Assignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the servers do with the chunks of a table: the rule, and the number of values that make a round.

    A chunk is a pair of keys. The first, from `centres` on, has its centre, which is pushed once, with the initial
    values, and pulled. Groups push their values to the second, from `answers` to `end - 1`, whose stored value is the
    rule's answer. The keys of a pair are equal modulo the number of servers, so that MXNet gives both to one server.
    """

    centres: int
    answers: int
    end: int
    rule: AnyRule
    values: int


class Table:
    """A table that is cut at its keys, and at multiples of its chunk size: chunk i has the elements `spans[i]`.

    Every key begins a chunk, so that groups can exchange key by key what others exchange in larger spans: MXNet's
    servers match contributions by chunk, not by element. A key's padding belongs to its last chunk.

    Raises LayoutError as `ChunkMap`.
    """

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        layout, whole = spec.layout, spec.chunk_map()
        keys = {slot.start for slot in layout.slots if slot.size}
        starts = sorted(keys | set(range(0, layout.length, whole.step)))
        self.spans = [slice(start, stop) for start, stop in pairwise([*starts, layout.length])]
        self.exchanges: list[Operation | None] = [None] * len(starts)
        """The last exchange of each chunk."""
        self.centres = self.answers = range(0)
        """The keys of the chunks, as in `Assignment`."""
        self.check_array = whole.check_array
        self._first = {start: number for number, start in enumerate(starts)}
        stops = [*starts, *(slot.stop for slot in layout.slots), layout.length]
        self._last = {stop: bisect_left(starts, stop) for stop in stops}

    def between(self, start: int, stop: int) -> slice:
        """Return the numbers of the chunks of elements `start:stop`, which may leave out the padding of the last key.

        Raises LayoutError unless both are bounds of keys or multiples of the chunk size, in order, within the buffer.
        """
        first, last, length = self._first.get(start), self._last.get(stop, 0), self.spec.layout.length
        if start == stop and 0 <= start <= length:
            return slice(0)
        if first is None or first >= last:
            raise LayoutError(
                f"elements {start}:{stop} are not whole keys of the buffer of {length}: MXNet's servers exchange whole "
                "keys"
            )
        return slice(first, last)
