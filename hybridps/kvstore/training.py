"""Which keys come together: learned from the first step, summed jointly from the second on."""

from __future__ import annotations

from collections.abc import Sequence

from mxnet.ndarray import NDArray

from hybridps.algorithms import Algorithm
from hybridps.errors import LayoutError
from hybridps.job import Job
from hybridps.kvstore.arrays import dtype_of, same_arrays
from hybridps.kvstore.communicator import Communicator
from hybridps.kvstore.joint import Joint
from hybridps.kvstore.single import Single
from hybridps.kvstore.weights import Weights


class Key:
    """What the store knows of a key: the user's weight arrays, one for each device, or the value stored for it."""

    def __init__(self, weights: Sequence[NDArray], single: Single, broadcast: bool) -> None:
        self.weights = list(weights)
        self.single = single
        self.broadcast = broadcast
        """Whether the weights are the user's own arrays, handed over by `broadcast`."""
        self.own_weights: Weights | None = None
        """For a key used with `push`: what averages it alone."""
        self.pushes = 0
        self.pushed: NDArray | None = None
        """The sum last pushed, where the weights are the user's own and nothing updates them."""


class Training:
    """The keys of a store, and the steps of those that come with `pushpull`.

    A step ends when a key comes for the second time. In the first step each key is summed alone, in the order of
    the program, as nobody has said yet which keys there are. From the second on, the keys that came in the
    first are summed jointly; from the third on, in memory of ours those that came in the same arrays twice.
    """

    def __init__(self, job: Job, algorithm: Algorithm, communicator: Communicator) -> None:
        self.keys: dict[str, Key] = {}
        self._job = job
        self._algorithm = algorithm
        self._communicator = communicator
        self._meeting = job.session.group.split(0)
        self._announced: dict[str, Sequence[NDArray]] = {}
        self._weights: list[Weights] = []
        self._step = -1
        self._pushed: dict[str, Sequence[NDArray]] = {}
        self._before: dict[str, Sequence[NDArray]] = {}
        """What was pushed in the step before."""
        self._joint: Joint | None = None

    def add(self, name: str, value: NDArray, weights: Sequence[NDArray], broadcast: bool) -> None:
        """Take a key over, and fill `weights` with the first worker's `value`. Raises LayoutError if it is known."""
        if name in self.keys:
            raise LayoutError(f"key {name!r} is known already: a key is broadcast or initialised once in a store")
        single = Single(name, value, self._job.session, self._algorithm, self._communicator)
        single.initialise(value, weights)
        self.keys[name] = Key(weights, single, broadcast)
        if broadcast:
            self._announced[name] = self.keys[name].weights

    def has(self, dtype: str) -> bool:
        """Whether there is a key of that dtype."""
        return any(dtype_of(key.weights[0]) == dtype for key in self.keys.values())

    def key(self, name: str) -> Key:
        if name not in self.keys:
            raise LayoutError(f"key {name!r} is unknown: broadcast or init it first ({len(self.keys)} keys are known)")
        return self.keys[name]

    def sum_in_step(self, name: str, values: Sequence[NDArray], priority: int, may_move: bool) -> list[NDArray]:
        """Begin to sum the values over devices and workers; the arrays that will have the sum: one, or one a device.

        `may_move`: the sum shall replace the values, so that these may live in memory of ours.
        """
        key = self.key(name)
        if name in self._pushed or self._step < 0:
            self._begin(may_move)
        self._pushed[name] = values
        if self._joint is not None and self._joint.takes(name, values):
            return self._joint.sum(name, values, priority)
        return key.single.sum(values, priority)

    def sum_alone(self, name: str, values: Sequence[NDArray], priority: int, average: bool) -> NDArray:
        """Begin to sum the values of a key that comes by itself; the array that will have the sum.

        `average`: its weights are trained, so they are averaged with the centre when it is time.
        """
        key = self.key(name)
        if average and self._algorithm.has_centre and self._weights_of(name) is None:
            if key.own_weights is None:
                self._announced.pop(name, None)
                key.own_weights = self._make_weights(f"weights.{name}", {name: key.weights})
            if self._algorithm.averages(key.pushes):
                key.own_weights.average(key.pushes)
        key.pushes += 1
        return key.single.sum(values, priority)[0]

    def stored(self, name: str) -> NDArray:
        """What `pull` gives: the centre for keys of a model that has one, else the weights, or what was pushed last."""
        key = self.key(name)
        if key.pushed is not None:
            return key.pushed
        if self._algorithm.has_centre and key.broadcast and key.own_weights is None:
            self._join_announced()
            weights = self._weights_of(name)
            if weights is not None:
                return weights.centre(name)
        return key.weights[0]

    def settle(self) -> None:
        """Go on without the keys of the step under way that did not come: somebody waits for those that did."""
        if self._joint is not None:
            self._joint.settle()

    def _begin(self, may_move: bool) -> None:
        """A key has come for the second time, or the first one has come: a step begins."""
        self._join_announced()
        self._step += 1
        self._job.steps = max(self._job.steps, self._step + 1)
        for weights in self._weights:
            weights.forget_centre()
            if self._algorithm.averages(self._step):
                weights.average(self._step)
        if self._step == 1:
            self._joint = self._make_joint()
        if self._joint is not None:
            self._joint.begin(self._step)
            if self._step == 2 and may_move:
                self._move_in(self._joint)
        self._before, self._pushed = self._pushed, {}

    def _move_in(self, joint: Joint) -> None:
        """Those arrays that came in both steps so far: others may be gone before the next, as `weight.grad` is."""
        before = self._before
        stay = {name: values for name, values in self._pushed.items() if same_arrays(values, before.get(name, ()))}
        joint.move_in({name: self.keys[name].weights for name in stay}, stay)

    def _make_joint(self) -> Joint | None:
        """Of the keys of the first step: all that are dense and on as many devices as the first."""
        dense = {name: values for name, values in self._pushed.items() if _all_dense(values)}
        if not dense:
            return None
        devices = len(next(iter(dense.values())))
        gradients = {name: values for name, values in dense.items() if len(values) == devices}
        joint = Joint("joint", gradients, self._job.session, self._algorithm, self._communicator)
        for name in gradients:
            self.keys[name].single.release()
        return joint

    def _weights_of(self, name: str) -> Weights | None:
        """Those that a key is averaged with, if it is with others."""
        return next((weights for weights in self._weights if name in weights), None)

    def _join_announced(self) -> None:
        if self._announced:
            prefix = f"weights{len(self._weights)}"
            self._weights.append(self._make_weights(prefix, self._announced))
            self._announced = {}

    def _make_weights(self, prefix: str, weights: dict[str, Sequence[NDArray]]) -> Weights:
        return Weights(prefix, weights, self._job.session, self._algorithm, self._communicator, self._meeting)


def _all_dense(values: Sequence[NDArray]) -> bool:
    return all(value.stype == "default" for value in values)
