"""What a client sends for a table, and the requests under way, which it keeps until they are answered."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from hybridps.codecs import CODECS, Codec, codec_of
from hybridps.compiled.finite import is_finite
from hybridps.compiled.streaming_copy import copy_, prepare
from hybridps.errors import DeadlineError, HybridPSError, ProtocolError, ServerError
from hybridps.ps import wire
from hybridps.ps.chunk_map import Span
from hybridps.ps.model import TableSpec

EXACT = CODECS["exact"]
"""The codec of initial values and of pulled values, which are not rounded."""

_MESSAGE_BYTES = 4 << 20
"""Small chunks are sent together in messages of about this size. A message costs as much as 64 KB of payload. Values
that are read or replaced go in one such message for each server at a time, so that a server holds few of them beside
its tables."""

Result = TypeVar("Result")


class Table:
    """The chunks of a registered table on all servers.

    With a codec that is not exact, it has memory for the encoded values of the whole table.
    """

    def __init__(self, name: str, spec: TableSpec) -> None:
        self.name = name
        self.chunk_map = spec.chunk_map()
        self.codec = codec_of(spec.codec)
        self.separate = spec.rule.separate
        """Whether every exchange changes the centre by itself."""
        self._dtype = spec.layout.dtype
        self._most_chunks = min(wire.MOST_CHUNKS, max(1, _MESSAGE_BYTES // spec.chunk_bytes))
        length = 0 if self.codec.exact else spec.layout.length
        self._bytes_of_one = self.codec.nbytes(1, self._dtype)
        """The bytes of a single encoded value. Several values may share bytes and take less, so every part of the table
        has a place."""
        self._encoded = np.empty(length * self._bytes_of_one, np.uint8)

    def prepare(self) -> None:
        """Compile or load what the first exchange needs."""
        prepare(self.chunk_map.layout.nbytes)
        if self.separate:
            is_finite(np.zeros(1, self._dtype))
        if not self.codec.exact:
            self.codec.prepare()

    def batches(self, server: int, start: int, stop: int, in_place: bool = False) -> Iterator[Sequence[Span]]:
        """Yield what a server owns of elements `start:stop`, in lists for one message each."""
        spans = [*self.chunk_map.spans(server, start, stop)]
        most = wire.MOST_CHUNKS if in_place else self._most_chunks
        for first in range(0, len(spans), most):
            yield spans[first : first + most]

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield elements `start:stop` in parts of whole chunks, with at most one message for each server."""
        step = self._most_chunks * self.chunk_map.servers * self.chunk_map.step
        while start < stop:
            end = min((start // step + 1) * step, stop)
            yield start, end
            start = end

    def check_free(self, start: int, stop: int, under_way: Iterable[Operation]) -> None:
        """Raise ProtocolError while encoded values of these elements may still be sent: their memory is reused."""
        for sent in [sent for other in under_way if other.table is self for sent in other.unanswered]:
            busy = sent.message
            if isinstance(busy, wire.OfSpan) and max(start, busy.start) < min(stop, busy.stop):
                raise ProtocolError(
                    f"elements {start}:{stop} of table {self.name!r} are exchanged while elements "
                    f"{busy.start}:{busy.stop} are under way: wait for those first"
                )

    def payloads(self, values: np.ndarray, spans: Sequence[Span], codec: Codec) -> Sequence[np.ndarray]:
        """Return the values as they are sent, one array for each chunk. Exact values are not copied."""
        if codec.exact:
            return [values[span.start : span.stop] for span in spans]
        payloads = []
        for span in spans:
            begin = span.start * self._bytes_of_one
            payloads.append(self._encoded[begin : begin + codec.nbytes(span.length, self._dtype)])
            codec.encode(values[span.start : span.stop], payloads[-1])
        return payloads


class Sent(NamedTuple):
    """A message as it was sent, in case it must be sent again.

    `asks_for`: chunks, each with where its values go, or None if no values come back. A request that concerns no chunks
    asks for one answer, which has the number of the server.
    """

    server: int
    message: wire.Request
    payloads: Sequence[np.ndarray]
    asks_for: Mapping[int, np.ndarray | None]


class _Session(Protocol):
    """How an operation is waited for: what `Session` says of these methods."""

    def finish(self, operation: Operation, stays: bool = True) -> bool: ...

    def is_done_within(self, operation: Operation, seconds: float) -> bool: ...


class Operation:
    """One request, sent to some servers. Implements `Pending`.

    Values of the `table` come back as encoded by `codec`.
    """

    def __init__(
        self, what: str, request: int, session: _Session, table: Table | None = None, codec: Codec = EXACT
    ) -> None:
        self.what = what
        self.request = request
        self.table = table
        self.began = time.monotonic()
        self.sent: list[Sent] = []
        self.answers: dict[int, wire.Answer] = {}
        """The last answer of each server."""
        self.error: HybridPSError | None = None
        """The first error with which a server refused the request or a chunk of it."""
        self.not_finite: dict[int, int] = {}
        """As in `Pending`."""
        self._codec = codec
        self._session = session
        self._asked: dict[int, np.ndarray | None] = {}
        self._awaited: set[int] = set()
        """The chunks that are not answered yet."""
        self._waited = False

    def late(self, seconds: float) -> DeadlineError:
        """Return the error if it is not done after these seconds."""
        return DeadlineError(
            f"the {self.what} is not done after {seconds:g} s: another group has not contributed yet; check what that "
            "group is doing, or raise HYBRIDPS_DEADLINE_SECONDS"
        )

    @property
    def done(self) -> bool:
        """Whether all servers have answered, or one has refused the whole request."""
        return not self._awaited

    @property
    def unanswered(self) -> list[Sent]:
        """The messages that must be sent again if a connection was lost meanwhile."""
        return [sent for sent in self.sent if not self.done and not self._awaited.isdisjoint(sent.asks_for)]

    def begin_again(self, server: int) -> list[Sent]:
        """Return the messages that must be sent to this server again.

        Everything that they ask for is awaited anew. The server writes all the answers once more, also those received
        before, and their memory is in use until then.
        """
        again = [sent for sent in self.unanswered if sent.server == server]
        for sent in again:
            self._awaited.update(sent.asks_for)
        return again

    def add(self, sent: Sent) -> None:
        """Note a message of this operation that is sent."""
        self.sent.append(sent)
        self._asked.update(sent.asks_for)
        self._awaited.update(sent.asks_for)

    def wait(self) -> None:
        """Wait until the operation is done. Raises DeadlineError, or the error with which a server refused it."""
        if self._waited:
            raise ServerError(f"the {self.what} was waited for already: wait once for each operation")
        self._waited = True
        self._session.finish(self)
        if self.error is not None:
            raise self.error

    def wait_here(self) -> bool:
        """Wait as `wait` does, but return False as soon as a server is away. This can be called again then.

        In that case the values are copied, so that they may change.
        """
        if not self._session.finish(self, stays=False):
            again = [sent._replace(payloads=[each.copy() for each in sent.payloads]) for sent in self.unanswered]
            self.sent = [*(sent for sent in self.sent if sent not in self.unanswered), *again]
            return False
        self._waited = True
        if self.error is not None:
            raise self.error
        return True

    def is_done_within(self, seconds: float) -> bool:
        """As `Pending.is_done_within`."""
        return self.done or self._session.is_done_within(self, seconds)

    def take(self, server: int, answer: wire.Registered | wire.Done | wire.Met, payloads: Sequence[memoryview]) -> None:
        """Take in a server's answer, which may arrive more than once.

        Raises ProtocolError for chunks that were not requested, and for payloads or elements that do not match.
        """
        chunks = (answer.chunks if isinstance(answer, wire.Done) else ()) or (server,)
        not_finite = answer.not_finite if isinstance(answer, wire.Done) else ()
        if len(chunks) > len(self._asked) or len(not_finite) > len(chunks):
            raise ProtocolError(
                f"an answer to the {self.what} names {len(chunks)} chunks and {len(not_finite)} rows that are not "
                f"finite, and {len(self._asked)} chunks were asked for: at most one row is named for each"
            )
        targets = []
        for chunk in chunks:
            if chunk not in self._asked:
                raise ProtocolError(f"an answer to the {self.what} came for chunk {chunk}, which is not awaited")
            if (target := self._asked[chunk]) is not None:
                targets.append((chunk, target))
        if len(payloads) != len(targets):
            raise ProtocolError(f"an answer to the {self.what} has {len(payloads)} payloads for {len(chunks)} chunks")
        for (chunk, target), payload in zip(targets, payloads, strict=True):
            if chunk in self._awaited:  # otherwise it has arrived again
                self._receive(chunk, target, payload)
        for row, element in not_finite:
            self._note_not_finite(row, element)
        self._awaited.difference_update(chunks)
        self.answers[server] = answer

    def refuse(self, error: HybridPSError, chunk: int | None = None) -> None:
        """Note that a server refused a chunk, or the whole request. In the latter case no more answers are awaited."""
        if chunk is None or chunk in self._awaited:
            self.error = self.error or error
            self._awaited -= {chunk} if chunk is not None else {*self._awaited}

    def _note_not_finite(self, row: int, element: int) -> None:
        exchanges = [sent.message for sent in self.sent if isinstance(sent.message, wire.Exchange)]
        if not any(row < max(1, len(each.values)) and each.start <= element < each.stop for each in exchanges):
            raise ProtocolError(
                f"an answer to the {self.what} names element {element} of row {row}, which it does not have"
            )
        self.not_finite[row] = min(element, self.not_finite.get(row, element))

    def _receive(self, chunk: int, target: np.ndarray, payload: memoryview) -> None:
        expected = self._codec.nbytes(target.size, target.dtype)
        if payload.nbytes != expected:
            raise ProtocolError(
                f"the answer to the {self.what} for chunk {chunk} has {payload.nbytes} bytes, not {expected}"
            )
        if self._codec.exact:
            whole = target.nbytes if self.table is None else self.table.chunk_map.layout.nbytes
            copy_(target, np.frombuffer(payload, target.dtype), whole)
        else:
            self._codec.decode(payload, target)


class OperationSequence(Generic[Result]):
    """Several operations in sequence, used like one. `steps` yields each, and continues when it has succeeded."""

    def __init__(self, steps: Generator[Operation, None, Result]) -> None:
        self._steps = steps
        self._current: Operation | None = None
        """The operation under way; None at the end."""
        self._error: HybridPSError | None = None
        self._result: Result | None = None
        self._advance()

    @property
    def done(self) -> bool:
        """Whether all operations are done, or one has failed. This begins the next operation if it is due."""
        while self._current is not None and self._current.done:
            self._advance()
        return self._current is None

    def wait(self) -> Result:
        """Return the result of the steps. Raises the error of a failed operation."""
        while self._current is not None:
            self._advance()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def _advance(self) -> None:
        try:
            if self._current is not None:
                self._current.wait()
            self._current = next(self._steps)
        except StopIteration as end:
            self._current, self._result = None, end.value
        except HybridPSError as error:
            self._current, self._error = None, error


class Pace:
    """How long an operation usually takes: smoothed mean and mean deviation (RFC 6298, Jacobson 1988)."""

    def __init__(self) -> None:
        self._mean = self._deviation = 0.0

    def add(self, seconds: float) -> None:
        """Note the duration of an operation."""
        if not self._mean:
            self._mean, self._deviation = seconds, seconds / 2
            return
        self._deviation += (abs(seconds - self._mean) - self._deviation) / 4
        self._mean += (seconds - self._mean) / 8

    def deadline_seconds(self, least_seconds: float) -> float:
        """Return the larger of `least_seconds` and eight times the usual duration, which is mean + 4 deviation."""
        return max(least_seconds, 8 * (self._mean + 4 * self._deviation))
