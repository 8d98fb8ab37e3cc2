"""The keys of a store, and their steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from mxnet import autograd
from mxnet.ndarray import NDArray

from hybridps.algorithms import Algorithm
from hybridps.errors import LayoutError
from hybridps.job import Job
from hybridps.kvstore import engine
from hybridps.kvstore.arrays import array_over, copy_all, dense, dtype_of, same_arrays
from hybridps.kvstore.averaged import AveragedWeights
from hybridps.kvstore.gradient_arrays import GradientArrays
from hybridps.memory import Layout
from hybridps.step import Gradients, InitialValues, JobContext, KeySpec, Schedule, Weights


class Key:
    """What the store knows of a key: the user's weight arrays, one for each device, or the value stored for it."""

    def __init__(self, weights: Sequence[NDArray], broadcast: bool) -> None:
        self.weights = list(weights)
        self.broadcast = broadcast
        """Whether the weights are the user's own arrays, handed over by `broadcast`."""
        self.own_weights: AveragedWeights | None = None
        """For a key used with `push`: what averages it alone."""
        self.pushes = 0
        self.pushed: NDArray | None = None
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
        self._announced: dict[str, Sequence[NDArray]] = {}
        self._averaged: list[AveragedWeights] = []
        self._step = -1
        self._pushed: dict[str, Sequence[NDArray]] = {}
        self._before: dict[str, Sequence[NDArray]] = {}
        """What was pushed in the step before."""

    def add(self, name: str, value: NDArray, weights: Sequence[NDArray], broadcast: bool) -> None:
        """Take a key over, and fill `weights` with the first worker's `value`. Raises LayoutError if it is known."""
        if name in self.keys:
            raise LayoutError(f"key {name!r} is known already: a key is broadcast or initialised once in a store")
        self._initialise(name, value, weights)
        self.keys[name] = Key(weights, broadcast)
        if broadcast:
            self._announced[name] = self.keys[name].weights

    def has(self, dtype: str) -> bool:
        """Whether there is a key of that dtype."""
        return any(dtype_of(key.weights[0]) == dtype for key in self.keys.values())

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
        if average and self._algorithm.has_centre and self._averaged_with(name) is None:
            if key.own_weights is None:
                self._announced.pop(name, None)
                key.own_weights = self._average_together(f"weights.{name}.", {name: key.weights})
            if self._algorithm.averages(key.pushes):
                key.own_weights.average(key.pushes)
        key.pushes += 1
        return self._sum(name, values, priority, in_step=False)[0]

    def stored(self, name: str) -> NDArray:
        """What `pull` gives: the centre for keys of a model that has one, else the weights, or what was pushed last."""
        key = self.key(name)
        if key.pushed is not None:
            return key.pushed
        if self._algorithm.has_centre and key.broadcast and key.own_weights is None:
            self._average_announced()
            averaged = self._averaged_with(name)
            if averaged is not None:
                return averaged.centre(name)
        return key.weights[0]

    def settle(self) -> None:
        """Go on without the keys of the step under way that did not come: somebody waits for those that did."""
        if self._step >= 0:
            self._sums.settle()

    def close(self) -> None:
        """Drop the tables at the servers. May be called from any thread, once."""
        self._sums.close()
        for averaged in self._averaged + [key.own_weights for key in self.keys.values() if key.own_weights]:
            averaged.close()
        self.keys = {}

    def _initialise(self, name: str, value: NDArray, weights: Sequence[NDArray]) -> None:
        Layout.of(dtype_of(value), {name: value.shape})  # raises LayoutError here, not on the communication thread
        memory = np.empty(value.shape, dtype_of(value))
        if memory.size:
            slot = array_over(memory)
            dense(value).copyto(slot)
            engine.push([slot], self._initial.fill(name, memory))
            copy_all([slot], weights)

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
            self._move_in()
        self._before, self._pushed = self._pushed, {}

    def _move_in(self) -> None:
        """Those arrays that came in both steps so far: others may be gone before the next, as `weight.grad` is."""
        before = self._before
        stay = {name: values for name, values in self._pushed.items() if same_arrays(values, before.get(name, ()))}
        self._gradients.move_in({name: self.keys[name].weights for name in stay}, stay)

    def _sum(self, name: str, values: Sequence[NDArray], priority: int, in_step: bool) -> Sequence[NDArray]:
        if name not in self._gradients:
            with autograd.pause():
                self._gradients.lay_out(self._without_memory(name))
        return self._gradients.sum(name, values, priority, in_step)

    def _without_memory(self, name: str) -> Mapping[str, Sequence[NDArray]]:
        """The keys that get memory for gradients now that this one needs it: all, but for those without a gradient."""
        found = {other: key for other, key in self.keys.items() if other not in self._gradients}
        if found[name].may_have_gradient:
            found = {other: key for other, key in found.items() if key.may_have_gradient}
        return {other: key.weights for other, key in found.items()}

    def _averaged_with(self, name: str) -> AveragedWeights | None:
        """Those that a key is averaged with, if it is with others."""
        return next((averaged for averaged in self._averaged if name in averaged), None)

    def _average_announced(self) -> None:
        if self._announced:
            self._averaged.append(self._average_together(f"model.{len(self._averaged)}.", self._announced))
            self._announced = {}

    def _average_together(self, prefix: str, weights: Mapping[str, Sequence[NDArray]]) -> AveragedWeights:
        specs = {name: KeySpec(dtype_of(arrays[0]), arrays[0].shape) for name, arrays in weights.items()}
        given = (self._schedule, self._algorithm, self._context, self._initial)
        return AveragedWeights(weights, Weights(specs, *given, prefix))
