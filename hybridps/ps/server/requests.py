"""What a request of a group means for the tables of a server. Without transport."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hybridps.codecs import CODECS, Codec
from hybridps.errors import HybridPSError, ProtocolError
from hybridps.ps import wire
from hybridps.ps.chunk_map import Span
from hybridps.ps.model import Answer, Contribution, Origin, Outcome, Task, rules_of_span
from hybridps.ps.server.tables.jobs import Jobs
from hybridps.ps.server.tables.rounds import ANSWER_BYTES, CONTRIBUTION_BYTES
from hybridps.ps.server.tables.table import Table
from hybridps.shared_memory import attach_offered

Payloads = Sequence[memoryview]

MOST_REGIONS = 1024
"""Of one client."""

RULE_BYTES = 1 << 12
"""What is moved in the time that a rule more of a message takes, about."""

MOST_SLICES = 1 << 16
"""Of one message in shared memory: chunks times rows and answers."""


class Regions:
    """The shared memory of one client, by the numbers that it gave."""

    def __init__(self) -> None:
        self._attached: dict[int, tuple[wire.Attach, np.ndarray]] = {}

    def change(self, message: wire.Attach | wire.Detach) -> None:
        """The client offers a region, or has released it; the same message may come again.

        Raises LayoutError if it cannot be had, ProtocolError for a number that is taken or too many.
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
        """The flat buffer of a table that begins there. Raises ProtocolError if it is not wholly in a region."""
        known, layout = self._attached.get(begins.region), table.spec.layout
        stop = begins.offset + layout.nbytes
        if known is None or begins.offset % layout.itemsize or stop > len(known[1]):
            raise ProtocolError(f"{begins} is no place for the {layout.nbytes} bytes of table {table.name!r}")
        return known[1][begins.offset : stop].view(layout.dtype)


def carry_out(
    jobs: Jobs, origin: Origin, message: wire.OfTable, payloads: Payloads, regions: Regions
) -> tuple[int | None, Iterable[Outcome]]:
    """A request of a group that is there: bytes of chunks that it has read or written, about, and what follows.

    A message without elements has None. Raises what the request is refused with; then, or while outcomes are taken:
    what came before counts.
    """
    if isinstance(message, wire.Register):
        return None, jobs.register(origin, message.table, message.spec, message.initialise)
    if not isinstance(message, wire.OfSpan):
        return None, jobs.drop(origin, message.table)
    table = jobs.table(origin, message.table)
    spans = _spans(table, message)
    nbytes = sum(span.length for span in spans) * table.spec.layout.itemsize
    cost = nbytes + len(spans) * CONTRIBUTION_BYTES
    if isinstance(message, wire.Exchange):
        cost += nbytes * max(0, len(message.values) - 1, len(message.answers) - 1)
        cost += len(message.rules) * RULE_BYTES
        return cost, _exchange(table, origin, spans, message, payloads, regions)
    if isinstance(message, wire.Pull):
        # The one small message with a large answer, which waits until it is read.
        jobs.check_room(origin, nbytes + len(spans) * ANSWER_BYTES, f"the answer to a pull of table {table.name!r}")
        table.registrations.check_usable(origin)
        table.check_array(message.array)
        return cost, (table.chunk(span.chunk).pull(origin, message.array) for span in spans)
    if isinstance(message, wire.Put):
        table.registrations.check_usable(origin)
        table.check_array(message.array)
        values = _values(table, spans, payloads, CODECS["exact"])
        return cost, (
            table.chunk(span.chunk).put(origin, message.array, row) for span, row in zip(spans, values, strict=True)
        )
    initial = _values(table, spans, payloads, CODECS["exact"]) if payloads else [None] * len(spans)
    return cost, (outcome for at in zip(spans, initial, strict=True) for outcome in table.initialise(origin, *at))


def _spans(table: Table, message: wire.OfSpan) -> list[Span]:
    """What a message concerns here. Its cost is looked at first."""
    server, start, stop = table.spec.server, message.start, message.stop
    table.chunk_map.check_span(start, stop)
    count = len(table.chunk_map.owned_between(server, start, stop))
    if not 0 < count <= wire.MOST_CHUNKS:
        raise ProtocolError(
            f"elements {start}:{stop} of table {table.name!r} are in {count} chunks on server {server} of "
            f"{table.spec.servers}: a message concerns 1 to {wire.MOST_CHUNKS}"
        )
    spans = [*table.chunk_map.spans(server, start, stop)]
    if not isinstance(message, wire.Exchange) or table.only_whole_chunks:
        for span in spans:
            if span != table.chunk_map.whole(span.chunk):
                raise ProtocolError(f"elements {span.start}:{span.stop} of table {table.name!r} are no whole chunk")
    return spans


def _exchange(
    table: Table, origin: Origin, spans: Sequence[Span], message: wire.Exchange, payloads: Payloads, regions: Regions
) -> Iterable[Outcome]:
    """Contributions in memory of the group, or from over the network: a worker decodes those if that changes them."""
    codec = CODECS[table.spec.codec]
    if message.rules:
        table.check_rules(message.rules, message.start, message.stop)

    def contribute(brought: Iterable[tuple[list[np.ndarray], list[np.ndarray] | None]]) -> Iterator[Outcome]:
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
        if not codec.exact:
            raise ProtocolError(f"table {table.name!r} has the codec {table.spec.codec}: its values must be sent")
        values, answers = (
            [regions.buffer(begins, table) for begins in each] for each in (message.values, message.answers)
        )
        parts = (slice(span.start, span.stop) for span in spans)
        return contribute(([row[part] for row in values], [row[part] for row in answers]) for part in parts)
    sent = _values(table, spans, payloads, codec)
    if codec.exact:
        return contribute(([array], None) for array in sent)

    def decode() -> list[np.ndarray]:
        decoded = [np.empty(span.length, table.spec.layout.dtype) for span in spans]
        for array, payload in zip(decoded, payloads, strict=True):
            codec.decode(payload, array)
        return decoded

    def then(result: Any) -> Iterator[Outcome]:
        try:
            if isinstance(result, HybridPSError):
                raise result
            yield from contribute(([array], None) for array in result)
        except HybridPSError as error:
            yield Answer(origin, None, error=error)

    return [Task(table.owner_of(spans[0].chunk), decode, then)]


def _values(table: Table, spans: Sequence[Span], payloads: Payloads, codec: Codec) -> list[np.ndarray]:
    """The payloads as arrays of the table's dtype, or of bytes if encoded. Raises ProtocolError for another size."""
    dtype = table.spec.layout.dtype
    came, expected = [p.nbytes for p in payloads], [codec.nbytes(span.length, dtype) for span in spans]
    if came != expected:
        raise ProtocolError(
            f"{len(spans)} chunks from {spans[0].chunk} on of table {table.name!r} came without their values: "
            f"with {len(came)} payloads of {sum(came)} bytes, not {len(expected)} of {sum(expected)}"
        )
    arrays = [np.frombuffer(payload, dtype if codec.exact else np.uint8) for payload in payloads]
    return [array if array.flags.aligned else array.copy() for array in arrays]
