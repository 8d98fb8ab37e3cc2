"""Initial values: those of the first worker, on all workers of all groups."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from itertools import takewhile

import numpy as np

from hybridps.algorithms import Algorithm
from hybridps.errors import LayoutError
from hybridps.memory import Layout
from hybridps.step.inbox import Inbox
from hybridps.step.job_context import JobContext
from hybridps.step.schedule import Entry, Item, Schedule
from hybridps.tensor_collectives import Tensor, broadcast_

PART_BYTES = 64 << 20
"""Values that are agreed on at a time, so that they take little memory besides their own."""


class InitialValue(Item):
    """A value to be filled. `array`: contiguous, of a dtype of `memory.DTYPES`; it has the value when it arrives."""

    can_merge = True

    def __init__(self, name: str, array: np.ndarray, initial: InitialValues, inbox: Inbox[Entry]) -> None:
        super().__init__(f"the initial value of key {name!r}", inbox)
        self.name = name
        self.shape = f"{array.shape} of {array.dtype}"
        self.flat = array.reshape(-1)
        self._initial = initial

    def run(self, items: Sequence[Item]) -> int:
        mine, dtype = self._initial, self.flat.dtype
        mates = [
            item
            for item in takewhile(lambda item: isinstance(item, InitialValue) and item._initial is mine, items)
            if isinstance(item, InitialValue)
        ]
        mates = list(takewhile(lambda mate: mate.flat.dtype == dtype, mates))
        mine.run(mates)
        return len(mates)


class InitialValues:
    """Fills values in program order, many at a time.

    The values of all keys are one stream. For each part of it the groups first agree on the number of elements, then
    on the values; both are those of the first group. So groups need not have the same keys at hand: one that has fewer
    keeps the values that are left until it comes to their keys. A group that finds another network in the stream keeps
    its own values: the tables that it joins then have another layout, and name the key.
    """

    def __init__(self, schedule: Schedule, algorithm: Algorithm, context: JobContext, prefix: str) -> None:
        self._schedule = schedule
        self._algorithm = algorithm
        self._follows = context.groups > 1 and not context.whole_tables
        """Whether there may be another group to follow."""
        self._differs = False
        """Whether this group has found another network in the stream."""
        self._one_each = context.whole_tables
        self._prefix = prefix
        self._parts = 0
        """How many parts of the stream the groups have agreed on."""
        self._left = np.empty(0)
        """Values of keys that this group has not come to yet."""

    def fill(self, name: str, array: np.ndarray) -> Item:
        """On the program's thread: fill the array. Call the item when the array has this worker's value."""
        item = InitialValue(name, array, self, self._schedule.inbox)
        self._schedule.post(item)
        return item

    def run(self, items: Sequence[InitialValue]) -> None:
        """On the communication thread: fill values of one dtype."""
        for number, item in enumerate(items):
            if not self._left.size:
                self._left = self._agree(self._part(items[number:]), item.name)
            self._take(item.flat)
            item.finish()

    def _part(self, items: Sequence[InitialValue]) -> np.ndarray:
        """The values of the first of these items: not more than `PART_BYTES`, but one item at least."""
        nbytes = itertools.accumulate(item.flat.nbytes for item in items)
        count = 1 if self._one_each else max(1, sum(1 for total in nbytes if total <= PART_BYTES))
        return items[0].flat if count == 1 else np.concatenate([item.flat for item in items[:count]])

    def check_tables(self, layouts: Sequence[Layout]) -> None:
        """On the communication thread: the group makes these tables now.

        Raises LayoutError if the first group makes another number of tables.
        """
        if not self._follows or self._differs:
            return
        first = self._share_numbers(0, 0, len(layouts))
        if not first[0] and first[2] != len(layouts):
            kinds = ", ".join(f"key {layout.slots[0].key!r} of {layout.dtype}" for layout in layouts)
            raise LayoutError(
                f"this group has {len(layouts)} kinds of keys ({kinds}), and the first group has {first[2]}: all "
                "groups must have the same network"
            )

    def _take(self, value: np.ndarray) -> None:
        if value.size <= self._left.size and value.dtype == self._left.dtype:
            value[:] = self._left[: value.size]
            self._left = self._left[value.size :]
        elif value.size:
            self._differs = True

    def _agree(self, values: np.ndarray, key: str) -> np.ndarray:
        """The next values of the stream, from the key on: these, or those of the first group."""
        if self._differs:
            broadcast_(Tensor([values]), self._algorithm.levels.group)
            return values
        if self._follows:
            count, itemsize, _ = self._share_numbers(values.size, values.itemsize, 0)
            if not count or itemsize != values.itemsize:
                self._differs = True
                return values
            values = np.resize(values, count)
        self._parts += 1
        return self._share(f"{self._prefix}{self._parts}.values", values, key)

    def _share_numbers(self, count: int, itemsize: int, tables: int) -> tuple[int, int, int]:
        """The first group's numbers."""
        self._parts += 1
        told = self._share(f"{self._prefix}{self._parts}", np.array([count, itemsize, tables], "float64"))
        return int(told[0]), int(told[1]), int(told[2])

    def _share(self, table: str, values: np.ndarray, key: str = "numbers") -> np.ndarray:
        """The first group's values. `key`: the first one that they are of, for messages."""
        layout = Layout.of(values.dtype.name, {key: values.shape})
        flat = values if values.size == layout.length else np.resize(values, layout.length)
        self._algorithm.initialise(table, layout, Tensor([flat]))
        return flat[: values.size]
