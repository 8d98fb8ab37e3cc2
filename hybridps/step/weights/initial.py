"""Initial values: all workers of all groups get those of the first worker."""

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
from hybridps.step.schedule import Item, Schedule
from hybridps.tensor_collectives import Tensor, broadcast_

PART_BYTES = 64 << 20
"""The size of values that the groups agree on together. It is small, so that copies take little memory."""


class InitialValue(Item):
    """A value to be filled. `array`: contiguous, of a dtype of `memory.DTYPES`; it has the value on arrival."""

    can_merge = True

    def __init__(self, name: str, array: np.ndarray, initial: InitialValues, inbox: Inbox) -> None:
        super().__init__(inbox)
        self.title = f"the initial value of key {name!r}"
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

    The values of all keys are one stream. For each part of it, the groups first agree on the number of elements, then
    on the values; both are those of the first group. So groups need not have the same keys at the same time: one that
    has fewer keeps the remaining values until it reaches their keys. A group that finds another network in the stream
    keeps its own values. The tables that it then joins have another layout, and the error names the key.

    A stream ends when tables are made, and the next key begins another one. How many keys travel together depends on
    when they arrive. So a group that comes too late for one part keeps its own values for the rest of the stream.
    """

    def __init__(self, schedule: Schedule, algorithm: Algorithm, context: JobContext, prefix: str) -> None:
        self._schedule = schedule
        self._algorithm = algorithm
        may_follow = context.groups > 1 or algorithm.tier.has_servers  # groups may join, and a group be restarted
        self._follows = may_follow and not context.whole_tables
        """Whether there may be another group to follow, or an earlier life of this one."""
        self._differs = False
        """Whether this group has found another network in the stream."""
        self._one_each = context.whole_tables
        self._prefix = prefix
        self._streams = 0
        """The number of streams that have ended."""
        self._parts = 0
        """The number of tables that this stream has used so far."""
        self._is_late = False
        """Whether this group has come too late for the stream."""
        self._left = np.empty(0)
        """Values of keys that this group has not reached yet."""

    def fill(self, name: str, array: np.ndarray) -> Item:
        """Fill the array. Call the returned item when the array has this worker's value. On the program's thread."""
        item = InitialValue(name, array, self, self._schedule.inbox)
        self._schedule.post(item)
        return item

    def run(self, items: Sequence[InitialValue]) -> None:
        """Fill values of one dtype. On the communication thread."""
        for number, item in enumerate(items):
            if not self._left.size:
                self._left = self._agree(self._part(items[number:]), item.name)
            self._take(item.flat)
            item.finish()

    def _part(self, items: Sequence[InitialValue]) -> np.ndarray:
        """Return the values of the first of these items: at most `PART_BYTES`, but at least one item."""
        nbytes = itertools.accumulate(item.flat.nbytes for item in items)
        count = 1 if self._one_each else max(1, sum(1 for total in nbytes if total <= PART_BYTES))
        return items[0].flat if count == 1 else np.concatenate([item.flat for item in items[:count]])

    def check_tables(self, layouts: Sequence[Layout]) -> None:
        """Check the tables that this group makes now. On the communication thread.

        Raises LayoutError if the first group makes another number of tables.
        """
        if not self._follows or self._differs:
            return
        count, _, tables = self._share_numbers(0, 0, len(layouts))
        if not count and tables != len(layouts):
            kinds = ", ".join(f"key {layout.slots[0].key!r} of {layout.dtype}" for layout in layouts)
            raise LayoutError(
                f"this group has {len(layouts)} kinds of keys ({kinds}), and the first group has {tables}: all groups "
                "must have the same network"
            )
        self._streams, self._parts, self._is_late = self._streams + 1, 0, False

    def _take(self, value: np.ndarray) -> None:
        if value.size <= self._left.size and value.dtype == self._left.dtype:
            value[:] = self._left[: value.size]
            self._left = self._left[value.size :]
        elif value.size:
            self._differs = True

    def _agree(self, values: np.ndarray, key: str) -> np.ndarray:
        """Return the next values of the stream, from the key on: these, or those of the first group."""
        if self._follows and not self._differs:
            count, itemsize, _ = self._share_numbers(values.size, values.itemsize, 0)
            if not count or itemsize != values.itemsize:
                self._differs = True
                return values
            values = np.resize(values, count)
        return self._share("values", values, key)

    def _share_numbers(self, count: int, itemsize: int, tables: int) -> tuple[int, int, int]:
        """Return the first group's numbers."""
        told = self._share("numbers", np.array([count, itemsize, tables], "float64"), "numbers")
        return int(told[0]), int(told[1]), int(told[2])

    def _share(self, what: str, values: np.ndarray, key: str) -> np.ndarray:
        """Return the first group's values, or its own. `key`: the first key that they belong to, for messages."""
        if self._differs or self._is_late:
            broadcast_(Tensor([values]), self._algorithm.levels.group)
            return values
        self._parts += 1
        layout = Layout.of(values.dtype.name, {key: values.shape})
        flat = values if values.size == layout.length else np.resize(values, layout.length)
        table = f"{self._prefix}{self._streams}.{self._parts}.{what}"
        self._is_late = self._algorithm.initialise(table, layout, Tensor([flat])) and self._follows
        return flat[: values.size]
