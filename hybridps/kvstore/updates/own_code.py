"""Updates of a key's stored value by MXNet's own code, on the worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mxnet.ndarray import NDArray

from hybridps.kvstore.arrays import copy_all, is_dense, same_arrays
from hybridps.kvstore.key import Key
from hybridps.kvstore.updates.optimizers import same_random_numbers, share_counts
from hybridps.kvstore.updates.states import adds_up


def update_(known: Key, updater: Any, gradient: NDArray, outs: Sequence[NDArray], scale: float) -> NDArray:
    """Update a key's stored value by `scale` times the gradient. Return its array. `outs`: where it is to be copied.

    Weights that go where they were broadcast to, as with the Trainer, are updated there, without a copy.
    """
    assert known.stored is not None  # always true if there is an updater
    if not is_dense(gradient) and not outs and known.pushed_and_pulled():
        outs = known.outs[:1]
    in_place = bool(outs) and same_arrays(outs, known.outs[:1])
    if in_place and known.stored is not outs[0]:
        copy_all([known.stored], outs)
        known.stored = outs[0]
    elif not in_place and known.outs and known.stored is known.outs[0]:
        known.stored = known.stored.copy()
    # MXNet's own stores pass names as bytes.
    called = known.index.encode() if isinstance(known.index, str) else known.index
    if not (is_dense(gradient) and known.is_on_cpu(known.stored)):  # dense sums are on the CPU
        gradient = gradient.as_in_context(known.stored.context)
    optimizer = getattr(updater, "optimizer", None)
    share_counts(optimizer, known.stored.context.device_id)
    if adds_up(optimizer):
        gradient = gradient.copy()  # the optimizer keeps the array, which the next gradient overwrites
    with same_random_numbers(optimizer, known.index):
        updater(called, gradient if scale == 1 else gradient * scale, known.stored)
    return known.stored
