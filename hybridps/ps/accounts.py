"""Which tenant a client is of, and each tenant's account."""

from __future__ import annotations

from collections.abc import Iterator

from hybridps.errors import ServerError
from hybridps.ps import wire
from hybridps.ps.budget import Budget
from hybridps.ps.fair import Account
from hybridps.ps.keys import AllowList

_MOST = 4096


class Accounts:
    """Of all tenants of an allow-list. Without one each job is a tenant, with no bound of its own."""

    def __init__(self, allowed: AllowList | None, whole: Budget) -> None:
        self._allowed = allowed
        self._whole = whole
        self._accounts: dict[str, Account] = {}
        if allowed is not None:
            for tenant in allowed.tenants.values():
                budget = Budget(tenant.quotas.memory_bytes, whole, tenant.name)
                self._accounts[tenant.name] = Account(tenant.name, budget, tenant.quotas.bytes_per_second)

    def __iter__(self) -> Iterator[Account]:
        return iter([*self._accounts.values()])

    def name_of(self, hello: wire.Hello) -> str:
        """Of the job, so that jobs of different tenants never meet."""
        return hello.job if self._allowed is None else f"{hello.tenant}/{hello.job}"

    def of(self, hello: wire.Hello, key: str) -> Account:
        """The account of a client whose connection has that public key. Raises ServerError for another tenant."""
        if self._allowed is None:
            self._make_room()
            return self._accounts.setdefault(hello.job, Account(hello.job, Budget(None, self._whole)))
        tenant = self._allowed.tenants.get(key)
        if tenant is None or hello.tenant != tenant.name or not tenant.knows(hello.token):
            whose = f"the key of tenant {tenant.name!r}" if tenant else "no key"
            raise ServerError(
                f"the token is not that of the key: this connection has {whose}, and says it is {hello.tenant!r}; "
                "use the folder that `hybridps keys` made, as it is"
            )
        return self._accounts[tenant.name]

    def _make_room(self) -> None:
        """Forget a job that uses nothing."""
        if len(self._accounts) >= _MOST:
            idle = (name for name, account in self._accounts.items() if not account.budget.used_bytes)
            self._accounts.pop(next(idle, ""), None)
