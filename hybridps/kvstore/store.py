"""hybridps as KVStore types of MXNet.

| type | algorithm |
|---|---|
| `dist_hybridps_sync` | mpi-SGD, dist-SGD |
| `dist_hybridps_elastic` | mpi-ESGD, dist-ESGD |
| `dist_hybridps` | what the setting `algorithm` says |

In every type `pushpull` gives the sum over all workers (with Elastic SGD: the group's sum, scaled to all
workers), so a script divides by `batch_size * num_workers` whatever the type. The update, with
`set_optimizer` or without, is MXNet's own, on every worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.base import MXNetError
from mxnet.kvstore import KVStore, KVStoreBase
from mxnet.ndarray import NDArray

from hybridps.errors import HybridPSError
from hybridps.kvstore import process
from hybridps.kvstore.arrays import copy_all, dense, dtype_of, same_arrays
from hybridps.kvstore.training import Training


class _TypeName(str):
    """The type's name, which also "contains" `_sync`.

    `Module` divides gradients by the number of workers only for types with `_sync` in the name. The sums
    of all our types are over all workers, so all need it.
    """

    def __contains__(self, part: object) -> bool:
        return part == "_sync" or str.__contains__(self, str(part))


class HybridKVStore(KVStore):
    """The KVStore over a job of hybridps, with an algorithm of that name, or that of the settings.

    A subclass of MXNet's `KVStore`, as the Trainer refuses sparse gradients for others, but with no
    native handle behind it. Keys are int or str; every method that takes a key also takes a list of them.
    """

    def __init__(self, algorithm_name: str | None = None) -> None:
        held = process.hold()
        self._job = held.job
        self._algorithm = held.job.algorithm(algorithm_name)
        self._schedule = held.schedule(self._algorithm.levels)
        self._training = Training(held.job, self._algorithm, self._schedule)
        self._closed = False
        self._updater: Any = None
        held.trainings.add(self._training)

    def close(self) -> None:
        """Free what the store holds, here and at the servers. Not a collective. A second time does nothing."""
        if not getattr(self, "_closed", True):
            self._closed = True
            self._training.close()

    __del__ = close  # there is no native handle to free

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Fill `out` with the first worker's `value`, on all workers, and take `out` as the weights of the key."""
        for each, values, outs in _pairs(key, value, out):
            self._training.add(str(each), values[0], outs, broadcast=True)
        self._check_precision()

    def init(self, key: Any, value: Any) -> None:
        """Make a key with the first worker's `value`, to be used with `push` and `pull`."""
        for each, values, _ in _pairs(key, value):
            stored = dense(values[0]).copyto(mx.cpu())
            self._training.add(str(each), stored, [stored], broadcast=False)
        self._check_precision()

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Sum `value` over devices and workers. The sum goes to `out` (default: `value`); after
        `set_optimizer` it updates the weights, which go to `out`."""
        for each, values, outs in _pairs(key, value, out):
            record = self._training.key(str(each))
            if self._updater is None and self._algorithm.has_centre and not record.broadcast:
                raise HybridPSError(
                    f"{self.type} cannot average weights that it does not see: key {each!r} was not broadcast. Let the "
                    "store update (unset MXNET_UPDATE_ON_KVSTORE), or broadcast the weights; for plain sums use push"
                )
            may_move = self._updater is None and not outs
            summed = self._training.sum_in_step(str(each), values, priority, may_move)
            if self._updater is None:
                copy_all(summed, outs or values)
            else:
                if outs and not same_arrays(outs, record.weights):
                    copy_all(record.weights[:1], outs)
                    record.weights[:] = outs
                self._update(each, summed[0])

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Sum `value` over devices and workers into the key's stored value; after `set_optimizer` update it."""
        for each, values, _ in _pairs(key, value):
            summed = self._training.sum_alone(str(each), values, priority, average=self._updater is not None)
            record = self._training.key(str(each))
            if self._updater is not None:
                self._update(each, summed)
            elif record.broadcast:
                record.pushed = summed.copy()
            else:
                copy_all([summed], record.weights)

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Copy to `out` what is stored for the key.

        With Elastic SGD and keys that are used with `pushpull`, that is the centre: all workers of a group
        must then pull alike. Else it is the weight, or the sum last pushed.
        """
        for each, outs, _ in _pairs(key, out):
            targets = [target for target in outs if target.stype == "default" or not ignore_sparse]
            copy_all([self._training.stored(str(each))], targets)

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Copy the rows `row_ids` of what is stored for the key to the row-sparse `out`."""
        for each, outs, rows in _pairs(key, out, row_ids):
            stored = self._training.key(str(each)).weights[0].tostype("row_sparse")
            for target, ids in zip(outs, rows * len(outs) if len(rows) == 1 else rows, strict=True):
                once = np.unique(ids.asnumpy())  # ascending: else lookups in the row-sparse array miss rows
                mx.nd.sparse.retain(stored, mx.nd.array(once, stored.context, "int64")).copyto(target)

    def set_optimizer(self, optimizer: Any) -> None:
        """Update weights with `optimizer` at each `pushpull` or `push`, on every worker alike."""
        self._updater = mx.optimizer.get_updater(optimizer)
        self._check_precision()

    def _set_updater(self, updater: Any) -> None:
        self._updater = updater

    def set_gradient_compression(self, compression_params: Any) -> None:
        """Not there yet: raises HybridPSError."""
        raise HybridPSError(
            f"gradient compression {compression_params} is not supported by {self.type}: drop compression_params"
        )

    def is_capable(self, capability: str) -> bool:
        if capability.lower() == KVStoreBase.OPTIMIZER:
            return True
        raise MXNetError(f"unknown capability: {capability}")

    @property
    def type(self) -> str:
        """The name that the store can be created by, with the algorithm in it."""
        return _TypeName(f"dist_hybridps_{self._algorithm.name}")

    @property
    def rank(self) -> int:
        """Number of this worker, 0 to num_workers - 1, over all groups."""
        return self._job.worker

    @property
    def num_workers(self) -> int:
        """Workers of all groups."""
        return self._job.workers

    def barrier(self) -> None:
        """Return when all workers of all groups have called it, and what they pushed is done."""
        self._training.settle()
        mx.nd.waitall()
        self._schedule.call("a barrier", self._algorithm.barrier)

    _barrier = barrier

    def num_dead_node(self, node_id: int = 0, timeout: float = 60) -> int:
        """Always 0: when a worker dies its whole group ends."""
        return 0

    def _send_command_to_servers(self, head: int, body: str) -> None:
        raise HybridPSError(f"commands to MXNet's servers have no meaning for {self.type}")

    def _check_precision(self) -> None:
        """Raise HybridPSError if averaging would not reach the weights that the optimizer trains."""
        precise = getattr(getattr(self._updater, "optimizer", None), "multi_precision", False)
        keys = self._training.keys.values() if precise and self._algorithm.has_centre else ()
        if any(dtype_of(key.weights[0]) == "float16" for key in keys):
            raise HybridPSError(
                f"{self.type} averages the weights, and an optimizer with multi_precision=True has its own of float16 "
                "keys, in float32: leave it out, or use the algorithm sync"
            )

    def _update(self, key: int | str, gradient: NDArray) -> None:
        weights = self._training.key(str(key)).weights
        self._updater(key, gradient.as_in_context(weights[0].context), weights[0])
        copy_all(weights[:1], weights[1:])


TYPES = {
    "dist_hybridps_sync": partial(HybridKVStore, "sync"),
    "dist_hybridps_elastic": partial(HybridKVStore, "elastic"),
    "dist_hybridps": HybridKVStore,
}

# MXNet looks a type up in this table; its `register` takes the name from the class.
KVStoreBase.kv_registry.update(TYPES)


def _pairs(key: Any, value: Any, other: Any = None) -> Iterator[tuple[int | str, list[NDArray], list[NDArray]]]:
    """Each key with the arrays given for it, as lists; the second list is empty where `other` is None."""
    if isinstance(key, (list, tuple)):
        others = [None] * len(key) if other is None else other
        for each, of_value, of_other in zip(key, value, others, strict=True):
            yield from _pairs(each, of_value, of_other)
    else:
        yield key, _as_list(value), [] if other is None else _as_list(other)


def _as_list(arrays: Any) -> list[NDArray]:
    return list(arrays) if isinstance(arrays, (list, tuple)) else [arrays]
