"""Checks of what a KVStore of MXNet does, for any `KVStoreBase` and any number of workers.

`python -m hybridps.kvstore.conformance TYPE [CHECK ...]` prints the differences. Each check is a generator: it makes a
store, calls it, and yields what it observed, the value, and the expected value. Nothing is judged between two calls, so
that all workers make the same calls whatever they observe.
"""

from __future__ import annotations

from collections.abc import Iterable

from hybridps.kvstore.conformance import forms, lazy_updates, sparse, sums, updates
from hybridps.kvstore.conformance.observing import Check, Create

CHECKS: dict[str, Check] = {
    name.removeprefix("check_"): check
    for room in (sums, forms, sparse, updates, lazy_updates)
    for name, check in vars(room).items()
    if name.startswith("check_")
}
"""All checks by name. Those of optimizers are the last, as a store may keep its optimizer beyond its life."""

ROWS = "a server's result for rows depends on its earlier keys, or the server ends and the workers wait forever"
NOT_DIST_SYNC = {
    "keys_may_be_words": "a process has one store, and the other checks use numbers as keys",
    "wrong_keys_raise_errors_of_mxnet": "the servers check keys, and the worker waits forever",
    "pull_converts_to_the_dtype_of_out": "with two workers, a pull into another dtype than the key's ends the process",
    "pushpull_leaves_the_value_beside_out": "with two workers, the sum also overwrites the value",
    "dtypes": "a server with integer keys ends when an optimizer is set, and the workers wait forever",
    "shapes_must_fit": "the servers check shapes, and the worker waits forever",
    "sparse_gradients_of_dense_keys": "a server ends, and the workers wait forever",
    "sparse_gradients_are_summed": ROWS,
    "the_sum_has_the_rows_that_any_gradient_has": ROWS,
    "gradients_without_rows": ROWS,
    "rows_of_other_shapes_and_dtypes": ROWS,
    "dense_and_row_sparse_gradients_take_turns": ROWS,
    "pull_leaves_row_sparse_arrays_alone_unless_told": ROWS,
    "rows_are_updated_as_the_optimizer_updates_them": ROWS,
    "an_updater_is_given_rows": ROWS,
    "rows_are_pulled_to_several_arrays": "MXNet refuses it: 'RowSparsePull with multiple values is not supported yet'",
    "an_updater_is_called_with_the_sum": "a function of the worker does not reach the servers",
}
"""The checks that are left out for MXNet's own `dist_sync`, but not for its `local`, and the reasons."""


def differences(create: Create, names: Iterable[str] = ()) -> list[str]:
    """Run the checks `names` (all, if empty) on a store, and return a line for each difference."""
    found = []
    for name in names or CHECKS:
        try:
            for what, got, want in CHECKS[name](create):
                if got != want:
                    found.append(f"{name}: {what}: {got!r} instead of {want!r}")
        except Exception as error:
            found.append(f"{name}: {type(error).__name__}: {str(error).strip().splitlines()[-1]}")
    return found
