"""What a KVStore of MXNet does, as checks that any `KVStoreBase` can be put through, on any number of workers.

`python -m hybridps.kvstore.conformance TYPE [CHECK ...]` prints the differences. Each check is a generator: it makes a
store, calls it, and yields what was observed, what it was, and what it should be. Nothing is judged between two calls,
so that all workers make the same calls whatever they find.
"""

from __future__ import annotations

from collections.abc import Iterable

from hybridps.kvstore.conformance import forms, sums, updates
from hybridps.kvstore.conformance.observing import Check, Create

CHECKS: dict[str, Check] = {
    name.removeprefix("check_"): check
    for room in (sums, forms, updates)
    for name, check in vars(room).items()
    if name.startswith("check_")
}
"""All checks by name. Those of optimizers are the last: a store may keep one beyond its life."""


def differences(create: Create, names: Iterable[str] = ()) -> list[str]:
    """What a store does otherwise than it should: a line for each difference. `names`: of checks; all if empty."""
    found = []
    for name in names or CHECKS:
        try:
            for what, got, want in CHECKS[name](create):
                if got != want:
                    found.append(f"{name}: {what}: {got!r} instead of {want!r}")
        except Exception as error:
            found.append(f"{name}: {type(error).__name__}: {str(error).strip().splitlines()[-1]}")
    return found
