"""The keys of a store, and their steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from hybridps.kvstore.compression import check_compressible
from hybridps.kvstore.gradient_arrays import GradientArrays
from hybridps.memory import FLOATS, Layout
from hybridps.step import Gradients, InitialValues, Item, JobContext, KeySpec, Schedule, Weights


class AveragedWeights:
    """MXNet's weights that are averaged together with the centre.

    `weights` gives the arrays that are trained of a key, one for each device. Operations return at once, and MXNet's
    engine lets users of the arrays wait.
    """

    def __init__(self, weights: Callable[[str], Sequence[NDArray]], shared: Weights) -> None:
        """Begin to register the weights."""
        self._weights = weights
        self.shared = shared
        self._slots = _arrays(shared.views)
        self._centre: dict[str, NDArray] = {}
        self._change(shared.join)

    def average(self, step: int) -> None:
        """Begin to average the weights of all keys with the centre."""
        self._change(lambda: self.shared.average(step))

    def centre(self, name: str) -> NDArray:
        """The centre of a key, in an array that the engine fills.

        The centre of all keys is read at once, and anew when a key is asked for that was taken from the last reading,
        or after `forget_centre`.
        """
        if name not in self._centre:
            item, views = self.shared.read_centre()
            self._centre = _arrays(views)
            operate(list(self._centre.values()), item)
        return self._centre.pop(name)

    def forget_centre(self) -> None:
        """What was read is old."""
        self._centre = {}

    def _change(self, begin: Callable[[], Item]) -> None:
        """Copy the weights to the slots, do what `begin` begins, and copy them back."""
        for name, slot in self._slots.items():
            dense(self._weights(name)[0]).copyto(slot)
        operate(list(self._slots.values()), begin())
        for name, slot in self._slots.items():
            copy_all([slot], self._weights(name))


@dataclass
class Key:
    """What the store knows of a key."""

    stored: NDArray | None
    """The store's own value, dense and on the CPU. None: it is the sum last pushed, which lies with the gradients."""
    outs: list[NDArray]
    """The user's weights, one for each device, if the key was broadcast."""
    is_sparse: bool
    averaged: AveragedWeights | None = None
    """What the key is averaged with: the others of the model, or, if it is used with `push`, nothing else."""
    pushes: int = 0

    @property
    def may_have_gradient(self) -> bool:
        """False for a parameter that MXNet computes no gradient for."""
        return not self.outs or self.outs[0].grad is not None


class Training:
    """The keys of a store, and the steps of those that come with `pushpull`.

    A step ends when a key comes for the second time. From the third step on, gradients that came in the same arrays
    twice live in memory of ours.
    """

    def __init__(self, job: Job, algorithm: Algorithm, schedule: Schedule) -> None:
        self.keys: dict[str, Key] = {}
        self.updater: Any = None
        """`updater(key, sum, stored)` updates what is stored, if it is not None."""
        self._job = job
        self._algorithm = algorithm
        self._schedule = schedule
        self._context = JobContext.of(job.session)
        self._initial = InitialValues(schedule, algorithm, self._context, "initial")
        self._sums = Gradients(schedule, algorithm, self._context, self._initial, "model")
        self._gradients = GradientArrays(self._sums)
        self._announced: list[str] = []
        """Keys that were broadcast, and are averaged from the next step on."""
        self._averaged: list[AveragedWeights] = []
        """Those of the model."""
        self._compresses = False
        """Whether gradients are compressed."""
        self._step = -1
        self._pushed: dict[str, Sequence[NDArray]] = {}
        self._before: dict[str, Sequence[NDArray]] = {}
        """What was pushed in the step before."""

    def add(self, name: str, value: NDArray, outs: Sequence[NDArray]) -> None:
        """Store the first worker's `value`, and fill `outs`, the user's weights, with it.

        Raises LayoutError for a key that is known, or for a dtype that cannot be summed.
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
        copy_all([stored], outs)
        self.keys[name] = Key(stored, list(outs), value.stype == "row_sparse")
        if outs and self._averages(name):
            self._announced.append(name)

    def compress(self, quantised: Quantised) -> None:
        """Compress what is pushed from now on. Raises HybridPSError once memory was laid out for a first push."""
        if any(name in self._sums for name in self.keys):
            raise HybridPSError("gradients were pushed already: set the gradient compression before the first push")
        for name, key in self.keys.items():
            check_compressible(name, self._like(name)[0])
            if key.is_sparse:
                raise HybridPSError(f"key {name!r} is row-sparse, which gradient compression does not take")
        self._algorithm.compress(quantised)
        self._compresses = True

    def key(self, name: str) -> Key:
        """A key that was added. Raises LayoutError for another one."""
        if name not in self.keys:
            raise LayoutError(f"key {name!r} is unknown: broadcast or init it first ({len(self.keys)} keys are known)")
        return self.keys[name]

    def sum_in_step(self, name: str, values: Sequence[NDArray], priority: int, may_move: bool) -> Sequence[NDArray]:
        """Begin to sum the values over devices and workers; the arrays that will have the sum: one, or one a device.

        `may_move`: the sum shall replace the values, so that these may live in memory of ours.
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
            key.stored = None
        return summed

    def sum_alone(self, name: str, values: Sequence[NDArray], priority: int) -> NDArray:
        """Begin to sum the values of a key that is no part of the steps; the array that will have the sum."""
        key = self.key(name)
        if self.updater is not None and self._averages(name):
            if key.averaged is None:
                self._announced = [other for other in self._announced if other != name]
                key.averaged = self._average_together(f"weights.{name}.", [name])
            if key.averaged not in self._averaged and self._algorithm.averages(key.pushes):
                key.averaged.average(key.pushes)
        key.pushes += 1
        summed = self._sum(name, values, priority, in_step=False)[0]
        if self.updater is None:
            key.stored = None
        return summed

    def update(self, name: str, key: int | str, gradient: NDArray, outs: Sequence[NDArray] = ()) -> NDArray:
        """Update what is stored for a key; the array that has it. `outs`: where it is to go afterwards.

        Weights that go where they were broadcast to, as the Trainer has it, are updated there, and not copied.
        """
        known = self.keys[name]
        assert known.stored is not None  # as long as there is an updater
        in_place = bool(outs) and same_arrays(outs, known.outs[:1])
        if in_place and known.stored is not outs[0]:
            copy_all([known.stored], outs)
            known.stored = outs[0]
        elif not in_place and known.outs and known.stored is known.outs[0]:
            known.stored = known.stored.copy()
        # MXNet's own stores give names as bytes.
        called = key.encode() if isinstance(key, str) else key
        self.updater(called, gradient.as_in_context(known.stored.context), known.stored)
        return known.stored

    def set_updater(self, updater: Any, store_type: str) -> None:
        """From now on what is stored is updated. Raises as `check_precision`."""
        self.updater = updater
        for name, key in self.keys.items():
            if key.stored is None:
                key.stored = self._gradients.slot(name).copy()
        self.check_precision(store_type)

    def stored(self, name: str) -> NDArray:
        """What `pull` gives: the centre for weights of a model that has one, else what is stored."""
        key = self.key(name)
        if key.stored is None:
            return self._gradients.slot(name)
        trained_in_steps = self.updater is None or (self._step >= 0 and not key.pushes)
        if key.outs and trained_in_steps and self._averages(name):
            self._average_announced()
            if key.averaged is not None and key.averaged in self._averaged:
                return key.averaged.centre(name)
        return key.stored

    def check_precision(self, store_type: str) -> None:
        """Raise HybridPSError if averaging would not reach the weights that the optimizer trains."""
        precise = getattr(getattr(self.updater, "optimizer", None), "multi_precision", False)
        if not (precise and self._algorithm.has_centre):
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

    def close(self) -> None:
        """Drop the tables at the servers. May be called from any thread, once."""
        self._sums.close()
        for averaged in {key.averaged for key in self.keys.values() if key.averaged is not None}:
            averaged.shared.close()
        self.keys, self._averaged, self.updater = {}, [], None

    def _begin(self, may_move: bool) -> None:
        """A key has come for the second time, or the first one has come: a step begins."""
        self._average_announced()
        self._step += 1
        self._job.steps = max(self._job.steps, self._step + 1)
        for averaged in self._averaged:
            averaged.forget_centre()
            if self._algorithm.averages(self._step):
                averaged.average(self._step)
        self._gradients.move_out_what_is_written_elsewhere()
        self._sums.begin()
        if self._step == 2 and may_move:
            # Arrays that came in both steps so far: others may be gone before the next, as `weight.grad` is.
            before, pushed = self._before, self._pushed
            stay = {name: values for name, values in pushed.items() if same_arrays(values, before.get(name, ()))}
            self._gradients.move_in({name: self._like(name) for name in stay}, stay)
        self._before, self._pushed = self._pushed, {}

    def _sum(self, name: str, values: Sequence[NDArray], priority: int, in_step: bool) -> Sequence[NDArray]:
        """The first key without memory brings all the others memory too, but for those that have no gradient."""
        if self._compresses:
            for value in values:
                check_compressible(name, value)
        if name not in self._sums:
            all_keys = not self.keys[name].may_have_gradient
            with autograd.pause():
                self._gradients.lay_out(
                    {
                        other: self._like(other)
                        for other, key in self.keys.items()
                        if other not in self._sums and (key.may_have_gradient or all_keys)
                    }
                )
        return self._gradients.sum(name, values, priority, in_step)

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
        if not self._algorithm.has_centre or not (self.keys[name].outs or self.updater):
            return False
        like = self._like(name)[0]
        return like.size > 0 and dtype_of(like) in FLOATS

    def _like(self, name: str) -> list[NDArray]:
        """Arrays of the shape and dtype of a key, one for each device."""
        key = self.keys[name]
        return key.outs or [key.stored if key.stored is not None else self._gradients.slot(name)]

    def _trained(self, name: str) -> list[NDArray]:
        """The arrays of a key's weights, those first that are updated: the store's, if it updates, or the user's."""
        key = self.keys[name]
        own = [key.stored] if key.stored is not None else []
        first, rest = (own, key.outs) if self.updater is not None and key.may_have_gradient else (key.outs, own)
        return [*first, *(array for array in rest if all(array is not other for other in first))]


def _arrays(views: Mapping[str, np.ndarray]) -> dict[str, NDArray]:
    return {name: array_over(view) for name, view in views.items() if view.size}
