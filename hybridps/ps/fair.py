"""Whose message is served next: tenants share a server by the bytes they cause, however many connections they have.

Start-time fair queueing (Goyal, Vin, Cheng, 1996), charged after service, as what a message causes is known only then.
Pure: the time is passed in.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from hybridps.ps.budget import Budget

MESSAGE_BYTES = 4096
"""What a message takes and costs beside its payload, about."""


class Account:
    """One tenant at a server: its messages that wait, what it may use, and what it has used."""

    def __init__(self, name: str, budget: Budget, bytes_per_second: int | None = None) -> None:
        self.name = name
        self.budget = budget
        self.bytes_per_second = bytes_per_second
        self.waiting: deque[tuple[Any, int]] = deque()
        self.start_bytes = 0
        """Where its next message begins, on the line on which all tenants move on alike."""
        self.rests_until_seconds = -math.inf
        self.rested_seconds = 0.0
        """What its rate has cost it."""
        self.messages = 0
        self.received_bytes = 0
        self.served_bytes = 0
        self.sent_bytes = 0
        self.refused = 0
        self.not_finite = 0


class FairQueue:
    """Messages of several tenants. While n tenants have some, each is served 1/n of the bytes.

    A message of m bytes waits, beside those of its own tenant, for at most m bytes and two messages of each other one.
    """

    def __init__(self) -> None:
        self._turns: list[Account] = []
        """Those with messages."""
        self._now_bytes = 0
        self._furthest_bytes = 0

    def put(self, account: Account, message: Any, nbytes: int) -> None:
        """Let a message wait. Raises ServerError if its tenant has no room for it."""
        nbytes += MESSAGE_BYTES
        account.budget.check(nbytes, "a message that waits")
        account.budget.take(nbytes)
        account.received_bytes += nbytes
        if not self._turns:
            self._now_bytes = self._furthest_bytes
        if not account.waiting:
            self._turns.append(account)
            account.start_bytes = max(account.start_bytes, self._now_bytes)
        account.waiting.append((message, nbytes))

    def take(self, now: float) -> tuple[Account, Any] | None:
        """The next message; None if there is none, or all tenants that have some rest."""
        able = [account for account in self._turns if account.rests_until_seconds <= now]
        if not able:
            return None
        account = min(able, key=lambda account: account.start_bytes)
        self._now_bytes = max(self._now_bytes, account.start_bytes)
        message, nbytes = account.waiting.popleft()
        account.budget.take(-nbytes)
        if not account.waiting:
            self._turns.remove(account)
        return account, message

    def charge(self, account: Account, nbytes: int, now: float) -> None:
        """What a message caused. With a rate, the tenant rests for as long as that takes."""
        account.messages += 1
        account.served_bytes += nbytes
        account.start_bytes += nbytes + MESSAGE_BYTES
        self._furthest_bytes = max(self._furthest_bytes, account.start_bytes)
        if account.bytes_per_second is not None:
            rest_seconds = nbytes / account.bytes_per_second
            account.rests_until_seconds = max(account.rests_until_seconds, now) + rest_seconds
            account.rested_seconds += rest_seconds

    def rest_seconds(self, now: float) -> float:
        """Until a message can be taken; infinite if there is none."""
        return max(0.0, min((account.rests_until_seconds for account in self._turns), default=math.inf) - now)
