"""The keys of a store, and their steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.ndarray import NDArray

from hybridps.algorithms import Algorithm
from hybridps.codecs import Quantised
from hybridps.errors import HybridPSError, LayoutError
from hybridps.job import Job
from hybridps.kvstore.arrays import array_over, copy_all, dense, dtype_of, is_dense, operate, same_arrays
from hybridps.kvstore.averaged_weights import Averaging
from hybridps.kvstore.calls import check_compressible
from hybridps.kvstore.gradient_arrays import GradientArrays, UsualSums
from hybridps.kvstore.key import Key
from hybridps.kvstore.program_steps import ProgramSteps
from hybridps.kvstore.sparse import SparseArrays, all_rows
from hybridps.kvstore.updates import Updates
from hybridps.kvstore.updates.optimizers import rate_of_next_update
from hybridps.memory import Layout
from hybridps.ps.model import Joining
from hybridps.step import Gradients, InitialValues, JobContext, KeySpec, Schedule, SparseGradients, Weights

if TYPE_CHECKING:
    from hybridps.kvstore.updates.server_updates import ServerUpdates


class Training:
    """The keys of a store, and the steps of those that are used with `pushpull`.

    From the third step on, gradients that were pushed twice in the same arrays live in memory of hybridps.
    `is_asynchronous` as in `Updates`.
    """

    def __init__(self, job: Job, algorithm: Algorithm, schedule: Schedule, is_asynchronous: bool) -> None:
        self.keys: dict[str, Key] = {}
        self._job = job
        self._algorithm = algorithm
        context = JobContext.of(job.session)
        self._initial = InitialValues(schedule, algorithm, context, "initial")
        given = (schedule, algorithm, context, self._initial)
        self._sums = Gradients(*given, "model")
        self._gradients = GradientArrays(self._sums)
        self._sparse = SparseArrays(SparseGradients(*given, "rows"))
        of_keys = (self.keys, self.stored, self._like)
        self.updates = Updates(job, algorithm, schedule, self._initial, is_asynchronous, *of_keys)

        def make_weights(specs: Mapping[str, KeySpec], prefix: str, alone: bool) -> Weights:
            return Weights(specs, *given, prefix, alone)

        self._averaging = Averaging(algorithm, make_weights, self.keys, self._like, self._trained, self._store_updates)
        self._came_back = job.session.settings.life > 0
        """Whether this group may take over weights of the job in its first step, after its first gradients."""
        self._compresses = False
        """Whether gradients are compressed."""
        self._steps = ProgramSteps()
        self.usual = UsualSums(self._steps, self._sums)
        """Sums that are begun without this object."""
        self._preserved: set[str] = set()
        """Keys with a gradient that was summed elsewhere, because the program may still read it."""
        self._leading: set[str] = set()
        """Keys with row-sparse gradients that are pushed before those of a step, but whose gradients arrive last.

        From the fourth step on, the first of these keys begins a step, so that its sum comes after the others.
        """

    def add(self, name: str, index: int | str, value: NDArray, outs: Sequence[NDArray]) -> None:
        """Store the first worker's `value`, and copy it to `outs`, the user's weights.

        Raises LayoutError for a key that is known already, or for a dtype that cannot be summed.
        """
        if name in self.keys:
            raise LayoutError(f"key {name!r} is known already: a key is broadcast or initialised once in a store")
        if self._compresses:
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
        if outs:
            self._averaging.announce(name)

    def compress(self, quantised: Quantised) -> None:
        """Compress what is pushed from now on. Raises HybridPSError after a first push, or for an unsuitable key."""
        if any(name in self._sums or key.at_servers is not None for name, key in self.keys.items()):
            raise HybridPSError("gradients were pushed already: set the gradient compression before the first push")
        for name, key in self.keys.items():
            check_compressible(name, self._like(name)[0])
            if key.is_sparse:
                raise HybridPSError(f"key {name!r} is row-sparse, which gradient compression does not take")
        self._algorithm.compress(quantised)
        self.updates.compress(quantised)
        self._compresses = True

    @property
    def has_begun(self) -> bool:
        """Whether the program has begun a step."""
        return self._steps.number >= 0

    @property
    def has_pushed(self) -> bool:
        """Whether the program has pushed anything."""
        return self.has_begun or any(key.pushes for key in self.keys.values())

    def key(self, name: str) -> Key:
        """Return a key. Raises LayoutError if it was not added."""
        if name not in self.keys:
            raise LayoutError(f"key {name!r} is unknown: broadcast or init it first ({len(self.keys)} keys are known)")
        return self.keys[name]

    def set_stored(self, name: str, value: NDArray) -> None:
        """Replace the stored value of a key. From the first gradient on, the servers may have it instead."""
        stored = self.key(name).stored
        if stored is not None:
            value.copyto(stored)

    def sum_in_step(self, name: str, values: Sequence[NDArray], priority: int, in_place: bool) -> Sequence[NDArray]:
        """Begin to sum the values over devices and workers. Return the arrays for the sum: one, or one for each device.

        If the servers update, the arrays receive the weights. `in_place`: the sum replaces the values, so that these
        may live in memory of hybridps.
        """
        key = self.key(name)
        if self._steps.is_first(name):
            self._begin()
        self._steps.pushed[name] = values
        averages = self._averaging.announce(name)  # it may have been initialised, not broadcast, and be trained here
        summed = self._sum(name, values, priority, in_step=True, in_place=in_place)
        if not self._store_updates():
            if not averages:
                key.stored = _kept(summed[0])
            is_usual = in_place and len(values) == 1 and key.at_servers is None
            self.usual.note(key.index, name, self._gradients.moved(name) if is_usual else None)
        return summed

    def sum_alone(self, name: str, values: Sequence[NDArray], priority: int) -> NDArray:
        """Like `sum_in_step`, for a key outside of the steps. Return the array for the sum, or for the weights."""
        key = self.key(name)
        self._averaging.push_alone(name)
        if name in self._leading and self._steps.number >= 2 and self._steps.has_all:
            self._begin()
        key.pushes += 1
        summed = self._sum(name, values, priority, in_step=False)[0]
        if not self._store_updates():
            key.stored = _kept(summed)
        return summed

    def set_updater(self, updater: Any, store_type: str) -> None:
        """Update the stored values by `updater` from now on. Raises HybridPSError if that is not possible."""
        self.usual.forget()
        self.updates.set_updater(updater, store_type)
        self.check_precision(store_type)

    def check_precision(self, store_type: str) -> None:
        """Raise HybridPSError if averaging would not reach the weights that the optimizer trains."""
        self._averaging.check_precision(self.updates.updater, store_type)

    def stored(self, name: str) -> NDArray:
        """Return what `pull` copies: the centre for weights of a model that has one, else the stored value."""
        key = self.key(name)
        if key.at_servers is not None:
            return key.at_servers.weights(name)
        if key.stored is None:
            return self._gradients.slot(name)
        trained_in_steps = not self._store_updates() or (self.has_begun and not key.pushes)
        if key.outs and trained_in_steps and self._averaging.averages(name):
            if not self._algorithm.has_centre:
                return key.stored if self._store_updates() else dense(key.outs[0])
            self._averaging.join_announced()
            centre = self._averaging.centre(name)
            if centre is not None:
                return centre if key.stored.stype == "default" else all_rows(centre)
        return key.stored

    def note_pull(self, name: str, targets: Sequence[NDArray]) -> None:
        """Note that the stored value of a key was copied to these arrays."""
        key = self.keys[name]
        key.is_pulled = bool(targets) and same_arrays(targets, key.outs)

    def settle(self) -> None:
        """End the step under way without the keys that are missing: somebody waits for the others."""
        if self.has_begun:
            self._sums.settle()
            self.updates.settle()

    def close(self) -> None:
        """Drop the tables at the servers. May be called from any thread, once."""
        self._sums.close()
        self._sparse.close()
        self.updates.close()
        self._averaging.close()
        self.usual.forget()
        self.keys.clear()

    def _begin(self) -> None:
        """Begin a step."""
        came = self._steps.begin(self.keys)
        step = self._steps.number
        if not step:
            self._leading = {name for name, key in self.keys.items() if key.pushes == 1 and key.is_sparse}
        self._job.steps = max(self._job.steps, step + 1)
        optimizer = getattr(self.updates.updater, "optimizer", None)
        if optimizer is not None and self._algorithm.row.rho is not None:
            self._algorithm.note_rate(step, rate_of_next_update(optimizer))
        self._averaging.begin_step(step)
        self._gradients.move_out_what_is_written_elsewhere()
        self._sums.begin()
        weights = {name: self._like(name) for name in came}
        self.updates.begin(weights, came)
        in_place = {name: arrays for name, arrays in came.items() if name in self._sums and name not in self._preserved}
        self._gradients.move_in(weights, in_place)

    def _sum(
        self, name: str, values: Sequence[NDArray], priority: int, in_step: bool, in_place: bool = False
    ) -> Sequence[NDArray]:
        """Begin to sum a key. Return the arrays for the sum."""
        if not in_place:
            self._preserved.add(name)
        if self._compresses:
            for value in values:
                check_compressible(name, value)
        if sparse := [value for value in values if not is_dense(value)]:
            if unknown := ", ".join(sorted({value.stype for value in sparse} - {"row_sparse"})):
                raise HybridPSError(
                    f"the gradient of key {name!r} is of storage type {unknown}: use default or row_sparse"
                )
            if len(sparse) == len(values) and 0 not in values[0].shape:
                self.updates.take_back(name)
                values = self._of_these_weights(name, values, in_step)
                return [self._sparse.sum(name, values, self._like(name)[0], priority)]
            values = [dense(value) for value in values]
        servers = self.updates.at_servers(name)
        self._allocate(name, servers)
        values = self._of_these_weights(name, values, in_step)
        if servers is not None:
            return servers.update(name, self.keys[name].index, values, priority, in_step)
        return self._gradients.sum(name, values, priority, in_step, in_place=in_place)

    def _allocate(self, name: str, servers: ServerUpdates | None) -> None:
        """Allocate memory for the gradients of a key, here or for the `servers` that update it.

        The first key without memory allocates it for all others too, except those without a gradient. Row-sparse
        gradients need no memory there.
        """
        has_memory = self._sums if servers is None else servers
        if name in has_memory:
            return
        all_keys = not self.keys[name].may_have_gradient
        new = [
            other
            for other, key in self.keys.items()
            if other not in has_memory
            and (other == name or not key.is_sparse and (key.may_have_gradient or all_keys))
            and self.updates.at_servers(other) is servers
        ]
        weights = {other: self._like(other) for other in new}
        with autograd.pause():
            if servers is None:
                self._gradients.lay_out(weights)
            else:
                self.updates.hand_over(weights, servers)

    def _of_these_weights(self, name: str, values: Sequence[NDArray], in_step: bool) -> Sequence[NDArray]:
        """Return the gradients of a key; zeros for the first ones if the job has replaced the weights they belong to.

        This is the case if the group came back, or if the servers had the weights from a snapshot.
        """
        is_first = not self._steps.number if in_step else self.keys[name].pushes == 1
        if not is_first:
            return values
        servers = self.keys[name].at_servers
        # Synchronous groups are restarted together, so a restarted group adopts no weights.
        adopts = self._averaging.averages(name) or (
            self._store_updates() and self._algorithm.tier.has_servers and not self._algorithm.is_synchronous
        )
        replaced = (self._came_back and adopts) or (servers is not None and servers.joined is Joining.SNAPSHOT)
        return [mx.nd.zeros_like(value.as_nd_ndarray()) for value in values] if replaced else values

    def _store_updates(self) -> bool:
        return self.updates.updater is not None

    def _like(self, name: str) -> list[NDArray]:
        """Return arrays of the shape and dtype of a key, one for each device."""
        key = self.keys[name]
        if key.outs:
            return key.outs
        slot = key.at_servers.slot(name) if key.at_servers is not None else None
        return [slot if slot is not None else key.stored if key.stored is not None else self._gradients.slot(name)]

    def _trained(self, name: str) -> list[NDArray]:
        """Return the arrays of a key's weights. Updated ones come first: the store's if it updates, or the user's."""
        key = self.keys[name]
        own = [key.stored] if key.stored is not None else []
        first, rest = (own, key.outs) if self._store_updates() and key.may_have_gradient else (key.outs, own)
        return [*first, *(array for array in rest if all(array is not other for other in first))]


def _kept(summed: NDArray) -> NDArray | None:
    """Return a sum in the form of `Key.stored`."""
    return None if is_dense(summed) else summed
