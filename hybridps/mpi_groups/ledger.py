"""How the ranks of an MPI world learn that one of them has ended its part of the job before the others."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import numpy as np
from mpi4py import MPI

from hybridps.mpi_groups.group import rank_ended

_TAG = 1


class Ledger:
    """Records what this rank has begun, and what each rank of the world had begun when it left.

    A conversation is a communicator, under a name that is the same on all of its ranks. All its ranks begin the same
    operations there. A rank that has left will therefore never join an operation that it had not begun. Any thread may
    use a ledger. It owns its communicator.
    """

    def __init__(self, communicator: MPI.Comm) -> None:
        self._communicator = communicator
        self._others = [rank for rank in range(communicator.Get_size()) if rank != communicator.Get_rank()]
        self._begun: dict[str, int] = {}
        self._left: dict[int, dict[str, int]] = {}
        self._sent: list[tuple[Any, np.ndarray]] = []
        self._lock = threading.Lock()

    def join(self, conversation: str) -> None:
        """Note that this rank takes part in a conversation."""
        self._begun[conversation] = 0

    def begin(self, conversation: str) -> None:
        """Note that this rank begins an operation."""
        self._begun[conversation] += 1

    def check(self, conversation: str, what: str) -> None:
        """Raise GroupError if a rank that is needed in the current operation, called `what`, has left."""
        with self._lock:
            self._receive()
            left = [*self._left.items()]
        for rank, begun in left:
            if begun.get(conversation, self._begun[conversation]) < self._begun[conversation]:
                raise rank_ended(rank, self._communicator.Get_rank(), what)

    def leave(self) -> None:
        """Tell the others that this rank begins no further operation."""
        data = np.frombuffer(msgspec.json.encode(self._begun), np.uint8)
        with self._lock:
            self._sent = [(self._communicator.Isend([data, MPI.BYTE], rank, _TAG), data) for rank in self._others]

    def close(self) -> None:
        """Wait until all ranks have left, then free the communicator. `check` must not be called any more."""
        with self._lock:
            while len(self._left) < len(self._others):
                self._receive()
            MPI.Request.Waitall([request for request, _ in self._sent])
        self._communicator.Free()

    def _receive(self) -> None:
        while (message := self._communicator.Improbe(MPI.ANY_SOURCE, _TAG, status := MPI.Status())) is not None:
            data = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            message.Recv([data, MPI.BYTE])
            self._left[status.Get_source()] = msgspec.json.decode(data.tobytes(), type=dict[str, int])
