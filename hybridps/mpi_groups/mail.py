"""Mail over MPI, between the leaders of the groups of one world. The contract is `hybridps.gossip.mail.Mail`.

A message is one buffer: the length of the header, the header, and the aligned payload.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from mpi4py import MPI

from hybridps.mpi_groups.mpi import MPIGroup

HEAD_BYTES = 4096 + 64
"""The offset of the payload."""

MOST_UNSENT = 32
"""The number of letters that may wait for one group. A group that does not read them gets no more."""

MOST_COMING = 8
"""The number of letters of one group that are received from MPI in advance."""

_TAG = 1


Received = tuple[int, bytes, np.ndarray | None]
"""The same type as `hybridps.gossip.mail.Received`."""


class MPIMail:
    """Mail over MPI. `Mail` documents the methods. `leaders`: the group of all leaders; the mail frees it."""

    def __init__(self, leaders: MPIGroup) -> None:
        self.rank = leaders.rank
        self.size = leaders.size
        self._leaders = leaders
        self._most_bytes = 1 << 20
        self._unsent: list[deque[tuple[Any, np.ndarray]]] = [deque() for _ in range(self.size)]
        self._coming: list[deque[tuple[Any, np.ndarray]]] = [deque() for _ in range(self.size)]
        self._buffers: dict[int, list[np.ndarray]] = {}
        """Buffers that can be used again, by size."""
        self._next = 0
        """The group whose letters are examined first. It changes, so that every group gets its turn."""

    def send(self, to: int, header: bytes, payload: np.ndarray | None) -> bool:
        self._take_back_buffers(to)
        if len(self._unsent[to]) >= MOST_UNSENT:
            return False
        nbytes = HEAD_BYTES + (0 if payload is None else payload.nbytes) if payload is not None else 64 + len(header)
        buffer = self._buffer(nbytes)
        buffer[:8].view(np.int64)[0] = len(header)
        buffer[8 : 8 + len(header)] = np.frombuffer(header, np.uint8)
        if payload is not None:
            buffer[HEAD_BYTES:nbytes] = payload.view(np.uint8)
        request = self._leaders.communicator.Isend([buffer[:nbytes], MPI.BYTE], to, _TAG)
        self._unsent[to].append((request, buffer))
        return True

    def receive(self) -> Received | None:
        self._probe()
        for turn in range(self.size):
            source = (self._next + turn) % self.size
            coming = self._coming[source]
            if coming and coming[0][0].Test():
                self._next = source + 1
                received = self._read(source, coming.popleft()[1])
                if received is not None:
                    return received
        return None

    def expect(self, nbytes: int) -> None:
        self._most_bytes = max(self._most_bytes, nbytes)

    def close(self) -> None:
        for requests in (*self._unsent, *self._coming):
            for request, _ in requests:
                if not request.Test():
                    request.Free()
        self._leaders.free()

    def _probe(self) -> None:
        """Begin to receive messages that others have sent, and take back the buffers of messages that were sent."""
        communicator = self._leaders.communicator
        for source in range(self.size):
            self._take_back_buffers(source)
            while source != self.rank and len(self._coming[source]) < MOST_COMING:
                status = MPI.Status()
                message = communicator.Improbe(source, _TAG, status)
                if message is None:
                    break
                buffer = np.empty(status.Get_count(MPI.BYTE), np.uint8)
                self._coming[source].append((message.Irecv([buffer, MPI.BYTE]), buffer))

    def _read(self, source: int, buffer: np.ndarray) -> Received | None:
        """Return the letter in a buffer; None if the buffer is malformed or the payload is larger than expected."""
        length = int(buffer[:8].view(np.int64)[0]) if buffer.size >= 8 else -1
        payload = buffer[HEAD_BYTES:] if buffer.size >= HEAD_BYTES else None
        nbytes = 0 if payload is None else payload.nbytes
        if not 0 < length <= min(buffer.size, HEAD_BYTES) - 8 or nbytes > self._most_bytes:
            return None
        return source, buffer[8 : 8 + length].tobytes(), payload

    def _buffer(self, nbytes: int) -> np.ndarray:
        rounded = -(-nbytes // 4096) * 4096
        used = self._buffers.setdefault(rounded, [])
        return used.pop() if used else np.empty(rounded, np.uint8)

    def _take_back_buffers(self, to: int) -> None:
        unsent = self._unsent[to]
        while unsent and unsent[0][0].Test():
            buffer = unsent.popleft()[1]
            used = self._buffers[buffer.size]
            if len(used) < 2:
                used.append(buffer)
