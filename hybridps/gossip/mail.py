"""Mail between the leaders of the groups of a job: the contract of its implementations."""

from __future__ import annotations

from typing import Protocol

import numpy as np

Received = tuple[int, bytes, np.ndarray | None]
"""A letter as it has come: sender, header, and payload (uint8, of any alignment). Nothing but its sender and its length
is checked."""


class Mail(Protocol):
    """Sends letters to other groups, and keeps those that come. Nothing waits.

    Letters with payload from one group to another stay in order, and so do those without. One that was sent may still
    be lost: with its receiver, or with a connection. One thread uses it at a time.
    """

    rank: int
    """Number of this group."""
    size: int
    """Number of groups."""

    def send(self, to: int, header: bytes, payload: np.ndarray | None) -> bool:
        """Send a copy of the payload, contiguous of any dtype. False: nothing was sent, as too much waits there."""

    def receive(self) -> Received | None:
        """The next letter, if one has come."""

    def expect(self, nbytes: int) -> None:
        """From now on a payload may have so many bytes. Larger ones are dropped."""

    def close(self) -> None:
        """Release everything, in bounded time."""
