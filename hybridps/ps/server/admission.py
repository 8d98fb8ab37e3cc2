"""Admission: whose message is served next, and what a tenant may use. The cost of a message is known in advance.

Tenants share a server by the bytes they cause, however many connections they have: start-time fair queueing (Goyal,
Vin, Cheng, 1996), charged after service. The functions are pure: the time is an argument. Only the loop uses them.
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
"""Reading one byte of a control message takes as long as adding up this many bytes of values."""

FRAME_BYTES = 512
"""About the memory that a frame takes besides its payload."""

MESSAGE_BYTES = 4096
"""About the memory and the cost of a message besides its payload."""

_MOST_ACCOUNTS = 4096


class Budget:
    """Bytes used, at most `limit_bytes` (None: no limit), and within the budget `whole`.

    One thread uses it. Only memory that was lent is returned from any thread, through a queue.
    """

    def __init__(self, limit_bytes: int | None = None, whole: Budget | None = None, name: str = "") -> None:
        self.limit_bytes = limit_bytes
        self.chain: tuple[Budget, ...] = (self, *(whole.chain if whole is not None else ()))
        """This budget, and those that contain it."""
        self._name = name
        self._used = 0
        self._returned: deque[int] = deque()

    @property
    def used_bytes(self) -> int:
        while self._returned:
            self._used -= self._returned.popleft()
        return self._used

    def lacking(self, nbytes: int) -> Budget | None:
        """Return the first budget of the chain that has no room for `nbytes` more, or None."""
        for budget in self.chain:
            if budget.limit_bytes is not None and budget.used_bytes + nbytes > budget.limit_bytes:
                return budget
        return None

    def check(self, nbytes: int, what: str) -> None:
        """Raise ServerError if there is no room for `nbytes` more."""
        lacking = self.lacking(nbytes)
        if lacking is not None and lacking.limit_bytes is not None:
            whose = f"tenant {lacking._name!r} may use" if lacking._name else "this server may use"
            raise ServerError(
                f"{what} needs about {nbytes} bytes here, and {max(lacking.limit_bytes - lacking.used_bytes, 0)} "
                f"of the {lacking.limit_bytes} that {whose} are free: use more servers, or ask for more memory"
            )

    def take(self, nbytes: int) -> None:
        """Count `nbytes` more as used; fewer if it is negative."""
        for budget in self.chain:
            budget._used += nbytes

    def lend(self, array: np.ndarray, record_bytes: int = 0) -> None:
        """Count the memory of an array, and `record_bytes`, as used until the last reference to the array is gone."""
        nbytes = array.nbytes + record_bytes
        self.take(nbytes)
        for budget in self.chain:
            weakref.finalize(array, budget._returned.append, nbytes).atexit = False


@dataclass(eq=False)
class Account:
    """One tenant at a server: its waiting messages, what it may use, and what it has used."""

    name: str
    budget: Budget
    bytes_per_second: int | None = None
    waiting: deque[tuple[Any, int]] = field(default_factory=deque)
    start_bytes: int = 0
    """Where its next message begins, in bytes of the virtual time in which all tenants advance alike."""
    rests_until_seconds: float = -math.inf
    rested_seconds: float = 0.0
    """The total time for which its rate has made it rest."""
    messages: int = 0
    received_bytes: int = 0
    served_bytes: int = 0
    sent_bytes: int = 0
    refused: int = 0
    not_finite: int = 0


class FairQueue:
    """The messages of several tenants. While n tenants have messages, each is served 1/n of the bytes.

    A message of m bytes waits, besides the messages of its own tenant, for at most m bytes and two messages of each
    other tenant.
    """

    def __init__(self) -> None:
        self._turns: list[Account] = []
        """The accounts that have messages."""
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
        """Return the next message; None if there is none, or if all tenants with messages rest."""
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
        """Charge the bytes that a message caused. A tenant with a rate rests for as long as they take."""
        account.messages += 1
        account.served_bytes += nbytes
        account.start_bytes += nbytes + MESSAGE_BYTES
        self._furthest_bytes = max(self._furthest_bytes, account.start_bytes)
        if account.bytes_per_second is not None:
            rest_seconds = nbytes / account.bytes_per_second
            account.rests_until_seconds = max(account.rests_until_seconds, now) + rest_seconds
            account.rested_seconds += rest_seconds

    def rest_seconds(self, now: float) -> float:
        """Return the seconds until a message can be taken; infinite if there is none."""
        return max(0.0, min((account.rests_until_seconds for account in self._turns), default=math.inf) - now)


class Accounts:
    """The accounts of all tenants of an allow-list. Without one, each job is a tenant without a bound of its own."""

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
        """Return the account of a job that an earlier process had admitted. `job`: its name at this server."""
        if self._allowed is None:
            return self._accounts.setdefault(job, Account(job, Budget(None, self._whole)))
        tenant = job.partition("/")[0]
        return self._accounts.get(tenant) or Account(tenant, Budget(0, self._whole, tenant))

    def name_of(self, message: wire.Hello | wire.AskToJoin | wire.EndOfGroup, key: str) -> str:
        """Return the name at this server of a message's job; empty if it has no name. Raises the errors of `admit`."""
        name = message.job or ""
        if self._allowed is None:
            return name
        tenant = self._tenant(message, key)
        return name and f"{tenant}/{name}"

    def admit(self, hello: wire.Hello, key: str) -> tuple[Account, str]:
        """Return the account of a client whose connection has that public key, and the name of its job at this server.

        Jobs of different tenants never meet. Raises ServerError if the client is not the tenant that it says.
        """
        if self._allowed is None:
            if len(self._accounts) >= _MOST_ACCOUNTS:
                idle = (name for name, account in self._accounts.items() if not account.budget.used_bytes)
                self._accounts.pop(next(idle, ""), None)
            return self._accounts.setdefault(hello.job, Account(hello.job, Budget(None, self._whole))), hello.job
        tenant = self._tenant(hello, key)
        return self._accounts[tenant], f"{tenant}/{hello.job}"

    def _tenant(self, message: wire.Hello | wire.AskToJoin | wire.EndOfGroup, key: str) -> str:
        """Return the tenant with the key of the connection. Raises ServerError if the message says it is another."""
        tenant = self._allowed.tenants.get(key) if self._allowed is not None else None
        if tenant is None or message.tenant != tenant.name or not tenant.knows(message.token):
            whose = f"the key of tenant {tenant.name!r}" if tenant else "no key"
            raise ServerError(
                f"the token is not that of the key: this connection has {whose}, and says it is {message.tenant!r}; "
                "use the folder that `hybridps keys` made, as it is"
            )
        return tenant.name
