"""How a flat buffer is cut into chunks, and which server owns each of them. Pure arithmetic, in constant memory.

All chunks have the same length, except the last one, which may be shorter. Longest-processing-time-first balance (each
chunk, the longest first, goes to the server with the least so far) is therefore a round robin: chunk i belongs to
server i mod servers, and there to thread (i div servers) mod threads. Tables of one chunk would all be assigned to the
first server, so their chunks are counted from another number, `first`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hybridps.errors import LayoutError
from hybridps.memory import ALIGNMENT, Layout

MOST_CHUNKS = 1 << 20
"""The largest number of chunks of a table."""

LARGEST_CHUNK_BYTES = 1 << 28

AT_ONCE_BYTES = 16 << 20
"""The size limit for chunks that are all exchanged at once. In an exchange of two groups, a chunk takes a
server's loop about 12 microseconds, whatever its size."""


class Span(NamedTuple):
    """Elements `start` to `stop` of a flat buffer, all in one chunk."""

    chunk: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        """The number of elements."""
        return self.stop - self.start


def equal_chunk_bytes(nbytes: int, servers: int, usual: int) -> int:
    """Return the size of the chunks of a buffer that is exchanged at once with servers on this host.

    All are equal, and each server has the same number for each core, as few as possible; but none is smaller than
    `usual`.
    """
    share = servers * (os.cpu_count() or 1)
    count = share * -(-nbytes // (share * AT_ONCE_BYTES))
    return max(usual, -(-nbytes // (count * ALIGNMENT)) * ALIGNMENT) if nbytes else usual


class ChunkMap:
    """The chunks of a layout, `chunk_bytes` each, and their owners among `servers`. Chunks count from `first`.

    Raises LayoutError if `chunk_bytes` is not a positive multiple of the size of an element, if there would be more
    than `MOST_CHUNKS` chunks, or if there is no server.
    """

    def __init__(self, layout: Layout, chunk_bytes: int, servers: int, first: int = 0) -> None:
        if chunk_bytes < 1 or chunk_bytes % layout.itemsize:
            raise LayoutError(
                f"chunk_bytes={chunk_bytes} must be a positive multiple of the {layout.itemsize} bytes of an element"
            )
        if servers < 1:
            raise LayoutError(f"chunks cannot be assigned to {servers} servers: give 1 or more")
        self.layout = layout
        self.servers = servers
        self.first = first
        self.lead = first % servers
        """The server that has the first chunk. It is the one that decides which group initialises a table."""
        self.step = chunk_bytes // layout.itemsize
        """The number of elements of a chunk."""
        self.count = -(-layout.length // self.step)
        """The number of chunks."""
        if self.count > MOST_CHUNKS:
            raise LayoutError(
                f"{layout.length} elements make more than {MOST_CHUNKS} chunks of {chunk_bytes} bytes: "
                "use a larger chunk_bytes"
            )

    def whole(self, chunk: int) -> Span:
        """Return all elements of a chunk."""
        return Span(chunk, chunk * self.step, min((chunk + 1) * self.step, self.layout.length))

    def length_of(self, server: int) -> int:
        """Return the number of elements that a server owns."""
        owned = self.owned_between(server, 0, self.layout.length)
        return sum(self.whole(chunk).length for chunk in owned[-1:]) + max(len(owned) - 1, 0) * self.step

    def thread_of(self, chunk: int, threads: int) -> int:
        """Return the number of the worker thread that owns a chunk at its server."""
        return (chunk + self.first) // self.servers % threads

    def owned_between(self, server: int, start: int, stop: int) -> range:
        """Return the chunks of a server that have some of the elements `start:stop`."""
        if start >= stop:
            return range(0)
        first = start // self.step
        return range(first + (server - self.first - first) % self.servers, -(-stop // self.step), self.servers)

    def part(self, chunk: int, start: int, stop: int) -> Span:
        """Return the elements of a chunk that are among `start:stop`."""
        return Span(chunk, max(start, chunk * self.step), min(stop, (chunk + 1) * self.step))

    def spans(self, server: int, start: int, stop: int) -> Iterator[Span]:
        """Yield the elements of `start:stop` that a server owns, chunk by chunk."""
        for chunk in self.owned_between(server, start, stop):
            yield self.part(chunk, start, stop)

    def check_span(self, start: int, stop: int) -> None:
        """Raise LayoutError unless elements `start:stop` are within the buffer."""
        if not 0 <= start <= stop <= self.layout.length:
            raise LayoutError(f"elements {start}:{stop} are not within the {self.layout.length} of the buffer")

    def check_array(self, array: np.ndarray) -> None:
        """Raise LayoutError unless `array` is a flat buffer of the layout."""
        expected = (self.layout.length,)
        if array.shape != expected or array.dtype != self.layout.dtype or not array.flags.c_contiguous:
            raise LayoutError(
                f"the array has shape {array.shape} and dtype {array.dtype}"
                f"{'' if array.flags.c_contiguous else ' and is not contiguous'}: "
                f"the layout needs a contiguous {expected} of {self.layout.dtype}"
            )
