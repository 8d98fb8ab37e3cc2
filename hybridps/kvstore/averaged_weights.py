"""MXNet's weights that are averaged across groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mxnet import autograd
from mxnet.ndarray import NDArray

from hybridps.algorithms import Algorithm
from hybridps.errors import HybridPSError
from hybridps.kvstore.arrays import arrays_over, copy_all, dense, dtype_of, is_alike, operate, order_as_usual
from hybridps.kvstore.centre import Centre
from hybridps.kvstore.moved import MovedWeight, move_weights
from hybridps.kvstore.sparse import all_rows
from hybridps.memory import FLOATS
from hybridps.step import Item, KeySpec, Weights

if TYPE_CHECKING:
    from hybridps.kvstore.key import Key


class AveragedWeights:
    """MXNet's weights that are averaged together with the centre.

    `weights` returns the trained arrays of a key, one for each device. Operations return at once; MXNet's engine makes
    users of the arrays wait. With `may_move`, weights are moved to the arena that is averaged, where that is safe;
    others are copied.
    """

    def __init__(self, weights: Callable[[str], Sequence[NDArray]], shared: Weights, may_move: bool) -> None:
        """Begin to register the weights."""
        self._weights = weights
        self.shared = shared
        self._slots = arrays_over(shared.views)
        self._may_move = may_move
        self._moved: dict[str, MovedWeight] = {}
        self._seen: dict[str, NDArray] = {}
        """The array of each key that was last considered for a move."""
        self._centre = Centre(shared.read_centre)
        self._change(shared.join)

    def average(self, step: int) -> None:
        """Begin to average the weights of all keys with the centre."""
        self._change(lambda: self.shared.average(step))

    def centre(self, name: str) -> NDArray:
        """Return the centre of a key, in an array that the engine fills."""
        return self._centre.take(name)

    def forget_centre(self) -> None:
        """Discard the centre that was read, as it is out of date."""
        self._centre.forget()

    def _change(self, begin: Callable[[], Item]) -> None:
        """Apply the operation of `begin` to the weights. Those outside the slots are copied there and back."""
        if self._may_move and not autograd.is_recording():
            self._move_in()
        for name, slot in self._slots.items():
            first = self._weights(name)[0]
            if self._lives_here(name, first):
                order_as_usual(first)
            else:
                dense(first).copyto(slot)
        operate(list(self._slots.values()), begin())
        for name, slot in self._slots.items():
            for weight in self._weights(name):
                if not self._lives_here(name, weight):
                    copy_all([slot if weight.stype == "default" else all_rows(slot)], [weight])

    def _move_in(self) -> None:
        new = {name: self._weights(name)[0] for name in self._slots}
        new = {name: weight for name, weight in new.items() if weight is not self._seen.get(name)}
        self._seen |= new
        self._moved |= move_weights(new, self._slots)

    def _lives_here(self, name: str, weight: NDArray) -> bool:
        moved = self._moved.get(name)
        return moved is not None and moved.array is weight and moved.holds


class Averaging:
    """Which `keys` of a store are averaged across groups, and when.

    `make_weights` registers weights of these specs under a prefix; its flag marks a key that is averaged alone. `like`
    as in `Updates`. `trained` returns the trained arrays of a key. `updates` returns whether the store updates.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        make_weights: Callable[[Mapping[str, KeySpec], str, bool], Weights],
        keys: Mapping[str, Key],
        like: Callable[[str], list[NDArray]],
        trained: Callable[[str], Sequence[NDArray]],
        updates: Callable[[], bool],
    ) -> None:
        self._algorithm = algorithm
        self._make_weights = make_weights
        self._keys = keys
        self._like = like
        self._trained = trained
        self._updates = updates
        self._announced: list[str] = []
        """Keys that are averaged from the next step on."""
        self._model: list[AveragedWeights] = []

    def averages(self, name: str) -> bool:
        """Return whether a key's weights are averaged across groups: they must be visible to the store, and floats."""
        if not self._algorithm.averages_weights or not (self._keys[name].outs or self._updates()):
            return False
        like = self._like(name)[0]
        return 0 not in like.shape and dtype_of(like) in FLOATS

    def announce(self, name: str) -> bool:
        """Average the key with the rest of the model from the next step on, unless it is averaged so already.

        Returns whether its weights are averaged at all.
        """
        averages = self.averages(name)
        if averages and self._keys[name].averaged not in self._model and name not in self._announced:
            self._announced.append(name)
        return averages

    def begin_step(self, step: int) -> None:
        """Begin a step, before its gradients: average the model if an exchange is due."""
        self.join_announced()
        for averaged in self._model:
            averaged.forget_centre()
            if averaged.shared.may_be_due(step):
                averaged.average(step)

    def push_alone(self, name: str) -> None:
        """Note a push outside of the steps: average the key alone, if it is not in the model and an exchange is due."""
        key = self._keys[name]
        if not self._updates() or not self.averages(name):
            return
        if key.averaged is None:
            self._announced = [other for other in self._announced if other != name]
            key.averaged = self._together(f"weights.{name}.", [name], may_move=False)
        if key.averaged not in self._model and key.averaged.shared.may_be_due(key.pushes):
            key.averaged.average(key.pushes)

    def join_announced(self) -> None:
        """Register the weights of the announced keys."""
        if self._announced:
            for name in self._announced:
                key = self._keys[name]
                if key.averaged is not None:
                    key.averaged.shared.close()  # it was used with `push`
                if not self._updates() and key.stored is not None and is_alike(key.stored, key.outs[0]):
                    key.stored = key.outs[0]  # the trained weights, from which an optimizer would continue
            averaged = self._together(f"model.{len(self._model)}.", self._announced, may_move=True)
            self._model.append(averaged)
            for name in self._announced:
                self._keys[name].averaged = averaged
            self._announced = []

    def centre(self, name: str) -> NDArray | None:
        """Return the centre of a key; None if the key is not part of the model."""
        averaged = self._keys[name].averaged
        return averaged.centre(name) if averaged is not None and averaged in self._model else None

    def check_precision(self, updater: Any, store_type: str) -> None:
        """Raise HybridPSError if averaging would not reach the weights that the optimizer trains."""
        precise = getattr(getattr(updater, "optimizer", None), "multi_precision", False)
        if not (precise and self._algorithm.averages_weights):
            return
        if any(key.stored is not None and dtype_of(key.stored) == "float16" for key in self._keys.values()):
            raise HybridPSError(
                f"{store_type} averages the weights, but an optimizer with multi_precision=True trains float32 copies "
                "of float16 keys: leave multi_precision out, or use the algorithm sync"
            )

    def close(self) -> None:
        """Drop the tables at the servers. May be called from any thread, once."""
        for averaged in {key.averaged for key in self._keys.values() if key.averaged is not None}:
            averaged.shared.close()
        self._model = []

    def _together(self, prefix: str, names: Sequence[str], may_move: bool) -> AveragedWeights:
        weights = {name: self._like(name)[0] for name in names}
        specs = {name: KeySpec(dtype_of(array), array.shape) for name, array in weights.items()}
        return AveragedWeights(self._trained, self._make_weights(specs, prefix, not may_move), may_move)
