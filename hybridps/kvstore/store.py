"""The KVStore over a job: what MXNet calls, and what it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet as mx
from mxnet.kvstore import KVStore, KVStoreBase
from mxnet.ndarray import NDArray

from hybridps.algorithms import DEFAULT, definition, short_name
from hybridps.errors import ConfigError, HybridPSError
from hybridps.kvstore import process
from hybridps.kvstore.arrays import copy_all
from hybridps.kvstore.calls import as_mxnet_does, calls, key_kind
from hybridps.kvstore.compression import compression_of
from hybridps.kvstore.servers import StoreHandle, command, watched_workers
from hybridps.kvstore.sparse import retained
from hybridps.kvstore.training import Training
from hybridps.kvstore.updates.optimizers import open_scale, optimizer_of
from hybridps.ps.rules import SGD

PREFIX = "dist_hybridps_"


def mode_of(name: str) -> str:
    """The end of the type of an algorithm: `_sync`, `_async`, or nothing where the name says it."""
    mode = "async" if definition(name).is_asynchronous else "sync"
    return "" if name == mode else f"_{mode}"


class HybridKVStore(KVStore):
    """The KVStore over a job of hybridps, with an algorithm of that name, or that of the settings.

    A subclass of MXNet's `KVStore`, as the Trainer refuses sparse gradients for others, but with no
    native handle behind it. Keys are int or str; every method that takes a key also takes a list of them. What is
    wrong with a call raises what MXNet raises: `MXNetError`, or AssertionError for arguments of another form.
    """

    def __init__(self, algorithm_name: str | None = None) -> None:
        held = process.hold(algorithm_name)
        self._job = held.job
        self._name = short_name(algorithm_name) if algorithm_name else held.job.session.settings.algorithm or DEFAULT
        self._is_asynchronous = is_asynchronous = definition(self._name).is_asynchronous
        if is_asynchronous and held.job.session.settings.backend == "mxnet":
            raise ConfigError(
                "asynchronous SGD needs the servers of hybridps: unset HYBRIDPS_BACKEND, or use dist_async"
            )
        # An optimizer is set later: until then the rule changes nothing.
        rule = SGD(rate=0.0) if is_asynchronous and held.job.servers else None
        self._algorithm = held.job.algorithm(algorithm_name, rule=rule)
        self._schedule = held.schedule(self._algorithm.levels)
        self._training = Training(held.job, self._algorithm, self._schedule, is_asynchronous)
        self.handle = StoreHandle(held.profile(self._schedule))
        """Of MXNet's profiler, which profiles the servers of the store that was created last, as with MXNet's own."""
        mx.profiler.set_kvstore_handle(self.handle)
        self._closed = False
        self._workers_read = held.job.workers
        """What the script was told last."""
        self._kind: type | None = None
        """Of all keys."""
        held.trainings.add(self._training)

    def close(self) -> None:
        """Free what the store holds, here and at the servers. Not a collective. A second time does nothing."""
        if not getattr(self, "_closed", True):
            self._closed = True
            self._training.close()

    __del__ = close  # there is no native handle to free

    @as_mxnet_does
    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Store the first worker's `value`, and fill `out` with it, on all workers.

        `out` are the weights of the key, which are averaged if the algorithm averages weights.
        """
        self._add(key, value, out)

    @as_mxnet_does
    def init(self, key: Any, value: Any) -> None:
        """Store the first worker's `value`, on all workers."""
        self._add(key, value)

    @as_mxnet_does
    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Sum `value` over devices and workers, and store the sum, or update what is stored after `set_optimizer`.

        What is stored then goes to `out` (default: `value`).
        """
        updates = self._updates()
        for each in calls(self._check_kind(key), value, out):
            if not updates and self._algorithm.averages_weights and not self._training.key(each.name).outs:
                raise HybridPSError(
                    f"{self.type} cannot average weights that it does not see: key {each.key!r} was not broadcast. "
                    "Let the store update (unset MXNET_UPDATE_ON_KVSTORE), or broadcast the weights; for plain sums "
                    "use push"
                )
            may_move = not (updates or each.others)
            summed = self._training.sum_in_step(each.name, each.values, priority, may_move)
            if updates:
                summed = [self._training.updates.update(each.name, summed[0], each.others)]
            copy_all(summed, each.others or each.values)

    @as_mxnet_does
    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Sum `value` over devices and workers, and store the sum, or update what is stored after `set_optimizer`."""
        updates = self._updates()
        for each in calls(self._check_kind(key), value):
            summed = self._training.sum_alone(each.name, each.values, priority)
            if updates:
                self._training.updates.update(each.name, summed)

    @as_mxnet_does
    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Copy to `out` what is stored for the key.

        With Elastic SGD and keys that were broadcast and are used with `pushpull`, that is the centre: all workers of a
        group must then pull alike.
        """
        assert out is not None, "give an array: pull(key, out=...)"
        for each in calls(self._check_kind(key), out):
            targets = [target for target in each.values if target.stype == "default" or not ignore_sparse]
            copy_all([self._training.stored(each.name)], targets)
            self._training.note_pull(each.name, targets)

    @as_mxnet_does
    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Copy the rows `row_ids` of what is stored for a row-sparse key to the row-sparse `out`."""
        assert out is not None, "give an array: row_sparse_pull(key, out=..., row_ids=...)"
        assert row_ids is not None, "give the rows: row_sparse_pull(key, out=..., row_ids=...)"
        row_ids = [row_ids] if isinstance(row_ids, NDArray) else row_ids
        for each in calls(self._check_kind(key), out, row_ids):
            stored = self._training.stored(each.name)
            if stored.stype != "row_sparse":
                raise HybridPSError(f"the stored value of key {each.key!r} is not row-sparse: use pull")
            rows = each.others * len(each.values) if len(each.others) == 1 else each.others
            assert len(rows) == len(each.values), f"{len(each.values)} arrays have {len(rows)} arrays of rows"
            if any(target.stype != "row_sparse" for target in each.values):
                raise HybridPSError(f"rows of key {each.key!r} can be pulled into row-sparse arrays only: use pull")
            for target, ids in zip(each.values, rows, strict=True):
                retained(stored, ids).copyto(target)

    def set_optimizer(self, optimizer: Any) -> None:
        """Update the stored values with `optimizer` at each `pushpull` or `push`. All workers set the same one."""
        self._set_updater(mx.optimizer.get_updater(optimizer))

    @as_mxnet_does
    def _set_updater(self, updater: Any) -> None:
        """Call `updater(key, sum, stored)`, which changes `stored`, at each `pushpull` or `push`, on every worker."""
        self._training.set_updater(updater, self.type)

    @property
    def _updater(self) -> Any:
        return self._training.updates.updater

    @as_mxnet_does
    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Save the optimizer's states to a file, whole or not at all: workers of a host may save to the same one.

        The file has arrays and JSON, see `states_file`: MXNet's own is a pickle.
        Where servers update, the first worker of each group does, and others do nothing.
        """
        assert self._updater is not None, "there is no optimizer: call set_optimizer first"
        states = self._training.updates.states(dump_optimizer)
        if states is None:
            return
        path = Path(fname).resolve()
        beside = path.with_name(f"{path.name}.of-worker-{self.rank}")
        try:
            beside.write_bytes(states)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)

    @as_mxnet_does
    def load_optimizer_states(self, fname: str) -> None:
        """Go on with the optimizer's states of a file. All workers call this; at the servers the first one's count.

        Workers whose states are all at the servers, but the first of all, need no file.
        """
        assert self._updater is not None, "there is no optimizer: call set_optimizer first"
        path = Path(fname)
        states = None if self._training.updates.servers_have_states and not path.exists() else path.read_bytes()
        try:
            self._training.updates.set_states(states, fname)
        finally:
            if self._training.updates.are_at_servers:
                self.barrier()  # also after an error, which perhaps only this worker has

    @as_mxnet_does
    def set_gradient_compression(self, compression_params: Any) -> None:
        """Compress what workers push: `{'type': '2bit', 'threshold': 0.5}`, or `'1bit'`. `pull` stays exact.

        Each worker pushes `threshold`, its negative or 0 for each value (1 or -1 with 1 bit), and adds what that left
        out to its next push of the key. All workers call this alike, before the first push; the last call counts. Keys
        must be dense and of float32. Raises HybridPSError for what cannot be, and in a store that averages weights.
        """
        self._training.compress(compression_of(compression_params, max(self._job.session.plan.group_sizes)))

    def is_capable(self, capability: str) -> bool:
        """Whether the store can be given an optimizer; ValueError for what MXNet does not know."""
        if capability.lower() == KVStoreBase.OPTIMIZER:
            return True
        raise ValueError(f"unknown capability: {capability}")

    @property
    def type(self) -> str:
        """A name that the store can be created by, with the algorithm in it.

        It ends with `_sync` if sums stand for all workers: `Module` divides by the number of workers only then. It has
        `async` in it if the servers update at each push: the Trainer and scripts let the store update only then.
        """
        return f"{PREFIX}{self._name}{mode_of(self._name)}"

    @property
    def rank(self) -> int:
        """Number of this worker, 0 to num_workers - 1, over all groups."""
        return self._job.worker

    @property
    def num_workers(self) -> int:
        """Workers of all groups that are there, expected or finished.

        The number may change between two steps, never where groups are in step. Sums stand for as many as the scripts
        of all ranks of the group have read here.
        """
        workers = self._job.workers
        if workers != self._workers_read:
            self._workers_read = workers
            open_scale(optimizer_of(self._updater))
        return workers

    @as_mxnet_does
    def barrier(self) -> None:
        """Return when all workers of all groups have called it, and what they pushed is done."""
        self._training.settle()
        mx.nd.waitall()
        self._schedule.call("a barrier", self._algorithm.barrier)

    _barrier = barrier

    @as_mxnet_does
    def num_dead_node(self, node_id: int = 0, timeout: float = 60) -> int:
        """How many workers the servers have heard nothing of for more than `timeout` seconds, them or their group.

        `node_id` as in ps-lite: 4 are all workers, 9 + 2 n is worker n; 0 stands for all. The scheduler (1) and servers
        (2) count 0: there is none, and the job ends when a server is lost. Any worker may ask at any time.
        """
        watched = watched_workers(node_id, max(self._job.session.plan.workers, self._job.worker + 1))
        return len(watched.intersection(self._job.silent_workers(timeout)))

    @as_mxnet_does
    def _send_command_to_servers(self, head: int, body: str) -> None:
        """A command as MXNet's servers know it, of one worker; `hybridps.kvstore.servers.commands` has the list."""
        command(
            head,
            body,
            optimizer=getattr(self._updater, "optimizer", None),
            is_asynchronous=self._is_asynchronous,
            profile=self.handle.profile,
            note=self._job.session.note,
        )

    def _updates(self) -> bool:
        """Whether there is an updater. Raises HybridPSError for asynchronous SGD without one."""
        if self._updater is None and self._is_asynchronous:
            raise HybridPSError(f"{self.type} updates at every push: call set_optimizer first")
        return self._updater is not None

    def _add(self, key: Any, value: Any, out: Any = None) -> None:
        keys = calls(self._check_kind(key), value, out)
        if isinstance(key, (list, tuple)) and len(keys) < len(key):
            raise HybridPSError(f"a key occurs twice in {key!r}: broadcast or initialise each key once in a store")
        for each in keys:
            self._training.add(each.name, each.key, each.values[0], each.others)
        self._training.check_precision(self.type)

    def _check_kind(self, key: Any) -> Any:
        """The key or keys. Raises HybridPSError if others of this store are of another kind."""
        kind = key_kind(key)
        if kind is not None and self._kind is not None and kind is not self._kind:
            raise HybridPSError(
                f"key {key!r} is not {self._kind.__name__}, as the other keys of this store: use one kind"
            )
        self._kind = kind or self._kind
        return key
