"""Mail between the leaders of the groups of a job: the contract of its implementations."""

from __future__ import annotations

from typing import Protocol

import numpy as np

Received = tuple[int, bytes, np.ndarray | None]
"""A letter as received: sender, header, and payload (uint8, of any alignment). Only the sender and the length have been
checked."""


class Mail(Protocol):
    """Sends letters to other groups, and keeps those that arrive. No method waits for another group.

    Letters with a payload from one group to another stay in order, and so do those without one. A letter that was sent
    may still be lost, with its receiver or with a connection. One thread uses the mail at a time.
    """

    rank: int
    """The number of this group."""
    size: int
    """The number of groups."""

    def send(self, to: int, header: bytes, payload: np.ndarray | None) -> bool:
        """Send a letter with a copy of the payload (contiguous, of any dtype).

        Returns False, and sends nothing, if too many letters wait for that group.
        """

    def receive(self) -> Received | None:
        """Return the next letter that has arrived, or None."""

    def expect(self, nbytes: int) -> None:
        """Allow payloads of `nbytes` bytes from now on. Larger ones are dropped."""

    def close(self) -> None:
        """Release all resources, in bounded time."""
