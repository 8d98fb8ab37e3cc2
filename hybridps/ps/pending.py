"""Operations under way, as a client or a store keeps them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hybridps.errors import HybridPSError, ProtocolError, ServerError
from hybridps.ps.chunk_map import Chunk


class Registration:
    """One server's answers to a registration. `finish` returns when it is done."""

    def __init__(self, what: str, finish: Callable[[], None]) -> None:
        self.what = what
        self.received = False
        self.initialise: bool | None = None
        self.error: HybridPSError | None = None
        self._finish = finish

    @property
    def done(self) -> bool:
        return self.initialise is not None or self.error is not None

    def get(self) -> bool:
        """Wait; returns whether this group is to send the initial values. Raises what the server refused."""
        self._finish()
        if self.error is not None:
            raise self.error
        return bool(self.initialise)


class Transfer:
    """Chunks under way, answered into the same elements of `answer` where that is not None.

    `finish` is called once, by `wait`, and returns when the transfer is done.
    """

    def __init__(
        self, what: str, chunks: Sequence[Chunk], answer: np.ndarray | None, finish: Callable[[Transfer], None]
    ) -> None:
        self.what = what
        self.missing = {chunk.index: chunk for chunk in chunks}
        self.error: HybridPSError | None = None
        self._answer = answer
        self._finish = finish
        self._waited = False

    @property
    def done(self) -> bool:
        return not self.missing or self.error is not None

    def wait(self) -> None:
        """As `Pending.wait`. Raises DeadlineError, or what the server refused."""
        if self._waited:
            raise ServerError(f"the {self.what} was waited for already: wait once for each operation")
        self._waited = True
        self._finish(self)
        if self.error is not None:
            raise self.error

    def take(self, index: int, payload: memoryview | np.ndarray | None) -> None:
        """The answer for a chunk came. Raises ProtocolError if it is not awaited, or has another length."""
        chunk = self.missing.get(index)
        if chunk is None:
            raise ProtocolError(f"an answer to the {self.what} came for chunk {index}, which is not awaited")
        expected = 0 if self._answer is None else chunk.length * self._answer.itemsize
        nbytes = 0 if payload is None else payload.nbytes
        if nbytes != expected:
            raise ProtocolError(f"the answer to the {self.what} for chunk {index} has {nbytes} bytes, not {expected}")
        if payload is not None and self._answer is not None:
            np.copyto(self._answer[chunk.start : chunk.stop], np.frombuffer(payload, self._answer.dtype))
        del self.missing[index]
