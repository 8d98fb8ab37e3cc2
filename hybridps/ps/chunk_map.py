"""Which chunks a flat buffer has, and which server owns each of them."""

from __future__ import annotations

import heapq
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hybridps.errors import LayoutError, ServerError
from hybridps.memory import Layout
from hybridps.ps.rules import AnyRule, Rule

MOST_CHUNKS = 1 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """Elements `start` to `stop` of the flat buffer."""

    index: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        """Number of elements."""
        return self.stop - self.start


def chunks_of(length: int, itemsize: int, chunk_bytes: int) -> tuple[Chunk, ...]:
    """Cut `length` elements of `itemsize` bytes into pieces of `chunk_bytes`; the last one may be shorter.

    Raises LayoutError if `chunk_bytes` is no positive multiple of `itemsize`, if `length` is negative, or
    if there would be more than `MOST_CHUNKS` chunks.
    """
    if length < 0 or itemsize < 1:
        raise LayoutError(
            f"a buffer of {length} elements of {itemsize} bytes cannot be cut: give 0 or more of 1 or more"
        )
    if chunk_bytes < 1 or chunk_bytes % itemsize:
        raise LayoutError(
            f"chunk_bytes={chunk_bytes} must be a positive multiple of the {itemsize} bytes of an element"
        )
    step = chunk_bytes // itemsize
    if -(-length // step) > MOST_CHUNKS:
        raise LayoutError(
            f"{length} elements make more than {MOST_CHUNKS} chunks of {chunk_bytes} bytes: use a larger chunk_bytes"
        )
    return tuple(Chunk(index, start, min(start + step, length)) for index, start in enumerate(range(0, length, step)))


def assign(chunks: Sequence[Chunk], servers: int) -> tuple[int, ...]:
    """The server of each chunk: longest processing time first, ties by index, hence the same everywhere.

    Raises LayoutError if there is no server.
    """
    if servers < 1:
        raise LayoutError(f"chunks cannot be assigned to {servers} servers: give 1 or more")
    loads = [(0, server) for server in range(servers)]
    owner = [0] * len(chunks)
    for position in sorted(range(len(chunks)), key=lambda position: (-chunks[position].length, position)):
        load, server = loads[0]
        owner[position] = server
        heapq.heapreplace(loads, (load + chunks[position].length, server))
    return tuple(owner)


class ChunkMap:
    """A layout cut into chunks that are assigned to servers. `servers[i]` owns `chunks[i]`."""

    def __init__(self, layout: Layout, chunk_bytes: int, servers: int) -> None:
        self.layout = layout
        self.chunks = chunks_of(layout.length, layout.itemsize, chunk_bytes)
        self.servers = assign(self.chunks, servers)
        self._step = chunk_bytes // layout.itemsize

    def owned_by(self, server: int) -> tuple[Chunk, ...]:
        return tuple(chunk for chunk, owner in zip(self.chunks, self.servers, strict=True) if owner == server)

    def of_servers(self, chunks: Sequence[Chunk]) -> dict[int, list[Chunk]]:
        """Those chunks, in order, by the server that owns them."""
        owned: dict[int, list[Chunk]] = {}
        for chunk in chunks:
            owned.setdefault(self.servers[chunk.index], []).append(chunk)
        return owned

    def between(self, start: int, stop: int) -> tuple[Chunk, ...]:
        """The chunks that make up elements `start:stop`.

        Raises LayoutError unless both are boundaries of chunks, in order, inside of the buffer.
        """
        length = self.layout.length
        if not 0 <= start <= stop <= length or any(edge % self._step and edge != length for edge in (start, stop)):
            raise LayoutError(
                f"elements {start}:{stop} are no chunks of the buffer of {length}: "
                f"use multiples of {self._step}, or the end of the buffer"
            )
        return self.chunks[-(-start // self._step) : -(-stop // self._step)]

    def check_array(self, array: np.ndarray) -> None:
        """Raise LayoutError unless `array` is a flat buffer of the layout."""
        expected = (self.layout.length,)
        if array.shape != expected or array.dtype != self.layout.dtype or not array.flags.c_contiguous:
            raise LayoutError(
                f"the array has shape {array.shape} and dtype {array.dtype}"
                f"{'' if array.flags.c_contiguous else ' and is not contiguous'}: "
                f"the layout needs a contiguous {expected} of {self.layout.dtype}"
            )


def check_new(tables: Container[str], table: str, group: int, rule: Rule) -> AnyRule:
    """The rule of a table that `group` registers. Raises ServerError for a table it has, or a rule servers lack."""
    if table in tables:
        raise ServerError(f"table {table!r} is registered already by group {group}: register it once")
    if not isinstance(rule, AnyRule):
        raise ServerError(f"the rule {rule!r} is unknown to servers: use one of hybridps.ps.rules")
    return rule


def registered_map(tables: Mapping[str, ChunkMap], table: str, group: int, arrays: Sequence[np.ndarray]) -> ChunkMap:
    """The chunks of a table that `group` has registered, whose layout `arrays` must have (else LayoutError).

    Raises ServerError, with the names of the tables there are, for another table.
    """
    chunk_map = tables.get(table)
    if chunk_map is None:
        known = ", ".join(tables) or "none"
        raise ServerError(f"table {table!r} is not registered by group {group}: it has {known}")
    for array in arrays:
        chunk_map.check_array(array)
    return chunk_map
