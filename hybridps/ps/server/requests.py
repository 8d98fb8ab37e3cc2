"""What a request of a group means for the tables of a server, independent of the transport."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from hybridps.codecs import CODECS, Codec, Encoded, Values, codec_of
from hybridps.errors import ProtocolError
from hybridps.ps import wire
from hybridps.ps.chunk_map import Span
from hybridps.ps.model import Contribution, Origin, Outcome, rules_of_span
from hybridps.ps.server.chunks.exchange import ANSWER_BYTES, CONTRIBUTION_BYTES, RULE_MOVES
from hybridps.ps.server.tables.jobs import Jobs
from hybridps.ps.server.tables.table import Table
from hybridps.shared_memory import attach_offered

Payloads = Sequence[memoryview]

MOST_REGIONS = 1024
"""The number of regions of one client."""

MOST_SLICES = 1 << 16
"""The limit for one message in shared memory: chunks times rows and answers."""


class Regions:
    """The shared memory of one client, by the numbers that it gave."""

    def __init__(self) -> None:
        self._attached: dict[int, tuple[wire.Attach, np.ndarray]] = {}

    def change(self, message: wire.Attach | wire.Detach) -> None:
        """Attach or detach a region. The same message may arrive again.

        Raises LayoutError if the memory cannot be attached, ProtocolError for a number that is taken or too many
        regions.
        """
        known = self._attached.get(message.region)
        if isinstance(message, wire.Detach):
            self._attached.pop(message.region, None)
        elif known is None and len(self._attached) < MOST_REGIONS:
            memory = attach_offered(message.pid, message.descriptor, message.secret, message.nbytes)
            self._attached[message.region] = message, memory
        elif known is None or known[0] != message:
            raise ProtocolError(f"region {message.region} is taken, or there are {MOST_REGIONS} already")

    def buffer(self, begins: wire.RegionOffset, table: Table) -> np.ndarray:
        """Return the flat buffer of a table that begins there. Raises ProtocolError if it is not wholly in a region."""
        known, layout = self._attached.get(begins.region), table.spec.layout
        stop = begins.offset + layout.nbytes
        if known is None or begins.offset % layout.itemsize or stop > len(known[1]):
            raise ProtocolError(f"{begins} has no room for the {layout.nbytes} bytes of table {table.name!r}")
        return known[1][begins.offset : stop].view(layout.dtype)


def carry_out(
    jobs: Jobs, origin: Origin, message: wire.OfTable, payloads: Payloads, regions: Regions
) -> tuple[int | None, Iterable[Outcome]]:
    """Carry out a request of a member. Returns about how many bytes of chunks it reads or writes, and the outcomes.

    The bytes are None for a message without elements. Raises the error with which the request is refused, at once or
    while the outcomes are taken; in the latter case, earlier outcomes count.
    """
    if isinstance(message, wire.Register):
        return None, jobs.register(origin, message.table, message.spec, message.initialise, message.start)
    if not isinstance(message, wire.OfSpan):
        return None, jobs.drop(origin, message.table)
    table = jobs.table(origin, message.table)
    spans = _spans(table, message)
    nbytes = sum(span.length for span in spans) * table.spec.layout.itemsize
    cost = nbytes + len(spans) * CONTRIBUTION_BYTES
    if isinstance(message, wire.Exchange):
        cost += nbytes * max(0, len(message.values) - 1, len(message.answers) - 1)
        cost += len(message.rules) * RULE_MOVES
        return cost, _exchange(table, origin, spans, message, payloads, regions)
    if isinstance(message, wire.Pull):
        # This is the one small message with a large answer, which waits until the client reads it.
        jobs.check_room(origin, nbytes + len(spans) * ANSWER_BYTES, f"the answer to a pull of table {table.name!r}")
        table.registrations.check_usable(origin)
        table.check_array(message.array)
        return cost, (table.chunk(span.chunk).arrays.pull(origin, message.array) for span in spans)
    if isinstance(message, wire.Put):
        table.registrations.check_usable(origin)
        table.check_array(message.array)
        _check_sizes(table, spans, payloads, CODECS["exact"])
        each = zip(spans, _arrays(table, payloads), strict=True)
        return cost, (table.chunk(span.chunk).arrays.put(origin, message.array, array) for span, array in each)
    initial: Sequence[np.ndarray | None] = [None] * len(spans)
    if payloads:
        _check_sizes(table, spans, payloads, CODECS["exact"])
        initial = _arrays(table, payloads)
    return cost, (outcome for at in zip(spans, initial, strict=True) for outcome in table.initialise(origin, *at))


def _spans(table: Table, message: wire.OfSpan) -> list[Span]:
    """Return the spans that a message concerns at this server. Its cost is checked first."""
    server, start, stop = table.spec.server, message.start, message.stop
    table.chunk_map.check_span(start, stop)
    owned = table.chunk_map.owned_between(server, start, stop)
    if not 0 < len(owned) <= wire.MOST_CHUNKS:
        raise ProtocolError(
            f"elements {start}:{stop} of table {table.name!r} are in {len(owned)} chunks on server {server} of "
            f"{table.spec.servers}: a message concerns 1 to {wire.MOST_CHUNKS}"
        )
    spans = [table.chunk_map.part(chunk, start, stop) for chunk in owned]
    if not isinstance(message, wire.Exchange) or table.only_whole_chunks:
        for span in spans:
            if span != table.chunk_map.whole(span.chunk):
                raise ProtocolError(f"elements {span.start}:{span.stop} of table {table.name!r} are no whole chunk")
    return spans


def _exchange(
    table: Table, origin: Origin, spans: Sequence[Span], message: wire.Exchange, payloads: Payloads, regions: Regions
) -> Iterable[Outcome]:
    """Contribute values that lie in memory of the group or were sent."""
    codec = codec_of(table.spec.codec)
    if message.rules:
        table.check_rules(message.rules, message.start, message.stop)

    def contribute(
        brought: Iterable[tuple[Sequence[Values], Sequence[np.ndarray] | None]],
    ) -> Iterator[Outcome]:
        table.registrations.check_usable(origin)
        for span, (rows, targets) in zip(spans, brought, strict=True):
            rules = rules_of_span(message.rules, span.start, span.stop)
            contribution = Contribution(origin, span, rows, targets, message.groups, rules)
            yield from table.chunk(span.chunk).contribute(contribution)

    if message.values or message.answers:
        if not message.values or not message.answers:
            raise ProtocolError("an exchange in place has values and answers, or neither if values are sent")
        if len(spans) * (len(message.values) + len(message.answers)) > MOST_SLICES:
            raise ProtocolError(
                f"a message concerns {MOST_SLICES} chunks of all rows and answers at most: send several"
            )
        if not codec.shares:
            raise ProtocolError(f"table {table.name!r} has the codec {table.spec.codec}: its values must be sent")
        values, answers = (
            [regions.buffer(begins, table) for begins in each] for each in (message.values, message.answers)
        )
        parts = (slice(span.start, span.stop) for span in spans)
        return contribute(([row[part] for row in values], [row[part] for row in answers]) for part in parts)
    _check_sizes(table, spans, payloads, codec)
    if codec.exact:
        return contribute(([array], None) for array in _arrays(table, payloads))
    dtype = np.dtype(table.spec.layout.dtype)
    sent = zip(payloads, spans, strict=True)
    return contribute(([Encoded(codec, payload, span.length, dtype)], None) for payload, span in sent)


def _check_sizes(table: Table, spans: Sequence[Span], payloads: Payloads, codec: Codec) -> None:
    """Raise ProtocolError unless there is a payload for each span, of the size that the codec requires."""
    dtype = table.spec.layout.dtype
    came, expected = [p.nbytes for p in payloads], [codec.nbytes(span.length, dtype) for span in spans]
    if came != expected:
        raise ProtocolError(
            f"{len(spans)} chunks from {spans[0].chunk} on of table {table.name!r} came without their values: "
            f"with {len(came)} payloads of {sum(came)} bytes, not {len(expected)} of {sum(expected)}"
        )


def _arrays(table: Table, payloads: Payloads) -> list[np.ndarray]:
    """Return the payloads as arrays of the table's dtype."""
    arrays = [np.frombuffer(payload, table.spec.layout.dtype) for payload in payloads]
    return [array if array.flags.aligned else array.copy() for array in arrays]
