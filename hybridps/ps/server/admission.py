"""Admission: whose message is served next, and what a tenant may use. What a message costs is known before it is paid.

Tenants share a server by the bytes they cause, however many connections they have: start-time fair queueing (Goyal,
Vin, Cheng, 1996), charged after service. Pure: the time is passed in. Used by the loop alone.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hybridps.errors import ServerError
from hybridps.ps import wire
from hybridps.ps.keys import AllowList

CONTROL_WEIGHT = 16
"""To read a byte of a control message takes as long as to add up so many of values."""

FRAME_BYTES = 512
"""What a frame takes beside its payload, about."""

MESSAGE_BYTES = 4096
"""What a message takes and costs beside its payload, about."""

_MOST_ACCOUNTS = 4096


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

    def lacking(self, nbytes: int) -> Budget | None:
        """The one of the chain, this one first, that has no room for so much more."""
        for budget in self.chain:
            if budget.limit_bytes is not None and budget.used_bytes + nbytes > budget.limit_bytes:
                return budget
        return None

    def check(self, nbytes: int, what: str) -> None:
        """Raise ServerError if there is no room for so much more."""
        lacking = self.lacking(nbytes)
        if lacking is not None and lacking.limit_bytes is not None:
            whose = f"tenant {lacking._name!r} may use" if lacking._name else "this server may use"
            raise ServerError(
                f"{what} needs about {nbytes} bytes here, and {max(lacking.limit_bytes - lacking.used_bytes, 0)} "
                f"of the {lacking.limit_bytes} that {whose} are free: use more servers, or ask for more memory"
            )

    def take(self, nbytes: int) -> None:
        """So much more is used; less if it is negative."""
        for budget in self.chain:
            budget._used += nbytes

    def lend(self, array: np.ndarray, record_bytes: int = 0) -> None:
        """The memory of an array, and so much beside it, is used until the last reference to the array is gone."""
        nbytes = array.nbytes + record_bytes
        self.take(nbytes)
        for budget in self.chain:
            weakref.finalize(array, budget._returned.append, nbytes).atexit = False


@dataclass(eq=False)
class Account:
    """One tenant at a server: its messages that wait, what it may use, and what it has used."""

    name: str
    budget: Budget
    bytes_per_second: int | None = None
    waiting: deque[tuple[Any, int]] = field(default_factory=deque)
    start_bytes: int = 0
    """Where its next message begins, on the line on which all tenants move on alike."""
    rests_until_seconds: float = -math.inf
    rested_seconds: float = 0.0
    """What its rate has cost it."""
    messages: int = 0
    received_bytes: int = 0
    served_bytes: int = 0
    sent_bytes: int = 0
    refused: int = 0
    not_finite: int = 0


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


class Accounts:
    """Of all tenants of an allow-list. Without one each job is a tenant, with no bound of its own."""

    def __init__(self, allowed: AllowList | None, whole: Budget) -> None:
        self._allowed = allowed
        self._whole = whole
        self._accounts: dict[str, Account] = {}
        for tenant in allowed.tenants.values() if allowed is not None else ():
            budget = Budget(tenant.quotas.memory_bytes, whole, tenant.name)
            self._accounts[tenant.name] = Account(tenant.name, budget, tenant.quotas.bytes_per_second)

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def of_job(self, job: str) -> Account:
        """The account of a job that was admitted by an earlier process, by what it is called here."""
        if self._allowed is None:
            return self._accounts.setdefault(job, Account(job, Budget(None, self._whole)))
        tenant = job.partition("/")[0]
        return self._accounts.get(tenant) or Account(tenant, Budget(0, self._whole, tenant))

    def name_of(self, message: wire.Hello | wire.AskToJoin | wire.EndOfGroup, key: str) -> str:
        """What the job of a message is called here; empty if it has no name. As in `admit`."""
        name = message.job or ""
        if self._allowed is None:
            return name
        tenant = self._tenant(message, key)
        return name and f"{tenant}/{name}"

    def admit(self, hello: wire.Hello, key: str) -> tuple[Account, str]:
        """The account of a client whose connection has that public key, and what its job is called here.

        Jobs of different tenants never meet. Raises ServerError for another tenant.
        """
        if self._allowed is None:
            if len(self._accounts) >= _MOST_ACCOUNTS:
                idle = (name for name, account in self._accounts.items() if not account.budget.used_bytes)
                self._accounts.pop(next(idle, ""), None)
            return self._accounts.setdefault(hello.job, Account(hello.job, Budget(None, self._whole))), hello.job
        tenant = self._tenant(hello, key)
        return self._accounts[tenant], f"{tenant}/{hello.job}"

    def _tenant(self, message: wire.Hello | wire.AskToJoin | wire.EndOfGroup, key: str) -> str:
        """Who sends a message, by the key of the connection. Raises ServerError if it says otherwise."""
        tenant = self._allowed.tenants.get(key) if self._allowed is not None else None
        if tenant is None or message.tenant != tenant.name or not tenant.knows(message.token):
            whose = f"the key of tenant {tenant.name!r}" if tenant else "no key"
            raise ServerError(
                f"the token is not that of the key: this connection has {whose}, and says it is {message.tenant!r}; "
                "use the folder that `hybridps keys` made, as it is"
            )
        return tenant.name
