"""What a request of a group means for the tables of a server. Without transport."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hybridps.codecs import CODECS, Codec
from hybridps.errors import HybridPSError, ProtocolError
from hybridps.ps import wire
from hybridps.ps.chunk_map import Span
from hybridps.ps.model import Answer, Contribution, Origin, Outcome, Task
from hybridps.ps.server.tables.jobs import Jobs
from hybridps.ps.server.tables.rounds import ANSWER_BYTES, CONTRIBUTION_BYTES
from hybridps.ps.server.tables.table import Table
from hybridps.ps.shared_memory import MOST_REGIONS, attach

EXACT = CODECS["exact"]

MOST_SLICES = 1 << 16
"""Of one message in shared memory: chunks times rows and answers."""

_CONTROL_WEIGHT = 16
"""To read a byte of a control message takes as long as to add up so many of values."""


class Regions:
    """The shared memory of one client, by the numbers that it gave."""

    def __init__(self) -> None:
        self._memory: dict[int, np.ndarray] = {}
        self._attached: dict[int, wire.Attach] = {}

    def attach(self, message: wire.Attach) -> None:
        """Raises LayoutError if it cannot be had, ProtocolError for a number that is taken or too many.

        The same message may come again.
        """
        if self._attached.get(message.region) == message:
            return
        if message.region in self._memory or len(self._memory) >= MOST_REGIONS:
            raise ProtocolError(f"region {message.region} is taken, or there are {MOST_REGIONS} already")
        self._memory[message.region] = attach(message.pid, message.descriptor, message.secret, message.nbytes)
        self._attached[message.region] = message

    def detach(self, region: int) -> None:
        """The client has released a region. Nothing happens if it is not there."""
        self._memory.pop(region, None)
        self._attached.pop(region, None)

    def buffer(self, spot: wire.Spot, table: Table) -> np.ndarray:
        """The flat buffer of a table at that spot. Raises ProtocolError if it is not wholly in a region."""
        memory, layout = self._memory.get(spot.region), table.spec.layout
        if memory is None or spot.offset % layout.itemsize or spot.offset + layout.nbytes > len(memory):
            raise ProtocolError(f"{spot} is no place for the {layout.nbytes} bytes of table {table.name!r}")
        return memory[spot.offset : spot.offset + layout.nbytes].view(layout.dtype)


def carry_out(
    jobs: Jobs, origin: Origin, message: wire.Request, payloads: Sequence[memoryview], regions: Regions
) -> Iterator[Outcome]:
    """Outcomes of a request of a group that is there. Raises what it is refused with: what came before counts."""
    if isinstance(message, wire.Register):
        yield from jobs.register(origin, message.table, message.spec, message.initialise)
    elif isinstance(message, wire.Drop):
        yield from jobs.drop(origin, message.table)
    elif isinstance(message, wire.OfSpan):
        yield from _of_span(jobs, origin, message, payloads, regions)
    else:
        raise ProtocolError(f"{type(message).__name__} is no request of a group")


def cost_bytes(jobs: Jobs, origin: Origin, message: wire.Request, control_bytes: int) -> int:
    """What a request causes: bytes of chunks that are read or written for it, or of a control message, about."""
    if not isinstance(message, wire.OfSpan):
        return _CONTROL_WEIGHT * control_bytes
    table = jobs.table(origin, message.table)
    rows = max(len(message.values), len(message.answers)) if isinstance(message, wire.ExchangeInPlace) else 1
    chunks = table.count_chunks(message.start, message.stop)
    elements = min(message.stop - message.start, chunks * table.spec.chunk_bytes // table.spec.layout.itemsize)
    return rows * elements * table.spec.layout.itemsize + chunks * CONTRIBUTION_BYTES


def _of_span(
    jobs: Jobs, origin: Origin, message: wire.OfSpan, payloads: Sequence[memoryview], regions: Regions
) -> Iterator[Outcome]:
    table = jobs.table(origin, message.table)
    spans = _spans(table, message)
    if isinstance(message, wire.ExchangeInPlace):
        yield from _in_place(table, origin, spans, message, regions)
    elif isinstance(message, wire.Pull):
        # The one small message with a large answer, which waits until it is read.
        nbytes = sum(span.length * table.spec.layout.itemsize + ANSWER_BYTES for span in spans)
        jobs.check_room(origin, nbytes, f"the answer to a pull of table {table.name!r}")
        for span in spans:
            yield from table.pull(origin, span)
    elif isinstance(message, wire.Initial) and not payloads:
        for span in spans:
            yield from table.initialise(origin, span, None)
    elif isinstance(message, wire.Initial):
        for span, array in zip(spans, _values(table, spans, payloads), strict=True):
            yield from table.initialise(origin, span, array)
    else:
        yield from _exchange(table, origin, spans, payloads, getattr(message, "groups", 1))


def _exchange(
    table: Table, origin: Origin, spans: Sequence[Span], payloads: Sequence[memoryview], groups: int
) -> Iterator[Outcome]:
    """Contributions that came over the network; a worker decodes them first if that changes them."""
    codec = CODECS[table.spec.codec]
    values = _values(table, spans, payloads, codec)
    if codec.exact:
        for span, array in zip(spans, values, strict=True):
            yield from table.contribute(Contribution(origin, span, [array], groups=groups))
        return

    def decode() -> list[np.ndarray]:
        decoded = [np.empty(span.length, table.spec.layout.dtype) for span in spans]
        for array, payload in zip(decoded, payloads, strict=True):
            codec.decode(payload, array)
        return decoded

    def then(result: Any) -> Iterator[Outcome]:
        for number, span in enumerate(spans):
            if isinstance(result, HybridPSError):
                yield Answer(origin, span.chunk, error=result)
            else:
                yield from table.contribute(Contribution(origin, span, [result[number]], groups=groups))

    yield Task(table.owner_of(spans[0].chunk), decode, then)


def _spans(table: Table, message: wire.OfSpan) -> list[Span]:
    """What a message concerns here. Its cost is looked at first."""
    count = table.count_chunks(message.start, message.stop)
    if not 0 < count <= wire.MOST_CHUNKS:
        raise ProtocolError(
            f"elements {message.start}:{message.stop} of table {table.name!r} are in {count} chunks on server "
            f"{table.spec.server} of {table.spec.servers}: a message concerns 1 to {wire.MOST_CHUNKS}"
        )
    spans = table.spans(message.start, message.stop)
    exchange = isinstance(message, (wire.Exchange, wire.ExchangeInPlace))
    if not exchange or table.only_whole_chunks:
        for span in spans:
            if span != table.whole(span.chunk):
                raise ProtocolError(f"elements {span.start}:{span.stop} of table {table.name!r} are no whole chunk")
    return spans


def _values(
    table: Table, spans: Sequence[Span], payloads: Sequence[memoryview], codec: Codec = EXACT
) -> list[np.ndarray]:
    """The payloads as arrays of the table's dtype, or of bytes if encoded. Raises ProtocolError for another size."""
    if len(payloads) != len(spans):
        raise ProtocolError(
            f"{len(spans)} chunks from {spans[0].chunk} on of table {table.name!r} came without their values: "
            f"with {len(payloads)} payloads"
        )
    dtype = table.spec.layout.dtype
    for span, payload in zip(spans, payloads, strict=True):
        expected = codec.nbytes(span.length, dtype)
        if payload.nbytes != expected:
            raise ProtocolError(
                f"chunk {span.chunk} of table {table.name!r} has {expected} bytes here, {payload.nbytes} came"
            )
    return [_aligned(np.frombuffer(payload, dtype if codec.exact else np.uint8)) for payload in payloads]


def _aligned(values: np.ndarray) -> np.ndarray:
    return values if values.flags.aligned else values.copy()


def _in_place(
    table: Table, origin: Origin, spans: Sequence[Span], message: wire.ExchangeInPlace, regions: Regions
) -> Iterator[Outcome]:
    if len(spans) * (len(message.values) + len(message.answers)) > MOST_SLICES:
        raise ProtocolError(f"a message concerns {MOST_SLICES} chunks of all rows and answers at most: send several")
    if not CODECS[table.spec.codec].exact:
        raise ProtocolError(f"table {table.name!r} has the codec {table.spec.codec}: its values must be sent")
    values = [regions.buffer(spot, table) for spot in message.values]
    answers = [regions.buffer(spot, table) for spot in message.answers]
    for span in spans:
        rows, targets = ([array[span.start : span.stop] for array in arrays] for arrays in (values, answers))
        yield from table.contribute(Contribution(origin, span, rows, targets, message.groups))
