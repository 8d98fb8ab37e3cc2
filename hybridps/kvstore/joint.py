"""The gradients that come together in each step: summed bucket by bucket, while backward computes the others."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mxnet import autograd
from mxnet.ndarray import NDArray

from hybridps.algorithms import UNDER_WAY, Algorithm
from hybridps.config import Settings
from hybridps.errors import GroupError
from hybridps.kvstore import engine
from hybridps.kvstore.arrays import array_over, is_gradient_of, is_overwritten, is_same_memory
from hybridps.kvstore.communicator import Communicator
from hybridps.kvstore.engine import Done
from hybridps.kvstore.spent import Spent
from hybridps.kvstore.weights import layouts_by_dtype
from hybridps.memory import Arena, Layout
from hybridps.mpi_groups import Session
from hybridps.tensor_collectives import Tensor

UNTOUCHED = -60000.0
"""Written where autograd should write no more; exact in every dtype, and no likely gradient."""


class Bucket(NamedTuple):
    """A run of chunks of a table, and the keys that lie in it."""

    table: str
    start: int
    stop: int
    keys: tuple[str, ...]


class Table:
    """The keys of one dtype: one arena of gradients for each device."""

    def __init__(self, layout: Layout, tensor: Tensor) -> None:
        self.layout = layout
        self.tensor = tensor
        self.arenas = [Arena(layout, vector) for vector in tensor.vectors]


class Step:
    """The gradients of one step. Keys arrive as backward finishes them, in any order."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pushed: set[str] = set()
        self.arrivals: queue.SimpleQueue[tuple[str, Done | None] | None] = queue.SimpleQueue()
        self.last_arrival = 0.0
        """When the last gradient came so far, on the monotonic clock."""

    def arrive(self, name: str, done: Done) -> None:
        """On an engine thread: the gradient is there; `done` releases it."""
        self.last_arrival = time.monotonic()
        self.arrivals.put((name, done))

    def skip(self, name: str) -> None:
        """This key comes another way."""
        self.arrivals.put((name, None))

    def close(self) -> None:
        """No further key of this step will come."""
        self.arrivals.put(None)


class Residence:
    """A gradient array of the user that was moved into the arena, and where it was before."""

    def __init__(self, weight: NDArray, gradient: NDArray, slot: NDArray) -> None:
        """Swap the memory of `gradient` and `slot`, and let autograd write to the arena."""
        gradient.copyto(slot)
        self.weight, self.gradient, self.other = weight, gradient, slot
        self._swap()
        self.other[:] = UNTOUCHED

    @property
    def holds(self) -> bool:
        """Whether the array is still where it was put: another store may have moved it on."""
        return bool(self.gradient.handle.value == self._handle)

    def was_written_elsewhere(self) -> bool:
        """Whether backward wrote to the old memory all the same. Waits for backward."""
        return bool(self.other.reshape((-1,))[0].asscalar() != UNTOUCHED)

    def leave(self) -> None:
        """Give the user's array memory of its own, with what is in it. Waits for that."""
        self.other = self.gradient.copy()
        self.other.wait_to_read()
        self._swap()

    def undo(self) -> NDArray:
        """Give the user's array its old memory again; returns an array over the slot."""
        self._swap()
        return self.other

    def _swap(self) -> None:
        fresh = self.weight._fresh_grad
        self.other.handle, self.gradient.handle = self.gradient.handle, self.other.handle
        autograd.mark_variables([self.weight], [self.gradient], "write")
        self.weight._fresh_grad = fresh  # the Trainer refuses to update with what it takes for an old gradient
        self._handle = self.gradient.handle.value


class Joint:
    """The keys of a step. Every rank makes the same, in the same order.

    `gradients`: of each key, one array for each device; all keys are on equally many.
    """

    def __init__(
        self,
        prefix: str,
        gradients: Mapping[str, Sequence[NDArray]],
        session: Session,
        algorithm: Algorithm,
        communicator: Communicator,
    ) -> None:
        self._session = session
        self._algorithm = algorithm
        self._communicator = communicator
        devices = len(next(iter(gradients.values())))
        self._tables = {
            f"{prefix}.{dtype}": Table(layout, algorithm.levels.tensor(layout.length, dtype, devices))
            for dtype, layout in layouts_by_dtype(gradients).items()
        }
        self._arena_of = {slot.key: table for table in self._tables.values() for slot in table.layout.slots}
        self._slots = {
            name: [array_over(arena.view(name)) for arena in self._arena_of[name].arenas] for name in gradients
        }
        self._residences: dict[tuple[str, int], Residence] = {}
        self._buckets = [
            bucket
            for name, table in reversed(self._tables.items())
            for bucket in _buckets(name, table.layout, session.settings)
        ]
        self._coverage = dict.fromkeys(gradients, 0)
        for bucket in self._buckets:
            for name in bucket.keys:
                self._coverage[name] += 1
        self._expected = frozenset(gradients)
        self._current: Step | None = None
        self._spent = Spent(session.events)
        communicator.submit(self._join)

    def takes(self, name: str, values: Sequence[NDArray]) -> bool:
        """Whether these values can be a part of the step under way. A key whose values do not fit is no more."""
        if name not in self._expected or self._current is None:
            return False
        if len(values) == len(self._slots[name]) and all(value.stype == "default" for value in values):
            return True
        self._expected -= {name}
        self._drop([name])
        self._current.skip(name)
        self._complete()
        return False

    def move_in(self, weights: Mapping[str, Sequence[NDArray]], gradients: Mapping[str, Sequence[NDArray]]) -> None:
        """Let backward write gradients straight into the arenas, where that is safe. Waits for them.

        Call it before the first key of a step: it looks at arrays, and those may not wait for a step that is not
        complete.
        """
        for name, arrays in gradients.items():
            if name not in self._expected:
                continue
            for device, gradient in enumerate(arrays[: len(weights.get(name, ()))]):
                weight, slot = weights[name][device], self._slots[name][device]
                if is_gradient_of(weight, gradient) and gradient.shape == slot.shape and gradient.dtype == slot.dtype:
                    kept = gradient.copy()
                    overwritten = is_overwritten(weight, gradient)
                    kept.copyto(gradient)
                    if overwritten:
                        self._residences[name, device] = Residence(weight, gradient, slot)
                        self._slots[name][device] = gradient

    def begin(self, number: int) -> None:
        """Begin a step. If keys of the last one never came, they are not expected any more."""
        self.settle()
        self._move_out_what_is_written_elsewhere()
        step = Step(number)
        self._current = step
        expected = self._expected
        self._communicator.submit(lambda: self._reduce(step, expected))

    def settle(self) -> None:
        """If keys of the step under way did not come, go on without them."""
        if self._current is not None:
            pushed = frozenset(self._current.pushed)
            self._drop(self._expected - pushed)
            self._expected = pushed
            self._current.close()
            self._current = None

    def sum(self, name: str, values: Sequence[NDArray], priority: int = 0) -> list[NDArray]:
        """Begin to sum a gradient over all workers; the arrays, one for each device, that will have the sum."""
        step, slots = self._current, self._slots[name]
        if step is None:
            raise GroupError(f"key {name!r} was pushed outside of a step")
        for device, gradient in enumerate(values):
            if not self._is_resident(name, device, gradient):
                gradient.copyto(slots[device])
        step.pushed.add(name)
        engine.push(slots, lambda done: step.arrive(name, done), priority)
        self._complete()
        return list(slots)

    def _complete(self) -> None:
        if self._current is not None and self._current.pushed >= self._expected:
            self._current = None

    def _is_resident(self, name: str, device: int, gradient: NDArray) -> bool:
        residence = self._residences.get((name, device))
        if residence is None:
            return False
        if residence.gradient is gradient and residence.holds:
            return True
        # An array that the user took before the move has what was moved, and is not written to since.
        moved = residence.other is not None and is_same_memory(residence.other, gradient)
        if moved:
            residence.gradient.wait_to_read()
        self._forget(name, device)
        return moved

    def _drop(self, names: Iterable[str]) -> None:
        """These keys will not come any more: what lies in the arenas is not theirs, and counts as zeros there."""
        for name in names:
            for device in range(len(self._slots[name])):
                residence = self._residences.get((name, device))
                if residence is not None:
                    if residence.holds:
                        residence.leave()
                    self._forget(name, device)

    def _forget(self, name: str, device: int) -> None:
        """The user's array is no longer the slot: use an array of our own over it."""
        del self._residences[name, device]
        self._slots[name][device] = array_over(self._arena_of[name].arenas[device].view(name))

    def _move_out_what_is_written_elsewhere(self) -> None:
        """A network hybridized with static shapes goes on writing to the memory that it saw first.

        What backward has not come to since the move can be told later only.
        """
        for (name, device), residence in list(self._residences.items()):
            if residence.other is None:
                continue
            if residence.holds and residence.was_written_elsewhere():
                del self._residences[name, device]
                self._slots[name][device] = residence.undo()
            elif residence.weight._fresh_grad:
                residence.other = None

    def _join(self) -> None:
        for name, table in self._tables.items():
            with self._session.watchdog.watch(f"the registration of {name}"):
                self._algorithm.join_gradients(name, table.layout)

    def _reduce(self, step: Step, expected: frozenset[str]) -> None:
        """On the communicator: bucket by bucket, the last layers first, whatever arrives first."""
        arrived: dict[str, Done | None] = {}
        left = dict(self._coverage)
        under_way: deque[Bucket] = deque()
        watch = self._session.watchdog.watch

        def finish() -> None:
            with self._spent.on("exchange"):
                self._algorithm.finish_()
            for name in under_way.popleft().keys:
                left[name] -= 1
                done = arrived.pop(name, None) if left[name] == 0 else None
                if done is not None:
                    done()

        for bucket in self._buckets:
            with watch(f"step {step.number} for gradients of {bucket.table} that this worker itself has not computed"):
                expected = _await(bucket, step, expected, arrived)
            self._clear(bucket, arrived)
            with watch(f"step {step.number} in the allreduce of {bucket.table}"), self._spent.on("group"):
                self._algorithm.reduce_(bucket.table, self._tables[bucket.table].tensor, bucket.start, bucket.stop)
                under_way.append(bucket)
                if len(under_way) > UNDER_WAY:
                    finish()
        with watch(f"step {step.number} for the servers' answer"):
            while under_way:
                finish()
        self._spent.end_step(step.last_arrival)

    def _clear(self, bucket: Bucket, arrived: Mapping[str, Done | None]) -> None:
        """Keys that did not come count as zeros: an old sum would be summed again, step by step."""
        table = self._tables[bucket.table]
        for slot in (table.layout.slot_of[name] for name in bucket.keys if arrived.get(name) is None):
            for arena in table.arenas:
                arena.flat[max(slot.start, bucket.start) : min(slot.stop, bucket.stop)] = 0


def _await(bucket: Bucket, step: Step, expected: frozenset[str], arrived: dict[str, Done | None]) -> frozenset[str]:
    """Take arrivals until all keys of the bucket are there; returns the keys expected of the step now."""
    while not all(name in arrived for name in bucket.keys if name in expected):
        arrival = step.arrivals.get()
        if arrival is None:
            expected = frozenset(step.pushed)
        else:
            arrived[arrival[0]] = arrival[1]
    return expected


def _buckets(table: str, layout: Layout, settings: Settings) -> list[Bucket]:
    """Runs of chunks, from the end of the table to its beginning: backward computes the last layers first."""
    step = settings.bytes_reduced_at_a_time // layout.itemsize
    buckets = []
    for start in range(0, layout.length, step):
        stop = min(start + step, layout.length)
        keys = tuple(slot.key for slot in layout.slots if slot.start < stop and slot.stop > start)
        buckets.append(Bucket(table, start, stop, keys))
    return buckets[::-1]
