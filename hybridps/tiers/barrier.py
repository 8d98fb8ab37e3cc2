"""The barrier of the leaders of all groups: an exchange of a table with one element."""

from __future__ import annotations

import numpy as np

from hybridps.memory import Layout
from hybridps.ps.model import Joining
from hybridps.ps.rules import Sum
from hybridps.ps.store import HasBarrier, ParameterStore

_LAYOUT = Layout.of("float32", {"barrier": (1,)})


class Barrier:
    """One leader's part in it. `table`: the name of the table at the servers, which is registered at the first use."""

    def __init__(self, store: ParameterStore, table: str) -> None:
        self._store = store
        self._table = table
        self._joining: Joining | None = None
        self._missed = False
        """Whether the others had passed a barrier when this group registered the table."""

    def meet(self, comes_late: bool = False) -> None:
        """Wait for the other leaders, if they have not closed this algorithm.

        `comes_late`: this group has come into a job under way, and has not trained yet. It does not wait if the others
        have passed a barrier, because they are in the middle of their training. They wait for it at their next barrier.
        """
        if isinstance(self._store, HasBarrier):
            self._store.barrier()
            return
        values = np.zeros(_LAYOUT.length, _LAYOUT.dtype)
        if self._joining is None:
            self._joining = self._store.register(self._table, _LAYOUT, None, Sum())
            if comes_late and self._joining is Joining.LATE:
                self._store.pull(self._table, values)
                self._missed = bool(values.any())
        if self._joining is Joining.DROPPED or (comes_late and self._missed):
            return
        values[:] = 1
        self._store.exchange(self._table, values, values, 0, _LAYOUT.length).wait()

    def close(self) -> None:
        """Drop the table."""
        if self._joining not in (None, Joining.DROPPED):
            self._store.drop(self._table)
        self._joining = None
