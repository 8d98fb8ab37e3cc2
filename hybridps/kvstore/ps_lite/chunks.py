"""The chunks of a table at MXNet's servers. Pure.

Every key begins a chunk, so that groups can exchange key by key what others exchange in larger spans: MXNet's servers
match what groups send by chunk, not by element.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from hybridps.errors import LayoutError
from hybridps.memory import Layout
from hybridps.ps.chunk_map import ChunkMap


class Chunk(NamedTuple):
    """Elements `start` to `stop` of the flat buffer, the chunk of this number."""

    number: int
    start: int
    stop: int


class KeyChunks:
    """A layout cut at its keys, and at multiples of `chunk_bytes`.

    A key's padding belongs to its last chunk. Raises LayoutError as `ChunkMap`.
    """

    def __init__(self, layout: Layout, chunk_bytes: int) -> None:
        whole = ChunkMap(layout, chunk_bytes, servers=1)
        self.layout = layout
        self.check_array = whole.check_array
        keys = {slot.start for slot in layout.slots if slot.size}
        self._starts = sorted(keys | set(range(0, layout.length, whole.step)))
        stops = [*self._starts[1:], layout.length]
        self.chunks = tuple(Chunk(*each) for each in zip(range(len(stops)), self._starts, stops, strict=False))
        self._stops = {slot.stop: self._after(slot.stop) for slot in layout.slots}
        """Where the padding after a key ends."""

    def between(self, start: int, stop: int) -> tuple[Chunk, ...]:
        """The chunks of elements `start:stop`, which may leave out the padding of the last key.

        Raises LayoutError unless both are bounds of keys or multiples of the chunk, in order, within the buffer.
        """
        end = self._stops.get(stop, stop)
        first, last = bisect_left(self._starts, start), bisect_left(self._starts, end)
        whole = self._at(first) == start and self._at(last) == end
        if not 0 <= start <= stop <= self.layout.length or (start != stop and not whole):
            raise LayoutError(
                f"elements {start}:{stop} are not whole keys of the buffer of {self.layout.length}: MXNet's servers "
                "exchange whole keys"
            )
        return self.chunks[first:last] if start != stop else ()

    def _at(self, index: int) -> int:
        """Where a chunk begins; the end of the buffer after the last one."""
        return self._starts[index] if index < len(self._starts) else self.layout.length

    def _after(self, element: int) -> int:
        """The first start of a chunk that is not before `element`."""
        return self._at(bisect_left(self._starts, element))
