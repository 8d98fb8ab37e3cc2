"""Operations under way, as a client or a store keeps them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

import numpy as np

from hybridps.errors import HybridPSError, ProtocolError, ServerError
from hybridps.ps import wire
from hybridps.ps.chunk_map import Chunk
from hybridps.ps.pace import Pace
from hybridps.ps.streaming_copy import copy_


class Parcel(NamedTuple):
    """A message as it was sent, in case that it must be sent again."""

    server: int
    message: wire.Register | wire.Attach | wire.OfChunks
    payloads: Sequence[np.ndarray]


class Registration:
    """One server's answers to a registration. `finish` returns when it is done."""

    def __init__(self, what: str, finish: Callable[[], None]) -> None:
        self.what = what
        self.began = time.monotonic()
        self.pace = Pace()
        self.parcels: list[Parcel] = []
        self.initialise: bool | None = None
        self.error: HybridPSError | None = None
        self._finish = finish

    @property
    def done(self) -> bool:
        return self.initialise is not None or self.error is not None

    def awaits(self, message: wire.Register | wire.Attach | wire.OfChunks) -> bool:
        """Whether something that a message asked for has not been answered."""
        return not self.done

    def get(self) -> bool:
        """Wait; returns whether this group is to send the initial values. Raises what the server refused."""
        self._finish()
        if self.error is not None:
            raise self.error
        return bool(self.initialise)


class Attachment:
    """A server's answer to memory that was offered to it: that it works there, or an error."""

    def __init__(self) -> None:
        self.parcels: list[Parcel] = []
        self.done = False
        self.error: HybridPSError | None = None

    def awaits(self, message: wire.Register | wire.Attach | wire.OfChunks) -> bool:
        """As `Registration.awaits`."""
        return not self.done


class Transfer:
    """Chunks under way, answered into the same elements of `answer` where that is not None.

    The answers of chunks `in_place` are written there by the server. `finish` is called once, by `wait`, and returns
    when the transfer is done.
    """

    def __init__(
        self,
        what: str,
        chunks: Sequence[Chunk],
        answer: np.ndarray | None,
        finish: Callable[[Transfer], None],
        in_place: Set[int] = frozenset(),
        pace: Pace | None = None,
    ) -> None:
        self.what = what
        self.pace = pace or Pace()
        self.began = time.monotonic()
        self.parcels: list[Parcel] = []
        self.missing = {chunk.index: chunk for chunk in chunks}
        self.error: HybridPSError | None = None
        self._answered: set[int] = set()
        self._answer = answer
        self._in_place = in_place
        self._finish = finish
        self._waited = False

    @property
    def done(self) -> bool:
        return not self.missing or self.error is not None

    def awaits(self, message: wire.Register | wire.Attach | wire.OfChunks) -> bool:
        """As `Registration.awaits`."""
        chunks = range(message.start, message.stop) if isinstance(message, wire.OfChunks) else ()
        return any(index in self.missing for index in chunks)

    def wait(self) -> None:
        """As `Pending.wait`. Raises DeadlineError, or what the server refused."""
        if self._waited:
            raise ServerError(f"the {self.what} was waited for already: wait once for each operation")
        self._waited = True
        self._finish(self)
        if self.error is not None:
            raise self.error

    def take(self, indices: Sequence[int], payloads: Sequence[memoryview]) -> None:
        """Answers for chunks came, or came again. Raises ProtocolError for what was not asked, or another length."""
        left = iter(payloads)
        for index in indices:
            chunk = self.missing.get(index)
            if index in self._answered:
                next(left, None)
                continue
            if chunk is None:
                raise ProtocolError(f"an answer to the {self.what} came for chunk {index}, which is not awaited")
            if self._answer is not None and index not in self._in_place:
                self._copy(chunk, self._answer, next(left, memoryview(b"")))
            del self.missing[index]
            self._answered.add(index)
        if any(True for _ in left):
            raise ProtocolError(f"an answer to the {self.what} has more payloads than chunks")

    def _copy(self, chunk: Chunk, answer: np.ndarray, payload: memoryview) -> None:
        expected = chunk.length * answer.itemsize
        if payload.nbytes != expected:
            raise ProtocolError(
                f"the answer to the {self.what} for chunk {chunk.index} has {payload.nbytes} bytes, not {expected}"
            )
        copy_(answer[chunk.start : chunk.stop], np.frombuffer(payload, answer.dtype), answer.nbytes)
