"""Requests under way at servers, as the client keeps them until they are answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Sequence, Set
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from hybridps.codecs import Codec
from hybridps.errors import HybridPSError, ProtocolError, ServerError
from hybridps.ps import wire
from hybridps.ps.chunk_map import Span
from hybridps.ps.client.pace import Pace
from hybridps.ps.client.streaming_copy import copy_

Result = TypeVar("Result")


class Sent(NamedTuple):
    """A message as it was sent, in case it must be sent again. `asks_for`: what of the operation it asks for."""

    server: int
    message: wire.Requested
    payloads: Sequence[np.ndarray]
    asks_for: Collection[int]


class Operation:
    """One request, sent to some servers, which are `awaited` until they answer. Implements `Pending`.

    `finish` is called once, by `wait`; it returns when the operation is done, and raises DeadlineError if it is late.
    """

    def __init__(
        self, what: str, request: int, awaited: Iterable[int], pace: Pace, finish: Callable[[Operation], None]
    ) -> None:
        self.what = what
        self.request = request
        self.awaited = set(awaited)
        """What is not answered: numbers of servers; in a `Transfer`, of chunks."""
        self.pace = pace
        self.began = time.monotonic()
        self.sent: list[Sent] = []
        self.answers: dict[int, wire.Answer] = {}
        """The answer of each server."""
        self.error: HybridPSError | None = None
        """The reason for which a server refused the request."""
        self._finish = finish
        self._waited = False

    @property
    def done(self) -> bool:
        """Whether all servers have answered, or one has refused."""
        return not self.awaited or self.error is not None

    @property
    def unanswered(self) -> list[Sent]:
        """The messages that must be sent again if a connection was lost meanwhile."""
        return [sent for sent in self.sent if not self.done and not self.awaited.isdisjoint(sent.asks_for)]

    def wait(self) -> None:
        """Return when it is done. Raises DeadlineError, or the error with which a server refused it."""
        if self._waited:
            raise ServerError(f"the {self.what} was waited for already: wait once for each operation")
        self._waited = True
        self._finish(self)
        if self.error is not None:
            raise self.error

    def take(self, server: int, answer: wire.Answer, payloads: Sequence[memoryview]) -> None:
        """A server answered, or answered again."""
        self.awaited.discard(server)
        self.answers[server] = answer


class Transfer(Operation):
    """A request for a span, answered chunk by chunk into the same elements of `answer`, if it is given.

    `span`: its first element, its end, and the elements of a chunk. `in_place`: the servers that write to `answer`
    by themselves.
    """

    def __init__(
        self,
        what: str,
        request: int,
        chunks: Iterable[int],
        pace: Pace,
        finish: Callable[[Operation], None],
        *,
        span: tuple[int, int, int],
        answer: np.ndarray | None,
        codec: Codec,
        in_place: Set[int],
    ) -> None:
        super().__init__(what, request, chunks, pace, finish)
        self._chunks = frozenset(self.awaited)
        self._span = span
        self._answer = answer
        self._codec = codec
        self._in_place = in_place

    def take(self, server: int, answer: wire.Answer, payloads: Sequence[memoryview]) -> None:
        """As `Operation.take`. Raises ProtocolError for chunks that were not asked for, or payloads that do not fit."""
        chunks = answer.chunks if isinstance(answer, wire.Done) else ()
        target = None if server in self._in_place else self._answer
        if len(payloads) != (0 if target is None else len(chunks)):
            raise ProtocolError(f"an answer to the {self.what} has {len(payloads)} payloads for {len(chunks)} chunks")
        for place, chunk in enumerate(chunks):
            if chunk not in self._chunks:
                raise ProtocolError(f"an answer to the {self.what} came for chunk {chunk}, which is not awaited")
            if chunk not in self.awaited:
                continue  # it came again
            if target is not None:
                self._receive(part_of(chunk, *self._span), target, payloads[place])
            self.awaited.remove(chunk)

    def _receive(self, span: Span, target: np.ndarray, payload: memoryview) -> None:
        expected = self._codec.nbytes(span.length, target.dtype)
        if payload.nbytes != expected:
            raise ProtocolError(
                f"the answer to the {self.what} for chunk {span.chunk} has {payload.nbytes} bytes, not {expected}"
            )
        part = target[span.start : span.stop]
        if self._codec.exact:
            copy_(part, np.frombuffer(payload, target.dtype), target.nbytes)
        else:
            self._codec.decode(payload, part)


def part_of(chunk: int, start: int, stop: int, step: int) -> Span:
    """The part of elements `start:stop` that is in a chunk, where chunks have `step` elements."""
    return Span(chunk, max(start, chunk * step), min(stop, (chunk + 1) * step))


class OperationSequence(Generic[Result]):
    """Operations that follow each other, as one: each begins when the one before is done.

    `steps` yields each operation, is resumed when that is done, and calls its `wait`.
    """

    def __init__(self, steps: Generator[Operation, None, Result]) -> None:
        self._steps = steps
        self._error: HybridPSError | None = None
        self._result: Result | None = None
        self.current: Operation | None = None
        """The operation under way; None at the end."""
        self._advance()

    @property
    def done(self) -> bool:
        """Whether all operations are done, or one has failed. Begins the next ones, if it is their turn."""
        while self.current is not None and self.current.done:
            self._advance()
        return self.current is None

    def wait(self) -> Result:
        """Return the result of the steps. Raises what one of them raised."""
        while self.current is not None:
            self._advance()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def _advance(self) -> None:
        try:
            self.current = next(self._steps)
        except StopIteration as end:
            self.current, self._result = None, end.value
        except HybridPSError as error:
            self.current, self._error = None, error
