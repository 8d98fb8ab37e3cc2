"""The keys that are communicated together: their layouts, their memory, and their steps.

The main thread pushes operations into MXNet's engine; the communicator works on the arenas. For each
dtype there is a table: one layout, one arena of gradients for each device, and one of weights.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.ndarray import NDArray

from hybridps.algorithms import Algorithm
from hybridps.config import Settings
from hybridps.errors import LayoutError
from hybridps.events import Exchanged, Registered
from hybridps.job import Job
from hybridps.kvstore import engine
from hybridps.kvstore.communicator import Communicator
from hybridps.kvstore.engine import Done
from hybridps.memory import Arena, Layout
from hybridps.tensor_collectives import Tensor

Key = str
"""A key as it stands in a layout: MXNet's `3` and `"3"` are different keys of different stores only."""

UNDER_WAY = 4
"""Buckets exchanged with the servers at a time, while the next ones are reduced in the group."""


class Bucket(NamedTuple):
    """A run of chunks of a table, and the keys that lie in it."""

    table: str
    start: int
    stop: int
    keys: tuple[Key, ...]


class Table:
    """The keys of one dtype: `gradients` is one arena for each device, `weights` one for the worker."""

    def __init__(self, name: str, layout: Layout, devices: int) -> None:
        self.name = name
        self.layout = layout
        self.gradient_arenas = [Arena(layout) for _ in range(devices)]
        self.weight_arena = Arena(layout)
        self.gradients = Tensor([arena.flat for arena in self.gradient_arenas])
        self.weights = Tensor([self.weight_arena.flat])


class Entry:
    """One key: the user's weight arrays, and arrays over its slots in the arenas of its table."""

    table: Table

    def __init__(self, key: Key, weights: Sequence[NDArray], devices: int | None = None) -> None:
        """`devices`: gradients pushed in a step. Default: one for each weight array."""
        self.key = key
        self.weights = list(weights)
        self.devices = len(self.weights) if devices is None else devices
        self.gradient_slots: list[NDArray] = []
        self.weight_slot: NDArray = None
        self._handles: list[int | None] = [None] * self.devices

    @property
    def dtype(self) -> str:
        return np.dtype(self.weights[0].dtype).name

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weights[0].shape)

    def attach(self, table: Table) -> None:
        """Make the arrays over the slots."""
        self.table = table
        self.gradient_slots = [array_over(arena.view(self.key)) for arena in table.gradient_arenas]
        self.weight_slot = array_over(table.weight_arena.view(self.key))

    def is_resident(self, device: int, gradient: NDArray) -> bool:
        """Whether this gradient array lies in the arena, so that nothing need be copied."""
        if self._handles[device] is None or self.gradient_slots[device] is not gradient:
            return False
        if self._handles[device] == gradient.handle.value:
            return True
        # Somebody else has taken the user's array over: from now on gradients are copied.
        self._handles[device] = None
        arena = self.table.gradient_arenas[device]
        self.gradient_slots[device] = array_over(arena.view(self.key))
        return False

    def move_into_arena(self, device: int, gradient: NDArray) -> bool:
        """Let backward write this gradient straight into its slot, if that is safe; whether it was.

        The handles of the user's array and of the slot are swapped, so that the user's array becomes the
        slot; and the weight is marked with it again.
        """
        weight, slot = self.weights[device], self.gradient_slots[device]
        if gradient.context.device_type != "cpu" or gradient.stype != "default" or weight.grad is None:
            return False
        if gradient.shape != slot.shape or gradient.dtype != slot.dtype or gradient.size == 0:
            return False
        gradient.copyto(slot)
        fresh = weight._fresh_grad
        request = _gradient_request(weight, gradient)
        slot.handle, gradient.handle = gradient.handle, slot.handle
        autograd.mark_variables([weight], [gradient], request)
        weight._fresh_grad = fresh  # the Trainer refuses to update with what it takes for an old gradient
        self.gradient_slots[device] = gradient
        self._handles[device] = gradient.handle.value
        return True


class Step:
    """The gradients of one step of a model. Keys arrive as backward finishes them."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pushed: set[Key] = set()
        self.arrivals: queue.SimpleQueue[tuple[Key, Done] | None] = queue.SimpleQueue()

    def arrive(self, key: Key, done: Done) -> None:
        """On an engine thread: the gradient of `key` is there; `done` releases it."""
        self.arrivals.put((key, done))

    def close(self) -> None:
        """No further key of this step will come."""
        self.arrivals.put(None)


class Model:
    """Keys that are communicated together, and their steps.

    `prefix` names the tables; models of one store need different ones. Every rank makes the same models
    in the same order.
    """

    def __init__(
        self, prefix: str, entries: Sequence[Entry], job: Job, algorithm: Algorithm, communicator: Communicator
    ) -> None:
        self.entries = {entry.key: entry for entry in entries}
        self.step = 0
        self._job = job
        self._algorithm = algorithm
        self._communicator = communicator
        devices = entries[0].devices
        for entry in entries:
            if entry.devices != devices:
                raise LayoutError(
                    f"key {entry.key!r} is on {entry.devices} devices, key {entries[0].key!r} on {devices}: "
                    "all keys of a model must be on the same devices"
                )
        self._tables = [
            Table(f"{prefix}{dtype}", layout, devices) for dtype, layout in layouts_by_dtype(entries).items()
        ]
        by_dtype = {table.layout.dtype: table for table in self._tables}
        for entry in entries:
            entry.attach(by_dtype[entry.dtype])
        self._buckets = [bucket for table in reversed(self._tables) for bucket in _buckets(table, job.session.settings)]
        coverage = dict.fromkeys(self.entries, 0)
        for bucket in self._buckets:
            for key in bucket.keys:
                coverage[key] += 1
        self._coverage = coverage
        self._expected = _with_gradient(entries)
        self._current: Step | None = None
        self._centre: dict[Key, NDArray] | None = None
        self.averaging = True
        self._each_weight(self._join)

    def expects(self, key: Key) -> bool:
        """Whether a gradient of this key is part of a step."""
        return key in self._expected

    def gradient(self, key: Key, values: Sequence[NDArray], priority: int = 0) -> list[NDArray]:
        """Begin to sum a gradient over all workers, and return the arrays, one a device, that will have it.

        `values`: the gradients, one for each device (else LayoutError). Returns at once; MXNet's engine
        lets readers of the returned arrays wait.
        """
        entry = self.entries[key]
        if len(values) != len(entry.gradient_slots):
            raise LayoutError(
                f"key {key!r} has {len(entry.gradient_slots)} devices, and {len(values)} gradients were pushed"
            )
        current = self._current
        step = self._begin() if current is None or key in current.pushed else current
        for device, gradient in enumerate(values):
            if not entry.is_resident(device, gradient) and not (
                step.number == 0 and entry.move_into_arena(device, gradient)
            ):
                gradient.tostype("default").copyto(entry.gradient_slots[device])
        step.pushed.add(key)
        engine.push(entry.gradient_slots, lambda done: step.arrive(key, done), priority)
        if step.pushed >= self._expected:
            self._current = None
        return entry.gradient_slots

    def average_now(self) -> None:
        """Begin to average the weights of all keys with the centre; later readers of them wait."""
        self._each_weight(self._average)

    def centre(self, key: Key) -> NDArray:
        """The centre of a key: an array that the engine fills. Read anew after each step."""
        if self._centre is None:
            arenas = {table.name: Arena(table.layout) for table in self._tables}
            arrays = {
                entry.key: array_over(arenas[entry.table.name].view(entry.key)) for entry in self.entries.values()
            }
            self._communicator.operation(list(arrays.values()), lambda: self._read_centre(arenas))
            self._centre = arrays
        return self._centre[key]

    def _begin(self) -> Step:
        """A new step. If keys of the last one never came, they are not expected any more."""
        if self._current is not None:
            self._expected = set(self._current.pushed)
            self._current.close()
        if self.averaging and self._algorithm.averages(self.step):
            self.average_now()
        step = Step(self.step)
        self._current = step
        expected = frozenset(self._expected)
        self._communicator.submit(lambda: self._reduce(step, expected))
        self.step += 1
        self._job.steps = max(self._job.steps, self.step)
        self._centre = None
        return step

    def _each_weight(self, work: Callable[[], None]) -> None:
        """Copy the weights into their arena, `work` on it in program order, and copy them back."""
        entries = list(self.entries.values())
        for entry in entries:
            entry.weights[0].copyto(entry.weight_slot)
        self._communicator.operation([entry.weight_slot for entry in entries], work)
        for entry in entries:
            for weight in entry.weights:
                entry.weight_slot.copyto(weight)

    def _join(self) -> None:
        for table in self._tables:
            with self._job.session.watchdog.watch(f"the registration of {table.name}"):
                late = self._algorithm.join(table.name, table.layout, table.weights)
            self._job.session.events.emit(
                Registered(table.name, self._algorithm.name, len(table.layout.slots), table.layout.nbytes, late)
            )

    def _average(self) -> None:
        for table in self._tables:
            began = time.monotonic()
            with self._job.session.watchdog.watch(f"averaging {table.name} with the centre"):
                self._algorithm.average_(table.name, table.weights)
            self._job.session.events.emit(
                Exchanged(
                    table.name,
                    self.step,
                    time.monotonic() - began,
                    table.layout.nbytes,
                    self._algorithm.distance,
                )
            )

    def _read_centre(self, arenas: dict[str, Arena]) -> None:
        for name, arena in arenas.items():
            with self._job.session.watchdog.watch(f"reading the centre of {name}"):
                self._algorithm.read_centre(name, Tensor([arena.flat]))

    def _reduce(self, step: Step, expected: frozenset[Key]) -> None:
        """On the communicator: bucket by bucket, the last layers first, whatever arrives first."""
        tables = {table.name: table for table in self._tables}
        arrived: dict[Key, Done] = {}
        left = dict(self._coverage)
        under_way: deque[Bucket] = deque()
        watch = self._job.session.watchdog.watch

        def finish() -> None:
            self._algorithm.finish_()
            for key in under_way.popleft().keys:
                left[key] -= 1
                if left[key] == 0 and key in arrived:
                    arrived.pop(key)()

        for bucket in self._buckets:
            with watch(f"step {step.number} for the gradients of {bucket.table} to be computed"):
                expected = _await(bucket, step, expected, arrived)
            with watch(f"step {step.number} in the allreduce of {bucket.table}"):
                self._algorithm.reduce_(bucket.table, tables[bucket.table].gradients, bucket.start, bucket.stop)
                under_way.append(bucket)
                if len(under_way) > UNDER_WAY:
                    finish()
        with watch(f"step {step.number} for the servers' answer"):
            while under_way:
                finish()


def layouts_by_dtype(entries: Sequence[Entry]) -> dict[str, Layout]:
    """One layout for each dtype, the keys in the order of the entries. Raises LayoutError for other dtypes."""
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for entry in entries:
        shapes.setdefault(entry.dtype, {})[entry.key] = entry.shape
    return {dtype: Layout.of(dtype, of_dtype) for dtype, of_dtype in shapes.items()}


def _await(bucket: Bucket, step: Step, expected: frozenset[Key], arrived: dict[Key, Done]) -> frozenset[Key]:
    """Take arrivals until all keys of the bucket are there; returns the keys expected of the step now."""
    while not all(key in arrived for key in bucket.keys if key in expected):
        arrival = step.arrivals.get()
        if arrival is None:
            expected = frozenset(step.pushed)
        else:
            arrived[arrival[0]] = arrival[1]
    return expected


def _buckets(table: Table, settings: Settings) -> list[Bucket]:
    """Runs of chunks, from the end of the table to its beginning: backward computes the last layers first."""
    layout = table.layout
    chunk = settings.chunk_bytes // layout.itemsize
    step = chunk * max(1, settings.bucket_bytes // settings.chunk_bytes)
    buckets = []
    for start in range(0, layout.length, step):
        stop = min(start + step, layout.length)
        keys = tuple(slot.key for slot in layout.slots if slot.start < stop and slot.stop > start)
        buckets.append(Bucket(table.name, start, stop, keys))
    return buckets[::-1]


def _with_gradient(entries: Sequence[Entry]) -> set[Key]:
    """The keys that a step brings: those with a dense gradient of autograd; all, if autograd knows none."""
    gradients = {entry.key: entry.weights[0].grad for entry in entries}
    if all(gradient is None for gradient in gradients.values()):
        return set(gradients)
    return {key for key, gradient in gradients.items() if gradient is not None and gradient.stype == "default"}


def array_over(view: np.ndarray) -> NDArray:
    """An MXNet array in the memory of `view` (which stays writable, as `from_numpy` locks only its argument)."""
    return mx.nd.from_numpy(view.view(), zero_copy=True)


def _gradient_request(weight: NDArray, gradient: NDArray) -> str:
    """How autograd writes the gradient: 'write' or 'add'. Tried out, as MXNet does not tell; destroys it."""
    gradient[:] = 1
    with autograd.record():
        nothing = weight.reshape((-1,))[0:1] * 0
    nothing.backward()
    return "add" if gradient.reshape((-1,))[0].asscalar() == 1 else "write"
