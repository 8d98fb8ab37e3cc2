"""Memory that a tenant uses at a server: its tables, what it sent and is not used yet, and answers it has not read."""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np

from hybridps.errors import ServerError


class Budget:
    """Bytes used, of `limit_bytes` at most (None: no limit), and within those of a `whole`.

    Used by one thread; only what `lend` lent comes back from any.
    """

    def __init__(self, limit_bytes: int | None = None, whole: Budget | None = None, name: str = "") -> None:
        self.limit_bytes = limit_bytes
        self.chain: tuple[Budget, ...] = (self, *(whole.chain if whole is not None else ()))
        """This one, and those it is within."""
        self._name = name
        self._used = 0
        self._returned: deque[int] = deque()

    @property
    def used_bytes(self) -> int:
        while self._returned:
            self._used -= self._returned.popleft()
        return self._used

    def has(self, nbytes: int) -> bool:
        """Whether there is room for so much more."""
        return all(b.limit_bytes is None or b.used_bytes + nbytes <= b.limit_bytes for b in self.chain)

    def check(self, nbytes: int, what: str) -> None:
        """Raise ServerError if there is no room for so much more."""
        for budget in () if self.has(nbytes) else self.chain:
            if budget.limit_bytes is not None and nbytes > budget.limit_bytes - budget.used_bytes:
                whose = f"tenant {budget._name!r} may use" if budget._name else "this server may use"
                raise ServerError(
                    f"{what} needs about {nbytes} bytes here, and {max(budget.limit_bytes - budget.used_bytes, 0)} "
                    f"of the {budget.limit_bytes} that {whose} are free: use more servers, or ask for more memory"
                )

    def take(self, nbytes: int) -> None:
        """So much more is used; less if it is negative."""
        for budget in self.chain:
            budget._used += nbytes

    def lend(self, array: np.ndarray) -> None:
        """The memory of an array is used until the last reference to it is gone."""
        self.take(array.nbytes)
        for budget in self.chain:
            weakref.finalize(array, budget._returned.append, array.nbytes).atexit = False
