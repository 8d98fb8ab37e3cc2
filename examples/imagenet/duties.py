"""Which worker does what one of them does for all: checkpoints, and the lines and the bar that people look at."""

from __future__ import annotations

import sys

import mxnet as mx

ALL_WORKERS = 4
"""Their number among the nodes of a KVStore."""

SILENT_SECONDS = 30
"""After so long without a sign of life a worker counts as dead; at once where it is known that it has ended."""


def are_mine(kv: mx.kv.KVStore | None) -> bool:
    """Whether this worker is the first that lives. Stores that do not know who lives leave it to the first of all."""
    if kv is None or kv.rank == 0:
        return True
    if not hasattr(kv, "num_dead_node"):
        return False
    try:
        return all(kv.num_dead_node(9 + 2 * worker, SILENT_SECONDS) for worker in range(kv.rank))
    except mx.MXNetError:
        return False


def lost(kv: mx.kv.KVStore | None) -> int:
    """How many workers have died, as far as the store knows."""
    try:
        return kv.num_dead_node(ALL_WORKERS, SILENT_SECONDS) if hasattr(kv, "num_dead_node") else 0
    except mx.MXNetError:
        return 0


def leaving() -> bool:
    """Whether this worker's group is to leave now. Without hybridps nobody tells it."""
    found = sys.modules.get("hybridps")
    return found is not None and found.leaving()
