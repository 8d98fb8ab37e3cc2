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

from collections.abc import Iterator, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.base import MXNetError
from mxnet.kvstore import KVStore, KVStoreBase
from mxnet.ndarray import NDArray

from hybridps.errors import HybridPSError, LayoutError
from hybridps.kvstore import process
from hybridps.kvstore.model import Entry, Model, array_over
from hybridps.memory import Arena, Layout
from hybridps.tensor_collectives import Tensor


class _TypeName(str):
    """The type's name, which also "contains" `_sync`.

    `Module` divides gradients by the number of workers only for types with `_sync` in the name. The sums
    of all our types are over all workers, so all need it.
    """

    def __contains__(self, part: object) -> bool:
        return part == "_sync" or str.__contains__(self, str(part))


class HybridKVStore(KVStore):
    """The KVStore over a job of hybridps. `kv.create` makes it by the name of a subclass.

    A subclass of MXNet's `KVStore`, as the Trainer refuses sparse gradients for others, but with no
    native handle behind it. Keys are int or str; every method that takes a key also takes a list of them.
    """

    algorithm_name: str | None = None

    def __init__(self) -> None:
        self._job, self._communicator = process.hold()
        self._algorithm = self._job.algorithm(self.algorithm_name)
        self._updater: Any = None
        self._weights: dict[str, list[NDArray]] = {}
        self._announced: list[str] = []
        self._joint: dict[str, Model] = {}
        self._own: dict[str, Model] = {}
        self._made = 0

    def __del__(self) -> None:
        """There is no native handle to free."""

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Fill `out` with the first worker's `value`, on all workers, and take `out` as the weights of the key."""
        for each, values, outs in _pairs(key, value, out):
            self._initialise(str(each), values[0], outs)
            self._weights[str(each)] = outs
            self._announced.append(str(each))

    def init(self, key: Any, value: Any) -> None:
        """Make a key with the first worker's `value`, to be used with `push` and `pull`."""
        for each, values, _ in _pairs(key, value):
            stored = values[0].tostype("default").copyto(mx.cpu())
            self._initialise(str(each), stored, [stored])
            self._weights[str(each)] = [stored]

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Sum `value` over devices and workers. The sum goes to `out` (default: `value`); after
        `set_optimizer` it updates the weights, which go to `out`."""
        for each, values, outs in _pairs(key, value, out):
            model = self._model(str(each))
            summed = model.gradient(str(each), values, priority)
            if self._updater is None:
                _copy(summed, outs or values)
            else:
                if outs:
                    self._weights[str(each)][:] = outs
                self._update(each, summed[0])

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Sum `value` over devices and workers into the key's stored value; after `set_optimizer` update it."""
        for each, values, _ in _pairs(key, value):
            model = self._own_model(str(each))
            model.averaging = self._updater is not None
            dense = [part.tostype("default").as_in_context(values[0].context) for part in values]
            summed = model.gradient(str(each), [mx.nd.add_n(*dense) if len(dense) > 1 else dense[0]], priority)
            if self._updater is None:
                _copy(summed, self._weights[str(each)])
            else:
                self._update(each, summed[0])

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Copy to `out` what is stored for the key.

        With Elastic SGD and keys that are used with `pushpull`, that is the centre: all workers of a group
        must then pull alike. Else it is the weight, or the sum last pushed.
        """
        for each, outs, _ in _pairs(key, out):
            dense = [target for target in outs if target.stype == "default" or not ignore_sparse]
            _copy([self._stored(str(each))], dense)

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Copy the rows `row_ids` of what is stored for the key to the row-sparse `out`."""
        for each, outs, rows in _pairs(key, out, row_ids):
            stored = self._weights[self._known(str(each))][0].tostype("row_sparse")
            for target, ids in zip(outs, rows * len(outs) if len(rows) == 1 else rows, strict=True):
                stored.retain(ids.as_in_context(stored.context)).copyto(target)

    def set_optimizer(self, optimizer: Any) -> None:
        """Update weights with `optimizer` at each `pushpull` or `push`, on every worker alike."""
        self._updater = mx.optimizer.get_updater(optimizer)

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
        """Return when all workers of this MPI world have called it, and what they pushed is done."""
        mx.nd.waitall()
        self._job.session.workers.barrier()

    _barrier = barrier

    def num_dead_node(self, node_id: int = 0, timeout: float = 60) -> int:
        """Always 0: when a worker dies its whole group ends."""
        return 0

    def _send_command_to_servers(self, head: int, body: str) -> None:
        raise HybridPSError(f"commands to MXNet's servers have no meaning for {self.type}")

    def _initialise(self, name: str, value: NDArray, outs: list[NDArray]) -> None:
        layout = Layout.of(np.dtype(value.dtype).name, {name: value.shape})
        arena = Arena(layout)
        slot = array_over(arena.view(name))
        value.tostype("default").copyto(slot)
        self._communicator.operation([slot], lambda: self._algorithm.initialise(name, layout, Tensor([arena.flat])))
        _copy([slot], outs)

    def _known(self, name: str) -> str:
        if name not in self._weights:
            raise LayoutError(
                f"key {name!r} is unknown: broadcast or init it first ({len(self._weights)} keys are known)"
            )
        return name

    def _model(self, name: str) -> Model:
        """The model that sums the gradients of a key used with `pushpull`."""
        model = self._joint_model(name)
        return model if model is not None and model.expects(name) else self._own_model(name)

    def _joint_model(self, name: str) -> Model | None:
        """The model of all keys that were broadcast together, if this is one of them; made at first use."""
        if self._known(name) in self._announced:
            model = self._make([Entry(each, self._weights[each]) for each in self._announced])
            self._announced.clear()
            self._joint.update(dict.fromkeys(model.entries, model))
        return self._joint.get(name)

    def _own_model(self, name: str) -> Model:
        """A model of this key alone: for keys that do not come with the others in each step."""
        if name not in self._own:
            if name in self._announced:
                self._announced.remove(name)
            self._own[name] = self._make([Entry(name, self._weights[self._known(name)], devices=1)])
        return self._own[name]

    def _make(self, entries: list[Entry]) -> Model:
        self._made += 1
        return Model(f"model{self._made}.", entries, self._job, self._algorithm, self._communicator)

    def _stored(self, name: str) -> NDArray:
        if self._algorithm.has_centre and name not in self._own:
            model = self._joint_model(name)
            if model is not None:
                return model.centre(name)
        return self._weights[self._known(name)][0]

    def _update(self, key: int | str, gradient: NDArray) -> None:
        weights = self._weights[str(key)]
        self._updater(key, gradient.as_in_context(weights[0].context), weights[0])
        _copy(weights[:1], weights[1:])


class DistHybridPSSync(HybridKVStore):
    """Synchronous over all workers: mpi-SGD."""

    algorithm_name = "sync"


class DistHybridPSElastic(HybridKVStore):
    """Synchronous in a group, Elastic SGD across groups: mpi-ESGD."""

    algorithm_name = "elastic"


class DistHybridPS(HybridKVStore):
    """The algorithm that the settings say."""


TYPES = {
    "dist_hybridps_sync": DistHybridPSSync,
    "dist_hybridps_elastic": DistHybridPSElastic,
    "dist_hybridps": DistHybridPS,
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


def _copy(sources: Sequence[NDArray], targets: Sequence[NDArray]) -> None:
    """Copy source i to target i (source 0 if there is one only), where it is not the same array."""
    for number, target in enumerate(targets):
        source = sources[number if len(sources) > 1 else 0]
        if source is not target:
            source.copyto(target)
