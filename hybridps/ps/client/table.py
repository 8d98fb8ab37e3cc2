"""A table as a group's client sees it: what it sends for a span, and which spans are under way."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hybridps.codecs import Codec, codec_of
from hybridps.errors import ProtocolError, ServerError
from hybridps.ps import wire
from hybridps.ps.client.operations import Operation, part_of
from hybridps.ps.model import TableSpec

_MESSAGE_BYTES = 4 << 20
"""Small chunks travel together in messages of about this size: each message costs as much as 64 KB of payload."""


class Batch(NamedTuple):
    """What one message concerns: the part of elements `start:stop` that is in `chunks` of one server."""

    start: int
    stop: int
    chunks: range


class Table:
    """The chunks of a registered table on all servers.

    With a codec that is not exact it keeps memory for the encoded values of the whole table.
    """

    def __init__(self, name: str, spec: TableSpec) -> None:
        self.name = name
        self.chunk_map = spec.chunk_map()
        self.codec = codec_of(spec.codec)
        self._itemsize = spec.layout.itemsize
        self._dtype = spec.layout.dtype
        length = 0 if self.codec.exact else spec.layout.length
        self._encoded = np.empty(self.codec.nbytes(length, self._dtype), np.uint8)
        self._under_way: dict[tuple[int, int], Operation] = {}
        self._spans: list[tuple[int, int]] = []
        """Its keys, in order."""

    def batches(self, server: int, start: int, stop: int, in_place: bool = False) -> Iterator[Batch]:
        """What a server owns of elements `start:stop`, in messages that are not too large."""
        chunks, step = self.chunk_map.owned_between(server, start, stop), self.chunk_map.step
        most = wire.MOST_CHUNKS
        if not in_place:
            most = min(most, max(1, _MESSAGE_BYTES // (step * self._itemsize)))
        for first in range(0, len(chunks), most):
            part = chunks[first : first + most]
            yield Batch(max(start, part[0] * step), min(stop, (part[-1] + 1) * step), part)

    def payloads(self, values: np.ndarray, batch: Batch, codec: Codec) -> Sequence[np.ndarray]:
        """The values of a batch as they are sent, one array for each chunk. Exact values are not copied."""
        parts = [part_of(chunk, batch.start, batch.stop, self.chunk_map.step) for chunk in batch.chunks]
        if codec.exact:
            return [values[part.start : part.stop] for part in parts]
        payloads = []
        for part in parts:
            begin, end = (codec.nbytes(edge, self._dtype) for edge in part[1:])
            payloads.append(self._encoded[begin:end])
            codec.encode(values[part.start : part.stop], payloads[-1])
        return payloads

    def begin(self, start: int, stop: int, operation: Operation) -> None:
        """An exchange of elements `start:stop` begins."""
        if start < stop:
            insort(self._spans, (start, stop))
            self._under_way[start, stop] = operation

    def check_free(self, start: int, stop: int) -> None:
        """Raise ProtocolError if an exchange that has some of elements `start:stop` is not done."""
        place = bisect_left(self._spans, (start, start))
        for span in self._spans[max(0, place - 1) : bisect_left(self._spans, (stop, stop))]:
            if max(start, span[0]) < min(stop, span[1]):
                if not self._under_way[span].done:
                    raise ProtocolError(
                        f"elements {start}:{stop} of table {self.name!r} are exchanged while elements "
                        f"{span[0]}:{span[1]} are under way: wait for those first"
                    )
                self._forget(span)

    def end(self, start: int, stop: int, operation: Operation) -> None:
        """That exchange was waited for."""
        if self._under_way.get((start, stop)) is operation:
            self._forget((start, stop))

    def give_up(self) -> None:
        """The table is dropped: the exchanges under way fail."""
        for operation in self._under_way.values():
            if not operation.done:
                operation.error = ServerError(f"table {self.name!r} was dropped during the {operation.what}")

    def _forget(self, span: tuple[int, int]) -> None:
        del self._under_way[span]
        del self._spans[bisect_left(self._spans, span)]
