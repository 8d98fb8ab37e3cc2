"""The sum of one key alone, in the order of the program."""

from __future__ import annotations

from collections.abc import Sequence

import mxnet as mx
from mxnet.ndarray import NDArray

from hybridps.algorithms import Algorithm
from hybridps.kvstore.arrays import array_over, copy_all, dense, dtype_of
from hybridps.kvstore.communicator import Communicator
from hybridps.memory import Arena, Layout
from hybridps.mpi_groups import Session
from hybridps.tensor_collectives import Tensor


class Single:
    """A key's table of its own: for its initial value, and for sums that do not come with others in each step."""

    def __init__(
        self, name: str, like: NDArray, session: Session, algorithm: Algorithm, communicator: Communicator
    ) -> None:
        self._name = name
        self._session = session
        self._algorithm = algorithm
        self._communicator = communicator
        self._layout = Layout.of(dtype_of(like), {name: like.shape})
        self._joined = False
        self._memory: tuple[NDArray, Tensor] | None = None

    def release(self) -> None:
        """Give the memory back; it is taken again when it is needed."""
        self._memory = None

    def _take(self) -> tuple[NDArray, Tensor]:
        """The array and the tensor of the key, in the same memory."""
        if self._memory is None:
            arena = Arena(self._layout)
            self._memory = array_over(arena.view(self._name)), Tensor([arena.flat])
        return self._memory

    def initialise(self, value: NDArray, outs: Sequence[NDArray]) -> None:
        """Fill `outs` with the first worker's `value`, on all workers of all groups."""
        slot, tensor = self._take()
        dense(value).copyto(slot)
        self._communicator.operation([slot], lambda: self._initialise(tensor))
        copy_all([slot], outs)

    def sum(self, values: Sequence[NDArray], priority: int = 0) -> list[NDArray]:
        """Begin to sum the values over devices and workers; the one array that will have the sum."""
        parts = [dense(value).as_in_context(values[0].context) for value in values]
        slot, tensor = self._take()
        (mx.nd.add_n(*parts) if len(parts) > 1 else parts[0]).copyto(slot)
        self._communicator.operation([slot], lambda: self._reduce(tensor), priority)
        return [slot]

    def _initialise(self, tensor: Tensor) -> None:
        with self._session.watchdog.watch(f"the initial value of key {self._name}"):
            self._algorithm.initialise(self._name, self._layout, tensor)

    def _reduce(self, tensor: Tensor) -> None:
        with self._session.watchdog.watch(f"the sum of key {self._name}"):
            if not self._joined:
                self._algorithm.join_gradients(self._name, self._layout)
                self._joined = True
            self._algorithm.reduce_(self._name, tensor, 0, self._layout.length)
            self._algorithm.finish_()
