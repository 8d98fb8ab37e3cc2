"""What an engine's threads report, and what they wait for, without Python.

The engine of a framework runs an operation when its memory is ready: an item *arrives*. If the engine's threads ran
Python then, they would wait for Python's lock in the middle of backward. Instead, the operation is a compiled function
with a *ticket*, the address of some words of memory. It writes to them how the operation is ended, and adds the ticket
to those that have arrived. One thread of the process takes these, and later ends many operations in one call.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hybridps.compiled.compiler import compiled, words_at
from hybridps.compiled.ordered import exchange, fence, load, replace, store
from hybridps.memory import ALIGNMENT, address_of, private_memory

Item = TypeVar("Item")

_WORDS = ALIGNMENT // 8
"""The number of int64 words of a ticket, and of the state. Each has a cache line for itself."""

_BEFORE = 0
"""The word of a ticket that names the ticket which arrived before it and was not taken either; 0 if there is none."""
_END = 1
"""The first of three words of a ticket: the C function that ends the operation, and its first two parameters."""
_SECONDS = 4
"""The first of two words of a ticket: the seconds and nanoseconds of the monotonic clock when it arrived."""
_STATE = 6
"""The word of a ticket with the address of the state."""

_LATEST = 0
"""The word of the state with the latest of the tickets that have arrived and were not taken; 0 if there is none."""
_SLEEP = 1
"""The word of the state that says how the taker sleeps: `_AWAKE`, or which tickets wake it."""
_AWAITED = 2
"""The first of two words of the state: the tickets that wake the taker if it sleeps `_UNTIL_AWAITED`."""
_EVENT = 4
"""The word of the state with the file descriptor that wakes the taker. The next is a `struct pollfd` for it."""
_COUNT = 6
"""The word of the state to which that descriptor is read."""

_AWAKE, _UNTIL_ANY, _UNTIL_AWAITED = 0, 1, 2
_CLOCK = time.CLOCK_MONOTONIC
_BLOCK = 256
"""The number of tickets that are made together."""

_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.int64))
_poll = types.ExternalFunction("poll", types.int32(types.int64, types.uint64, types.int32))
_eventfd_write = types.ExternalFunction("eventfd_write", types.int32(types.int32, types.uint64))
_eventfd_read = types.ExternalFunction("eventfd_read", types.int32(types.int32, types.int64))


@compiled
def arrive(ticket, end, first, second):  # type: ignore[no-untyped-def]
    """Report that a ticket has arrived, on a thread of the engine. The call `end(first, second, NULL)` will end it."""
    words = words_at(ticket, _WORDS)
    words[_END], words[_END + 1], words[_END + 2] = end, first, second
    _clock_gettime(types.int32(_CLOCK), ticket + 8 * _SECONDS)
    state = words_at(words[_STATE], _WORDS)
    while True:
        latest = load(state, _LATEST)
        words[_BEFORE] = latest
        if replace(state, _LATEST, latest, ticket):
            break
    fence()
    sleep = load(state, _SLEEP)
    is_awaited = ticket in (state[_AWAITED], state[_AWAITED + 1])
    if sleep == _UNTIL_ANY or (sleep == _UNTIL_AWAITED and is_awaited):
        _eventfd_write(types.int32(state[_EVENT]), types.uint64(1))


@compiled
def _list(latest, count, tickets, times):  # type: ignore[no-untyped-def]
    """Write the `count` tickets up to `latest`, and when they arrived, to arrays, in the order of their arrival."""
    ticket = latest
    for place in range(count - 1, -1, -1):
        words = words_at(ticket, _WORDS)
        tickets[place], times[place] = ticket, words[_SECONDS] + 1e-9 * words[_SECONDS + 1]
        ticket = words[_BEFORE]


@compiled
def _take(state, tickets, times):  # type: ignore[no-untyped-def]
    """Take what has arrived, and list it if the arrays have room. Returns the latest ticket, and how many there are."""
    count = 0
    latest = exchange(state, _LATEST, 0)
    ticket = latest
    while ticket:
        count += 1
        ticket = words_at(ticket, _WORDS)[_BEFORE]
    if count <= tickets.size:
        _list(latest, count, tickets, times)
    return latest, count


@compiled
def _sleep(state, sleep, first, second, milliseconds):  # type: ignore[no-untyped-def]
    """Sleep until something arrives, or until the time is over. `first` and `second`: the tickets that are awaited."""
    state[_AWAITED], state[_AWAITED + 1] = first, second
    store(state, _SLEEP, sleep)
    fence()
    # A ticket that arrives from here on finds the state above; one that came before is seen here.
    if not load(state, _LATEST):
        _poll(state.ctypes.data + 8 * (_EVENT + 1), types.uint64(1), types.int32(milliseconds))
    store(state, _SLEEP, _AWAKE)
    _eventfd_read(types.int32(state[_EVENT]), state.ctypes.data + 8 * _COUNT)


@intrinsic  # type: ignore[misc]
def _call(typing_context: Any, function: Any, first: Any, second: Any) -> Any:
    """Call the C function at this address with two pointers and a null pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, pointer, pointer]).as_pointer()
        given = [builder.inttoptr(address, pointer) for address in arguments[1:]]
        builder.call(builder.inttoptr(arguments[0], kind), [*given, ir.Constant(pointer, None)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@compiled
def _end(tickets):  # type: ignore[no-untyped-def]
    for i in range(tickets.size):
        words = words_at(tickets[i], _WORDS)
        _call(words[_END], words[_END + 1], words[_END + 2])


class Arrivals(Generic[Item]):
    """The tickets of items. One thread, the taker, calls all methods but `ticket` and `wake`, which any may call."""

    def __init__(self) -> None:
        self._state = private_memory(ALIGNMENT).view(np.int64)
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._state[_EVENT : _EVENT + 2] = self._event, self._event | select.POLLIN << 32
        self._blocks: list[np.ndarray] = []
        self._free: deque[int] = deque()
        self._items: dict[int, Item] = {}
        """The items of the tickets that have not been taken."""
        self._taken = np.empty(0, np.int64)
        self._times = np.empty(0)
        _open.add(self)

    def ticket(self, item: Item) -> int:
        """Return a ticket for an item, to be used once."""
        try:
            ticket = self._free.pop()
        except IndexError:
            ticket = self._make_tickets()
        self._items[ticket] = item
        return ticket

    def take(self) -> list[tuple[Item, float]]:
        """Return the items that have arrived since the last call, in that order, and when: on the monotonic clock."""
        if not self.has_any:
            return []
        latest, count = _take(self._state, self._taken, self._times)
        if count > self._taken.size:
            self._taken, self._times = np.empty(2 * count, np.int64), np.empty(2 * count)
            _list(latest, count, self._taken, self._times)
        tickets, pop = self._taken[:count].tolist(), self._items.pop
        return [(pop(ticket), time) for ticket, time in zip(tickets, self._times[:count].tolist(), strict=True)]

    def end(self, tickets: Sequence[int]) -> None:
        """End the operations of tickets that were taken."""
        _end(np.array(tickets, np.int64))
        self._free.extend(tickets)

    def sleep(self, seconds: float | None, awaited: Sequence[int] | None = None) -> None:
        """Sleep until a ticket has arrived that was not taken, or `wake` is called, or the time is over.

        It may end earlier. `awaited`: only these tickets, two at most, end the sleep if they arrive during it.
        """
        first, second = (*(awaited or ()), 0, 0)[:2]
        how = _UNTIL_ANY if awaited is None else _UNTIL_AWAITED
        _sleep(self._state, how, first, second, -1 if seconds is None else math.ceil(1000 * seconds))

    def wake(self) -> None:
        """End the sleep, or the next one."""
        os.eventfd_write(self._event, 1)

    @property
    def has_any(self) -> bool:
        """Whether any ticket has arrived that was not taken."""
        return bool(self._state[_LATEST])

    def close(self) -> None:
        """Free the memory, unless an operation may still use it. Nothing else is called from then on."""
        if len(self._free) == len(self._blocks) * _BLOCK:
            _open.discard(self)
            os.close(self._event)

    def _make_tickets(self) -> int:
        """Make more tickets, and return one of them."""
        block = private_memory(_BLOCK * ALIGNMENT).view(np.int64)
        block[_STATE::_WORDS] = address_of(self._state)
        self._blocks.append(block)
        first = address_of(block)
        self._free.extend(range(first + ALIGNMENT, first + _BLOCK * ALIGNMENT, ALIGNMENT))
        return first


_open: set[Arrivals[Any]] = set()
"""Those whose memory operations may use."""
