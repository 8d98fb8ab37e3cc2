"""The KVStore of a job: the methods that MXNet calls."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import mxnet as mx
from mxnet.kvstore import KVStore, KVStoreBase
from mxnet.ndarray import NDArray

from hybridps.algorithms import DEFAULT, definition, short_name
from hybridps.errors import ConfigError, HybridPSError
from hybridps.files import write_whole
from hybridps.kvstore import process
from hybridps.kvstore.arrays import copy_all
from hybridps.kvstore.calls import as_mxnet_does, calls, common_kind, compression_of, fails_as_mxnet_does
from hybridps.kvstore.hand_over import Holder, epochs
from hybridps.kvstore.servers import StoreHandle, command, watched_workers
from hybridps.kvstore.sparse import retained
from hybridps.kvstore.training import Training
from hybridps.kvstore.updates.optimizers import open_scale, optimizer_of
from hybridps.kvstore.updates.reading import read_together
from hybridps.ps.rules import SGD

PREFIX = "dist_hybridps_"


def mode_of(name: str) -> str:
    """Return the end of an algorithm's KVStore type: `_sync`, `_async`, or nothing if the name implies it."""
    mode = "async" if definition(name).is_asynchronous else "sync"
    return "" if name == mode else f"_{mode}"


class HybridKVStore(KVStore):
    """The KVStore of a hybridps job, with the named algorithm or that of the settings.

    A subclass of MXNet's `KVStore`, because the Trainer refuses sparse gradients for other stores, but without a native
    handle. Keys are int or str; every method that takes a key also takes a list of keys. Invalid calls raise what MXNet
    raises: `MXNetError`, or AssertionError for arguments of the wrong form.
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
        # The optimizer is set later. Until then the rule changes nothing.
        rule = SGD(rate=0.0) if is_asynchronous and held.job.servers else None
        self._algorithm = held.job.algorithm(algorithm_name, rule=rule)
        self._schedule = held.schedule(self._algorithm.levels)
        self._training = Training(held.job, self._algorithm, self._schedule, is_asynchronous)
        self.handle = StoreHandle(held.profile(self._schedule))
        """For MXNet's profiler, which profiles the servers of the store created last, as with MXNet's own stores."""
        mx.profiler.set_kvstore_handle(self.handle)
        self._closed = False
        self._workers_read = held.job.workers
        """The number of workers that the script last read."""
        self._reads = count()
        """Numbers for what is read together."""
        self._kind: type | None = None
        """The kind of all keys, int or str; None as long as there is no key."""
        self._shared = held
        self._shared.trainings.add(self._training)

    def close(self) -> None:
        """Free what the store holds, here and at the servers. Not a collective. A second call does nothing."""
        if not getattr(self, "_closed", True):
            self._closed = True
            self._training.close()

    __del__ = close  # there is no native handle to free

    @as_mxnet_does
    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Store the first worker's `value` on all workers, and copy it to `out`.

        `out`: the weights of the key, which are averaged if the algorithm averages weights.
        """
        self._add(key, value, out)

    @as_mxnet_does
    def init(self, key: Any, value: Any) -> None:
        """Store the first worker's `value` on all workers."""
        self._add(key, value)

    @fails_as_mxnet_does
    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Sum `value` over devices and workers, and store the sum or, after `set_optimizer`, update with it.

        The result is copied to `out` (default: `value`).
        """
        if out is not None or not self._training.usual.begin(key, value, priority):  # autograd records none of that
            self._sum(key, value, out, priority)

    @as_mxnet_does
    def _sum(self, key: Any, value: Any, out: Any, priority: int) -> None:
        updates = self._updates()
        for each in calls(self._check_kind(key), value, out):
            if not updates and self._algorithm.averages_weights and not self._training.key(each.name).outs:
                raise HybridPSError(
                    f"{self.type} cannot average weights that it does not see: key {each.key!r} was not broadcast. "
                    "Let the store update (unset MXNET_UPDATE_ON_KVSTORE), or broadcast the weights; for plain sums "
                    "use push"
                )
            in_place = not updates and each.is_in_place
            summed = self._training.sum_in_step(each.name, each.values, priority, in_place)
            if updates:
                summed = [self._training.updates.update(each.name, summed[0], each.others)]
            copy_all(summed, each.others or each.values)

    @as_mxnet_does
    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Sum `value` over devices and workers, and store the sum or, after `set_optimizer`, update with it."""
        updates = self._updates()
        for each in calls(self._check_kind(key), value):
            summed = self._training.sum_alone(each.name, each.values, priority)
            if updates:
                self._training.updates.update(each.name, summed)

    @as_mxnet_does
    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Copy the stored value of the key to `out`.

        With Elastic SGD this is the centre, if the key was broadcast and is used with `pushpull`. All workers of a
        group must then make the same pulls.
        """
        assert out is not None, "give an array: pull(key, out=...)"
        for each in calls(self._check_kind(key), out):
            targets = [target for target in each.values if target.stype == "default" or not ignore_sparse]
            copy_all([self._training.stored(each.name)], targets)
            self._training.note_pull(each.name, targets)

    @as_mxnet_does
    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Copy the rows `row_ids` of a row-sparse key's stored value to the row-sparse `out`."""
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
        """Save the optimizer's states to a file, in full or not at all. Workers of a host may save to the same file.

        The file has arrays and JSON (see `states_file`); MXNet's own is a pickle. If servers update, only the first
        worker of each group writes a file.
        """
        assert self._updater is not None, "there is no optimizer: call set_optimizer first"
        states = self._training.updates.states(dump_optimizer)
        if not self._training.has_pushed:
            open_scale(optimizer_of(self._updater))  # a Trainer that saves before its first step sets it afterwards
        if states is not None:
            write_whole(Path(fname).resolve(), states)

    @as_mxnet_does
    def load_optimizer_states(self, fname: str) -> None:
        """Load the optimizer's states from a file. All workers call this.

        If servers update, or each worker a part of the weights, all take the first worker's file, and no other worker
        needs one. After the first step, and in a group that was restarted or joins, they take their leader's file.
        Raises OSError on all of these workers if it cannot be read. Otherwise each worker has a file of its own.
        """
        assert self._updater is not None, "there is no optimizer: call set_optimizer first"
        updates = self._training.updates
        try:
            if updates.are_at_servers:
                self._load_together(fname)
            else:
                updates.set_states(Path(fname).read_bytes(), fname)
        finally:
            open_scale(optimizer_of(self._updater))  # the file may be of a job with other batches or more workers

    def _load_together(self, fname: str) -> None:
        """Load the states from the first worker's file, or from the leader's."""
        updates = self._training.updates
        trains = self._training.has_begun
        begins = not trains and self._job.session.settings.life == 0  # otherwise the other groups may read no states
        table = f"states{next(self._reads)}" if begins else None
        try:
            states = read_together(Path(fname), self.rank, self._algorithm, self._schedule, table)
            updates.set_states(states, fname)
        finally:
            if trains:
                self.barrier()  # also after an error, as other workers may have none

    @as_mxnet_does
    def set_gradient_compression(self, compression_params: Any) -> None:
        """Compress what workers push: `{'type': '2bit', 'threshold': 0.5}`, or `'1bit'`. `pull` stays exact.

        For each value, a worker pushes `threshold`, its negative or 0 (with 1 bit: 1 or -1), and adds the remainder to
        its next push of the key. All workers call this alike, before the first push; the last call counts. Keys must be
        dense float32. Raises HybridPSError for an invalid parameter or key, and if the store averages weights.
        """
        self._training.compress(compression_of(compression_params, max(self._job.session.plan.group_sizes)))

    def epochs(self, total: int, *holders: Holder, begin: int = 0) -> Iterator[int]:
        """Yield the numbers of the epochs up to `total`, from `begin`, or where the job is if this group was restarted.

        If groups train in step, they meet before each epoch. Groups that were restarted alone wait for that, get what
        the `holders` of a group that has trained hold, and train with the others from there. These are the Trainers,
        with weights and optimizers, and perhaps blocks whose parameters no Trainer trains. All workers call this alike,
        before the first step, and do the same number of steps in an epoch. Raises ConfigError if groups train in step
        and nothing is given.
        """
        self._shared.is_used |= begin >= total
        return epochs(self._job, self._algorithm, self._schedule, range(begin, total), holders)

    def set_stored(self, key: int | str, value: NDArray) -> None:
        """Replace the stored value of a key, before its first gradient, by one that another group has handed over."""
        self._training.set_stored(str(key), value)

    def is_capable(self, capability: str) -> bool:
        """Return whether the store can be given an optimizer. Raises ValueError for an unknown capability."""
        if capability.lower() == KVStoreBase.OPTIMIZER:
            return True
        raise ValueError(f"unknown capability: {capability}")

    @property
    def type(self) -> str:
        """A name by which the store can be created, with the algorithm in it.

        It ends with `_sync` if sums stand for all workers: `Module` divides by the number of workers only then. It
        contains `async` if the servers update at each push: the Trainer and scripts let the store update only then.
        """
        return f"{PREFIX}{self._name}{mode_of(self._name)}"

    @property
    def rank(self) -> int:
        """The number of this worker over all groups, 0 to num_workers - 1."""
        return self._job.worker

    @property
    def num_workers(self) -> int:
        """The number of workers in all groups that are present, expected or finished.

        It may change between two steps, but never if groups train in step. Sums are scaled to the number that the
        scripts of all ranks of the group have read here.
        """
        workers = self._job.workers
        if workers != self._workers_read:
            self._workers_read = workers
            for training in self._shared.trainings:  # the Trainer that divides may have created a store of its own
                open_scale(optimizer_of(training.updates.updater))
        return workers

    @as_mxnet_does
    def barrier(self) -> None:
        """Return when all workers of all groups have called it and everything that they pushed is done."""
        self._training.settle()
        mx.nd.waitall()
        self._schedule.call("a barrier", self._algorithm.barrier)

    _barrier = barrier

    @as_mxnet_does
    def num_dead_node(self, node_id: int = 0, timeout: float = 60) -> int:
        """Return the number of workers that, or whose group, the servers have not heard from for `timeout` seconds.

        `node_id` as in ps-lite: 4 means all workers, 9 + 2 n worker n, and 0 all nodes. The scheduler (1) and servers
        (2) count 0: there is no scheduler, and the job ends when a server is lost. Any worker may call this at any
        time.
        """
        watched = watched_workers(node_id, max(self._job.session.plan.workers, self._job.worker + 1))
        return len(watched.intersection(self._job.silent_workers(timeout)))

    @as_mxnet_does
    def _send_command_to_servers(self, head: int, body: str) -> None:
        """Obey a command to MXNet's servers, on this worker; `hybridps.kvstore.servers.commands` has the list."""
        optimizer, updates_at_push = getattr(self._updater, "optimizer", None), self._is_asynchronous
        profile, note = self.handle.profile, self._job.session.note
        command(head, body, optimizer=optimizer, is_asynchronous=updates_at_push, profile=profile, note=note)

    def _updates(self) -> bool:
        """Return whether there is an updater. Raises HybridPSError for asynchronous SGD without one."""
        if self._updater is None and self._is_asynchronous:
            raise HybridPSError(f"{self.type} updates at every push: call set_optimizer first")
        return self._updater is not None

    def _add(self, key: Any, value: Any, out: Any = None) -> None:
        keys = calls(self._check_kind(key), value, out)
        if isinstance(key, (list, tuple)) and len(keys) < len(key):
            raise HybridPSError(f"a key occurs twice in {key!r}: broadcast or initialise each key once in a store")
        self._shared.is_used |= bool(keys)
        for each in keys:
            self._training.add(each.name, each.key, each.values[0], each.others)
        self._training.check_precision(self.type)

    def _check_kind(self, key: Any) -> Any:
        """Return the key or keys. Raises HybridPSError if they are of another kind than the store's other keys."""
        self._kind = common_kind(key, self._kind)
        return key
