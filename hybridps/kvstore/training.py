"""The keys of a store, and their steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.ndarray import NDArray

from hybridps.algorithms import Algorithm
from hybridps.codecs import Quantised
from hybridps.errors import HybridPSError, LayoutError
from hybridps.job import Job
from hybridps.kvstore.arrays import array_over, copy_all, dense, dtype_of, operate, same_arrays
from hybridps.kvstore.averaged_weights import AveragedWeights
from hybridps.kvstore.compression import check_compressible
from hybridps.kvstore.gradient_arrays import GradientArrays
from hybridps.kvstore.key import Key
from hybridps.kvstore.optimizers import same_random_numbers, table_rule
from hybridps.kvstore.server_optimizer import foreign_rule
from hybridps.kvstore.server_updates import ServerUpdates
from hybridps.kvstore.sparse import SparseArrays, all_rows
from hybridps.memory import FLOATS, Layout
from hybridps.ps.rules import SGD, AnyRule
from hybridps.step import Gradients, InitialValues, JobContext, KeySpec, Schedule, SparseGradients, Weights


class Training:
    """The keys of a store, and the steps of those that come with `pushpull`.

    A step ends when a key comes for the second time. From the third step on, gradients that came in the same arrays
    twice live in memory of ours.
    """

    def __init__(self, job: Job, algorithm: Algorithm, schedule: Schedule, is_asynchronous: bool) -> None:
        self.keys: dict[str, Key] = {}
        self.updater: Any = None
        """`updater(key, sum, stored)` updates what is stored, if it is not None."""
        self._job = job
        self._algorithm = algorithm
        self._is_asynchronous = is_asynchronous
        self._scale = 1 / job.session.plan.group_sizes[job.session.place.group] if is_asynchronous else 1.0
        """Of gradients: a group's sum stands for one worker's gradient in asynchronous SGD."""
        self._schedule = schedule
        self._context = JobContext.of(job.session)
        self._initial = InitialValues(schedule, algorithm, self._context, "initial")
        self._sums = Gradients(schedule, algorithm, self._context, self._initial, "model")
        self._gradients = GradientArrays(self._sums)
        given = (schedule, algorithm, self._context, self._initial)
        self._sparse = SparseArrays(SparseGradients(*given, "rows"))
        self._announced: list[str] = []
        """Keys that were broadcast, and are averaged from the next step on."""
        self._averaged: list[AveragedWeights] = []
        """Those of the model."""
        self._at_servers: ServerUpdates | None = None
        """The keys that servers update, since the last optimizer was set."""
        self._optimizers = 0
        """How many were set."""
        self._compression: Quantised | None = None
        """Of gradients."""
        self._step = -1
        self._pushed: dict[str, Sequence[NDArray]] = {}
        self._before: dict[str, Sequence[NDArray]] = {}
        """What was pushed in the step before."""
        self._leading: set[str] = set()
        """Keys with row-sparse gradients that come before those of a step, but whose gradients are the last to arrive.

        From the fourth step on the first of these keys begins a step, so that its sum comes after the others.
        """

    def add(self, name: str, index: int | str, value: NDArray, outs: Sequence[NDArray]) -> None:
        """Store the first worker's `value`, and fill `outs`, the user's weights, with it.

        Raises LayoutError for a key that is known, or for a dtype that cannot be summed.
        """
        if name in self.keys:
            raise LayoutError(f"key {name!r} is known already: a key is broadcast or initialised once in a store")
        if self._compression is not None:
            check_compressible(name, value)
        Layout.of(dtype_of(value), {name: value.shape})  # raises LayoutError here, not on the communication thread
        memory = np.empty(value.shape, dtype_of(value))
        stored = array_over(memory) if memory.size else dense(value).copyto(mx.cpu())
        if memory.size:
            dense(value).copyto(stored)
            operate([stored], self._initial.fill(name, memory))
            stored = all_rows(stored) if value.stype == "row_sparse" else stored
        copy_all([stored], outs)
        self.keys[name] = Key(stored, index, list(outs))
        if outs and self._averages(name):
            self._announced.append(name)

    def compress(self, quantised: Quantised) -> None:
        """Compress what is pushed from now on. Raises HybridPSError once memory was laid out for a first push."""
        if any(name in self._sums or key.at_servers is not None for name, key in self.keys.items()):
            raise HybridPSError("gradients were pushed already: set the gradient compression before the first push")
        for name, key in self.keys.items():
            check_compressible(name, self._like(name)[0])
            if key.is_sparse:
                raise HybridPSError(f"key {name!r} is row-sparse, which gradient compression does not take")
        self._algorithm.compress(quantised)
        self._compression = quantised
        if self._at_servers is not None:
            self._at_servers = self._make_updates(self._at_servers.rule)

    def key(self, name: str) -> Key:
        """A key that was added. Raises LayoutError for another one."""
        if name not in self.keys:
            raise LayoutError(f"key {name!r} is unknown: broadcast or init it first ({len(self.keys)} keys are known)")
        return self.keys[name]

    def sum_in_step(self, name: str, values: Sequence[NDArray], priority: int, may_move: bool) -> Sequence[NDArray]:
        """Begin to sum the values over devices and workers; the arrays that will have the sum: one, or one a device.

        Where the servers update, these will have the weights. `may_move`: the sum shall replace the values, so that
        these may live in memory of ours.
        """
        self.key(name)
        if name in self._pushed or self._step < 0:
            self._begin(may_move)
        self._pushed[name] = values
        key, averages = self.keys[name], self._averages(name)
        if averages and key.averaged is None and name not in self._announced:
            self._announced.append(name)  # one that the store trains: it was initialised, not broadcast
        summed = self._sum(name, values, priority, in_step=True)
        if self.updater is None and not averages:
            key.stored = _kept(summed[0])
        return summed

    def sum_alone(self, name: str, values: Sequence[NDArray], priority: int) -> NDArray:
        """As `sum_in_step`, of a key that is no part of the steps; the array that will have the sum, or the weights."""
        key = self.key(name)
        if self.updater is not None and self._averages(name):
            if key.averaged is None:
                self._announced = [other for other in self._announced if other != name]
                key.averaged = self._average_together(f"weights.{name}.", [name])
            if key.averaged not in self._averaged and self._algorithm.averages(key.pushes):
                key.averaged.average(key.pushes)
        if name in self._leading and self._step >= 2 and self._before.keys() <= self._pushed.keys():
            self._begin(may_move=False)
        key.pushes += 1
        summed = self._sum(name, values, priority, in_step=False)[0]
        if self.updater is None:
            key.stored = _kept(summed)
        return summed

    def update(self, name: str, gradient: NDArray, outs: Sequence[NDArray] = ()) -> NDArray:
        """Update what is stored for a key, unless the servers did; the array that has it. `outs`: where it is to go.

        Weights that go where they were broadcast to, as the Trainer has it, are updated there, and not copied.
        """
        known = self.keys[name]
        if known.at_servers is not None:
            return gradient
        assert known.stored is not None  # as long as there is an updater
        if gradient.stype == "row_sparse" and not outs and known.pushed_and_pulled():
            outs = known.outs[:1]
        in_place = bool(outs) and same_arrays(outs, known.outs[:1])
        if in_place and known.stored is not outs[0]:
            copy_all([known.stored], outs)
            known.stored = outs[0]
        elif not in_place and known.outs and known.stored is known.outs[0]:
            known.stored = known.stored.copy()
        # MXNet's own stores give names as bytes.
        called = known.index.encode() if isinstance(known.index, str) else known.index
        gradient = gradient.as_in_context(known.stored.context)
        with same_random_numbers(getattr(self.updater, "optimizer", None), known.index):
            self.updater(called, gradient if self._scale == 1 else gradient * self._scale, known.stored)
        return known.stored

    def set_updater(self, updater: Any, store_type: str) -> None:
        """From now on what is stored is updated, at the servers where these know how. Raises as `check_precision`.

        Raises HybridPSError if only servers could update, and do not know how.
        """
        optimizer = getattr(updater, "optimizer", None)
        rule: AnyRule | None = table_rule(optimizer)
        if self._algorithm.updates and rule is None:
            rule = foreign_rule(optimizer)
            if rule is None:
                raise HybridPSError(
                    f"{store_type} updates at the servers, which cannot have {type(optimizer or updater).__name__}: "
                    "use an optimizer of mx.optimizer itself, whose settings are numbers, or another type of store"
                )
        self._schedule.agree_on(f"the optimizer {type(optimizer or updater).__name__}")
        self.updater = updater
        for name, key in self.keys.items():
            if key.stored is None:
                key.stored = self.stored(name).copy()
            key.at_servers = None
        if self._at_servers is not None:
            self._at_servers.close()
        self._at_servers = None if rule is None else self._make_updates(rule)
        self.check_precision(store_type)

    def optimizer_states(self, dump_optimizer: bool) -> bytes | None:
        """The optimizer's states, as MXNet's updaters give them; None if servers have some that others can read.

        Those of a group's servers are read by its first worker.
        """
        if self._at_servers is None:
            return self.updater.get_states(dump_optimizer)  # type: ignore[no-any-return]
        if not self._job.session.place.is_leader:
            return None
        own, there = self.updater.states, self._at_servers.pull_states()
        try:
            self.updater.states = own | {self.keys[name].index: state for name, state in there.items()}
            return self.updater.get_states(dump_optimizer)  # type: ignore[no-any-return]
        finally:
            self.updater.states = own

    @property
    def servers_have_states(self) -> bool:
        """Whether this worker has no states of its own, and those at the servers are another worker's."""
        return self._job.worker != 0 and all(self._updates_of(name) is not None for name in self.keys)

    def set_optimizer_states(self, states: bytes | None) -> bool:
        """Go on with states that `optimizer_states` gave. Whether servers have some: those are the first worker's."""
        if states is not None:
            self.updater.set_states(states)
        if self._at_servers is not None and self._job.worker == 0:
            known = {name: key.index for name, key in self.keys.items() if key.at_servers is not None}
            self._at_servers.put_states({name: self.updater.states.get(index) for name, index in known.items()})
        return self._at_servers is not None

    def stored(self, name: str) -> NDArray:
        """What `pull` gives: the centre for weights of a model that has one, else what is stored."""
        key = self.key(name)
        if key.at_servers is not None:
            return key.at_servers.weights(name)
        if key.stored is None:
            return self._gradients.slot(name)
        trained_in_steps = self.updater is None or (self._step >= 0 and not key.pushes)
        if key.outs and trained_in_steps and self._averages(name):
            self._average_announced()
            if key.averaged is not None and key.averaged in self._averaged:
                centre = key.averaged.centre(name)
                return centre if key.stored.stype == "default" else all_rows(centre)
        return key.stored

    def note_pull(self, name: str, targets: Sequence[NDArray]) -> None:
        """What is stored for the key was copied to these arrays."""
        key = self.keys[name]
        key.is_pulled = bool(targets) and same_arrays(targets, key.outs)

    def check_precision(self, store_type: str) -> None:
        """Raise HybridPSError if averaging would not reach the weights that the optimizer trains."""
        precise = getattr(getattr(self.updater, "optimizer", None), "multi_precision", False)
        if not (precise and self._algorithm.averages_weights):
            return
        if any(key.stored is not None and dtype_of(key.stored) == "float16" for key in self.keys.values()):
            raise HybridPSError(
                f"{store_type} averages the weights, and an optimizer with multi_precision=True has its own of float16 "
                "keys, in float32: leave it out, or use the algorithm sync"
            )

    def settle(self) -> None:
        """Go on without the keys of the step under way that did not come: somebody waits for those that did."""
        if self._step >= 0:
            self._sums.settle()
            if self._at_servers is not None:
                self._at_servers.settle()

    def close(self) -> None:
        """Drop the tables at the servers. May be called from any thread, once."""
        self._sums.close()
        self._sparse.close()
        if self._at_servers is not None:
            self._at_servers.close()
        for averaged in {key.averaged for key in self.keys.values() if key.averaged is not None}:
            averaged.shared.close()
        self.keys, self._averaged, self.updater, self._at_servers = {}, [], None, None

    def _begin(self, may_move: bool) -> None:
        """A key has come for the second time, or the first one has come: a step begins."""
        self._average_announced()
        self._step += 1
        if not self._step:
            self._leading = {name for name, key in self.keys.items() if key.pushes == 1 and key.is_sparse}
        self._job.steps = max(self._job.steps, self._step + 1)
        for averaged in self._averaged:
            averaged.forget_centre()
            if self._algorithm.averages(self._step):
                averaged.average(self._step)
        self._gradients.move_out_what_is_written_elsewhere()
        self._sums.begin()
        if self._at_servers is not None:
            self._at_servers.begin()
        if self._step == 2 and may_move:
            # Arrays that came in both steps so far: others may be gone before the next, as `weight.grad` is.
            before, pushed = self._before, self._pushed
            stay = {
                name: values
                for name, values in pushed.items()
                if name in self._sums and same_arrays(values, before.get(name, ()))
            }
            self._gradients.move_in({name: self._like(name) for name in stay}, stay)
        self._before, self._pushed = self._pushed, {}

    def _sum(self, name: str, values: Sequence[NDArray], priority: int, in_step: bool) -> Sequence[NDArray]:
        """The first key without memory brings all the others memory too, but for those that have no gradient.

        Row-sparse gradients need none there.
        """
        if self._compression is not None:
            for value in values:
                check_compressible(name, value)
        unknown = next((value.stype for value in values if value.stype not in ("default", "row_sparse")), None)
        if unknown is not None:
            raise HybridPSError(f"the gradient of key {name!r} is of storage type {unknown}: use default or row_sparse")
        if 0 not in values[0].shape and all(value.stype == "row_sparse" for value in values):
            self._update_rows_here(name)
            return [self._sparse.sum(name, values, self._like(name)[0], priority)]
        updates = self._updates_of(name)
        has_memory = self._sums if updates is None else updates
        if name not in has_memory:
            all_keys = not self.keys[name].may_have_gradient
            new = [
                other
                for other, key in self.keys.items()
                if other not in has_memory
                and (other == name or not key.is_sparse and (key.may_have_gradient or all_keys))
                and self._updates_of(other) is updates
            ]
            with autograd.pause():
                self._lay_out({other: self._like(other) for other in new}, updates)
        if updates is not None:
            return updates.update(name, self.keys[name].index, values, priority, in_step)
        return self._gradients.sum(name, values, priority, in_step)

    def _lay_out(self, weights: Mapping[str, Sequence[NDArray]], updates: ServerUpdates | None) -> None:
        """Make memory for these keys."""
        if updates is None:
            self._gradients.lay_out(weights)
            return
        updates.add(weights, {name: self.stored(name) for name in weights})
        if self._job.worker == 0:
            updates.put_states({name: self.updater.states.get(self.keys[name].index) for name in weights})
        for name in weights:
            self.keys[name].at_servers, self.keys[name].stored = updates, None

    def _updates_of(self, name: str) -> ServerUpdates | None:
        """What updates the key at the servers, if they do."""
        like = self._like(name)[0]
        is_empty = 0 in like.shape
        fits = not is_empty and not self.keys[name].is_sparse and dtype_of(like) in SGD.dtypes
        if self._algorithm.updates and not fits and not is_empty:
            allowed = " or ".join(SGD.dtypes)
            raise HybridPSError(
                f"key {name!r} of {dtype_of(like)} cannot be updated at the servers: use dense {allowed}"
            )
        return self._at_servers if fits else None

    def _update_rows_here(self, name: str) -> None:
        """The key has a row-sparse gradient: the workers update it from now on, as servers update no rows.

        Raises HybridPSError if the servers must update it, or have done so.
        """
        key = self.keys[name]
        key.has_rows = True
        self._updates_of(name)
        if key.at_servers is None:
            return
        if key.index in self.updater.optimizer._index_update_count:
            raise HybridPSError(
                f"key {name!r} has a row-sparse gradient after dense ones, by which servers have updated it, and they "
                "update no rows: let its first gradient be row-sparse, or convert all with tostype('default')"
            )
        key.stored, key.at_servers = self.stored(name).copy(), None

    def _make_updates(self, rule: AnyRule) -> ServerUpdates | None:
        """The keys that servers update by this rule; None where there are none."""
        algorithm = None if self._context.whole_tables else self._algorithm.updating(rule)
        if algorithm is None:
            return None
        if self._compression is not None:
            algorithm.compress(self._compression)
        self._optimizers += 1
        given = (self._schedule, algorithm, self._context, self._initial, f"updated{self._optimizers}.")
        pushes = self._context.groups if self._is_asynchronous else None
        return ServerUpdates(rule, self.updater, Gradients(*given), self._scale, pushes)

    def _average_announced(self) -> None:
        if self._announced:
            averaged = self._average_together(f"model.{len(self._averaged)}.", self._announced)
            self._averaged.append(averaged)
            for name in self._announced:
                self.keys[name].averaged = averaged
            self._announced = []

    def _average_together(self, prefix: str, names: Sequence[str]) -> AveragedWeights:
        weights = {name: self._like(name)[0] for name in names}
        specs = {name: KeySpec(dtype_of(array), array.shape) for name, array in weights.items()}
        given = (self._schedule, self._algorithm, self._context, self._initial)
        return AveragedWeights(self._trained, Weights(specs, *given, prefix))

    def _averages(self, name: str) -> bool:
        """Whether the weights of a key are averaged across groups, once the store sees them."""
        if not self._algorithm.averages_weights or not (self.keys[name].outs or self.updater):
            return False
        like = self._like(name)[0]
        return 0 not in like.shape and dtype_of(like) in FLOATS

    def _like(self, name: str) -> list[NDArray]:
        """Arrays of the shape and dtype of a key, one for each device."""
        key = self.keys[name]
        return key.outs or [key.stored if key.stored is not None else self.stored(name)]

    def _trained(self, name: str) -> list[NDArray]:
        """The arrays of a key's weights, those first that are updated: the store's, if it updates, or the user's."""
        key = self.keys[name]
        own = [key.stored] if key.stored is not None else []
        first, rest = (own, key.outs) if self.updater is not None and key.may_have_gradient else (key.outs, own)
        return [*first, *(array for array in rest if all(array is not other for other in first))]


def _kept(summed: NDArray) -> NDArray | None:
    """A sum as `Key.stored`."""
    return summed if summed.stype == "row_sparse" else None
