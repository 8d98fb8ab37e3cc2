"""The weights as the servers see them: averaged with the centre, and the centre itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from mxnet.ndarray import NDArray

from hybridps.algorithms import Algorithm
from hybridps.errors import GroupError
from hybridps.events import Exchanged, Registered
from hybridps.kvstore.arrays import array_over, dense, dtype_of
from hybridps.kvstore.communicator import Communicator
from hybridps.memory import Arena, Layout, shared_memory
from hybridps.mpi_groups import Session
from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives import Tensor


class Weights:
    """Keys whose weights are averaged together.

    `weights`: the user's arrays of each key, one for each device; the lists are looked at in each operation.
    `prefix` names the tables. Operations return at once, and MXNet's engine lets users of the arrays wait.
    """

    def __init__(
        self,
        prefix: str,
        weights: Mapping[str, Sequence[NDArray]],
        session: Session,
        algorithm: Algorithm,
        communicator: Communicator,
        meeting: Group,
    ) -> None:
        self._weights = dict(weights)
        self._session = session
        self._algorithm = algorithm
        self._communicator = communicator
        self._meeting = meeting
        self._arenas = {
            f"{prefix}.{dtype}": Arena(layout, shared_memory(layout.nbytes).view(dtype))
            for dtype, layout in layouts_by_dtype(self._weights).items()
        }
        self._slots = _slots(self._arenas)
        self._centre: dict[str, NDArray] = {}
        self._taken: set[str] = set()
        self._each(self._join)

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def average(self, step: int) -> None:
        """Begin to average the weights of all keys with the centre."""
        self._each(lambda: self._average(step))

    def centre(self, name: str) -> NDArray:
        """The centre of a key, in an array that the engine fills.

        The centre of all keys is read at once, and anew when a key is asked for that was taken from the last reading,
        or after `forget_centre`.
        """
        if not self._centre or name in self._taken:
            arenas = {table: Arena(arena.layout) for table, arena in self._arenas.items()}
            self._centre, self._taken = _slots(arenas), set()
            self._communicator.operation(list(self._centre.values()), lambda: self._read_centre(arenas))
        self._taken.add(name)
        return self._centre[name]

    def forget_centre(self) -> None:
        """What was read is old."""
        self._centre = {}

    def _each(self, work: Callable[[], None]) -> None:
        """Copy the weights into their arenas, `work` on those in program order, and copy them back."""
        for name, slot in self._slots.items():
            dense(self._weights[name][0]).copyto(slot)
        self._communicator.operation(list(self._slots.values()), work)
        for name, slot in self._slots.items():
            for weight in self._weights[name]:
                slot.copyto(weight)

    def _join(self) -> None:
        for table, arena in self._arenas.items():
            with self._session.watchdog.watch(f"the registration of {table}"):
                late = self._algorithm.join_weights(table, arena.layout, Tensor([arena.flat]))
            self._session.events.emit(
                Registered(table, self._algorithm.name, len(arena.layout.slots), arena.layout.nbytes, late)
            )

    def _average(self, step: int) -> None:
        self._meet(f"averaging in step {step}")
        for table, arena in self._arenas.items():
            began = time.monotonic()
            with self._session.watchdog.watch(f"the averaging of {table} with the centre"):
                self._algorithm.average_(table, Tensor([arena.flat]))
            took = time.monotonic() - began
            self._session.events.emit(Exchanged(table, step, took, arena.layout.nbytes, self._algorithm.distance))

    def _read_centre(self, arenas: dict[str, Arena]) -> None:
        self._meet("reading the centre")
        for table, arena in arenas.items():
            with self._session.watchdog.watch(f"reading the centre of {table}"):
                self._algorithm.read_centre(table, Tensor([arena.flat]))

    def _meet(self, what: str) -> None:
        """All ranks of the group must be about to do the same: one that pulls alone would spoil the others' weights."""
        with self._session.watchdog.watch(f"{what}, which all workers of the group must do alike"):
            told = [text.decode() for text in self._meeting.allgather_bytes(what.encode())]
        for rank, other in enumerate(told):
            if other != told[0]:
                if self._meeting.rank > 0:
                    self._meeting.barrier()  # rank 0 reports, and ends the group
                raise GroupError(
                    f"worker 0 of the group comes to {told[0]}, worker {rank} to {other}: "
                    "all workers of a group must call pull and pushpull in the same order"
                )


def layouts_by_dtype(arrays: Mapping[str, Sequence[NDArray]]) -> dict[str, Layout]:
    """One layout for each dtype, the keys in order. Raises LayoutError for a dtype that cannot be laid out."""
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, of_name in arrays.items():
        shapes.setdefault(dtype_of(of_name[0]), {})[name] = of_name[0].shape
    return {dtype: Layout.of(dtype, of_dtype) for dtype, of_dtype in shapes.items()}


def _slots(arenas: Mapping[str, Arena]) -> dict[str, NDArray]:
    return {slot.key: array_over(arena.view(slot.key)) for arena in arenas.values() for slot in arena.layout.slots}
