"""The keys of a store, and their steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from mxnet import autograd
from mxnet.ndarray import NDArray

from hybridps.algorithms import Algorithm
from hybridps.errors import LayoutError
from hybridps.job import Job
from hybridps.kvstore.arrays import array_over, copy_all, dense, dtype_of, operate, same_arrays
from hybridps.kvstore.gradient_arrays import GradientArrays
from hybridps.memory import Layout
from hybridps.step import Gradients, InitialValues, Item, JobContext, KeySpec, Schedule, Weights


class AveragedWeights:
    """MXNet's weights that are averaged together with the centre.

    `weights`: the user's arrays of each key, one for each device; the lists are looked at in each operation.
    Operations return at once, and MXNet's engine lets users of the arrays wait.
    """

    def __init__(self, weights: Mapping[str, Sequence[NDArray]], shared: Weights) -> None:
        """Begin to register the weights."""
        self._weights = dict(weights)
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
            dense(self._weights[name][0]).copyto(slot)
        operate(list(self._slots.values()), begin())
        for name, slot in self._slots.items():
            copy_all([slot], self._weights[name])


@dataclass
class Key:
    """What the store knows of a key: the user's weight arrays, one for each device, or the value stored for it."""

    weights: list[NDArray]
    broadcast: bool
    """Whether the weights are the user's own arrays, handed over by `broadcast`."""
    averaged: AveragedWeights | None = None
    """What the key is averaged with: the others of the model, or, if it is used with `push`, nothing else."""
    pushes: int = 0
    pushed: NDArray | None = None
    """The sum last pushed, where the weights are the user's own and nothing updates them."""

    @property
    def may_have_gradient(self) -> bool:
        """False for a parameter that MXNet computes no gradient for."""
        return not self.broadcast or self.weights[0].grad is not None


class Training:
    """The keys of a store, and the steps of those that come with `pushpull`.

    A step ends when a key comes for the second time. From the third step on, gradients that came in the same arrays
    twice live in memory of ours.
    """

    def __init__(self, job: Job, algorithm: Algorithm, schedule: Schedule) -> None:
        self.keys: dict[str, Key] = {}
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
        self._step = -1
        self._pushed: dict[str, Sequence[NDArray]] = {}
        self._before: dict[str, Sequence[NDArray]] = {}
        """What was pushed in the step before."""

    def add(self, name: str, value: NDArray, weights: Sequence[NDArray], broadcast: bool) -> None:
        """Take a key over, and fill `weights` with the first worker's `value`. Raises LayoutError if it is known."""
        if name in self.keys:
            raise LayoutError(f"key {name!r} is known already: a key is broadcast or initialised once in a store")
        Layout.of(dtype_of(value), {name: value.shape})  # raises LayoutError here, not on the communication thread
        memory = np.empty(value.shape, dtype_of(value))
        if memory.size:
            slot = array_over(memory)
            dense(value).copyto(slot)
            operate([slot], self._initial.fill(name, memory))
            copy_all([slot], weights)
        self.keys[name] = Key(list(weights), broadcast)
        if broadcast:
            self._announced.append(name)

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
        return self._sum(name, values, priority, in_step=True)

    def sum_alone(self, name: str, values: Sequence[NDArray], priority: int, average: bool) -> NDArray:
        """Begin to sum the values of a key that is no part of the steps; the array that will have the sum.

        `average`: its weights are trained, so they are averaged with the centre when it is time.
        """
        key = self.key(name)
        if average and self._algorithm.has_centre:
            if key.averaged is None:
                self._announced = [other for other in self._announced if other != name]
                key.averaged = self._average_together(f"weights.{name}.", [name])
            if key.averaged not in self._averaged and self._algorithm.averages(key.pushes):
                key.averaged.average(key.pushes)
        key.pushes += 1
        return self._sum(name, values, priority, in_step=False)[0]

    def stored(self, name: str) -> NDArray:
        """What `pull` gives: the centre for keys of a model that has one, else the weights, or what was pushed last."""
        key = self.key(name)
        if key.pushed is not None:
            return key.pushed
        if self._algorithm.has_centre and key.broadcast:
            self._average_announced()
            if key.averaged is not None and key.averaged in self._averaged:
                return key.averaged.centre(name)
        return key.weights[0]

    def settle(self) -> None:
        """Go on without the keys of the step under way that did not come: somebody waits for those that did."""
        if self._step >= 0:
            self._sums.settle()

    def close(self) -> None:
        """Drop the tables at the servers. May be called from any thread, once."""
        self._sums.close()
        for averaged in {key.averaged for key in self.keys.values() if key.averaged is not None}:
            averaged.shared.close()
        self.keys = {}

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
            self._gradients.move_in({name: self.keys[name].weights for name in stay}, stay)
        self._before, self._pushed = self._pushed, {}

    def _sum(self, name: str, values: Sequence[NDArray], priority: int, in_step: bool) -> Sequence[NDArray]:
        """The first key without memory brings all the others memory too, but for those that have no gradient."""
        if name not in self._sums:
            all_keys = not self.keys[name].may_have_gradient
            with autograd.pause():
                self._gradients.lay_out(
                    {
                        other: key.weights
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
        weights = {name: self.keys[name].weights for name in names}
        specs = {name: KeySpec(dtype_of(arrays[0]), arrays[0].shape) for name, arrays in weights.items()}
        given = (self._schedule, self._algorithm, self._context, self._initial)
        return AveragedWeights(weights, Weights(specs, *given, prefix))


def _arrays(views: Mapping[str, np.ndarray]) -> dict[str, NDArray]:
    return {name: array_over(view) for name, view in views.items() if view.size}
