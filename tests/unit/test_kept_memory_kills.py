"""Memory of a server that outlives its process, after a kill at any point of its use."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from dying import Killer, is_killed

from hybridps.ps.server.kept import KeptMemory
from hybridps.ps.server.kept import memory as under_test

PAGE = mmap.PAGESIZE

FILL = b"x" * 9000
"""Seven of them fill the first log, so that the next one begins another log."""

CALLS: list[tuple[Any, ...]] = [
    ("open",),
    ("put", "a/1", b"one"),
    ("array", "a/table", 3 * PAGE, 1),
    ("put", "b", FILL),
    ("array", "b/table", PAGE, 2),
    ("put", "a/1", b"two"),
    ("array", "none", 0, 0),
    *(("put", f"fill {number % 2}", FILL) for number in range(7)),
    ("open",),
    ("forget", "a/"),
    ("array", "c/table", 2 * PAGE, 3),
    ("array", "d/table", 4 * PAGE, 4),
    ("put", "large", 8 * FILL),
    ("forget", "c/"),
    ("forget", "fill"),
    ("open",),
    ("array", "e/table", 2 * PAGE, 5),
    ("array", "b/table", PAGE, 6),
    ("put", "end", b"end"),
]
"""What a life does; an array is filled with the last number of its call."""

State = tuple[list[tuple[str, bytes]], dict[str, tuple[int, int]]]


def states() -> list[State]:
    """What is kept before each call and after the last one: records in their order; sizes and contents of arrays."""
    records: dict[str, bytes] = {}
    arrays: dict[str, tuple[int, int]] = {}
    found: list[State] = [([], {})]
    for what, *arguments in CALLS:
        if what == "put":
            records.pop(arguments[0], None)
            records[arguments[0]] = arguments[1]
        elif what == "array":
            arrays[arguments[0]] = (arguments[1], arguments[2])
        elif what == "forget":
            records = {key: value for key, value in records.items() if not key.startswith(arguments[0])}
            arrays = {name: has for name, has in arrays.items() if not name.startswith(arguments[0])}
        found.append(([*records.items()], dict(arrays)))
    return found


STATES = states()


def state_of(memory: KeptMemory) -> State:
    """As `states` has it. An array that is new to this call is not filled yet."""
    records = [(key, memory.get(key) or b"") for key in memory.keys("")]  # noqa: SIM118
    arrays = {}
    for name, (_, nbytes) in memory._arrays.items():
        content = memory.array(name, nbytes)
        assert not content.size or (content == content[0]).all()
        arrays[name] = (nbytes, int(content[0]) if content.size else 0)
    return records, arrays


def do(descriptor: int, memory: KeptMemory, call: tuple[Any, ...]) -> KeptMemory:
    what, *arguments = call
    if what == "open":
        return KeptMemory(descriptor)
    if what == "array":
        memory.array(*arguments[:2])[:] = arguments[2]
    else:
        getattr(memory, what)(*arguments)
    return memory


def live(descriptor: int, done: mmap.mmap, kill_at: int, opcodes: bool) -> None:
    """Make all calls, but be killed at the n-th step within the files under test."""
    folder = os.path.dirname(under_test.__file__)
    killer = Killer(kill_at, lambda path: os.path.dirname(path) == folder, opcodes)
    memory: Any = None
    for number, call in enumerate(CALLS):
        with killer.counting():
            memory = do(descriptor, memory, call)
        done[0] = number + 1


@contextmanager
def created() -> Iterator[int]:
    number = KeptMemory.create()
    try:
        yield number
    finally:
        os.close(number)


def check_free_pages(descriptor: int, memory: KeptMemory) -> None:
    """They hold zeros."""
    size = os.fstat(descriptor).st_size
    for start, stop in memory._pages._free:
        assert not any(os.pread(descriptor, min(stop, size) - start, start) if start < size else b"")


def check_after_a_kill(descriptor: int, done: int) -> None:
    """What is kept is that before the call in which the child was killed, or after it; and the next life can go on."""
    memory = KeptMemory(descriptor)
    check_free_pages(descriptor, memory)
    before, after, what = STATES[done], STATES[done + 1], CALLS[done]
    allowed = [before, after]
    if what[0] == "array":
        allowed.append((after[0], after[1] | {what[1]: (what[2], 0)}))  # the child has not filled it
    assert state_of(memory) in allowed, what
    for call in CALLS[done:]:  # one more time changes nothing
        memory = do(descriptor, memory, call)
    assert state_of(memory) == STATES[-1]
    check_free_pages(descriptor, memory)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("every", "opcodes"),
    [
        (7, False),
        pytest.param(1, False, marks=pytest.mark.nightly),
        pytest.param(1, True, marks=pytest.mark.nightly),
    ],
)
def test_a_kill_at_any_step_leaves_each_call_made_or_not_made(every: int, opcodes: bool) -> None:
    for kill_at in range(0, 1 << 30, every):
        with created() as descriptor, mmap.mmap(-1, PAGE) as done:
            if not is_killed(lambda: live(descriptor, done, kill_at, opcodes)):  # noqa: B023
                assert done[0] == len(CALLS)
                break
            check_after_a_kill(descriptor, done[0])
    assert kill_at > 500
