"""Memory of a server that outlives its process: what is kept, under random use, and after a kill at any point of it."""

from __future__ import annotations

import mmap
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hybridps.errors import ServerError
from hybridps.ps.server.kept import KeptMemory
from hybridps.ps.server.kept import memory as under_test

PAGE = mmap.PAGESIZE


@pytest.fixture
def descriptor() -> Iterator[int]:
    with created() as number:
        yield number


@contextmanager
def created() -> Iterator[int]:
    number = KeptMemory.create()
    try:
        yield number
    finally:
        os.close(number)


def touched_bytes(descriptor: int) -> int:
    """Memory that the system has given out."""
    return os.fstat(descriptor).st_blocks * 512


def test_the_next_life_finds_what_was_kept(descriptor: int) -> None:
    first = KeptMemory(descriptor)
    assert (first.life, first.get("job/a"), first.keys("")) == (0, None, [])
    array = first.array("table", 3 * PAGE + 5)
    assert (array.dtype, array.shape, array.any()) == (np.uint8, (3 * PAGE + 5,), False)
    assert array.__array_interface__["data"][0] % PAGE == 0
    array[:] = 7
    first.put("job/a", b"one")
    first.put("job/b", b"")
    first.put("other", bytes(range(256)))
    first.put("job/a", b"two")
    first.close()
    second = KeptMemory(descriptor)
    assert (second.life, second.get("job/a"), second.get("job/b")) == (1, b"two", b"")
    assert second.get("other") == bytes(range(256))
    assert second.keys("job/") == ["job/b", "job/a"]
    assert (second.array("table", 3 * PAGE + 5) == 7).all()
    assert array[0] == 7, "an array stays after `close`"
    assert KeptMemory(descriptor).life == 2


def test_an_array_has_one_size(descriptor: int) -> None:
    memory = KeptMemory(descriptor)
    memory.array("table", 10)
    with pytest.raises(ServerError, match="'table' has 10 bytes, and 11 were asked for"):
        memory.array("table", 11)
    memory.forget("table")
    assert memory.array("table", 11).size == 11


def test_an_array_may_be_empty(descriptor: int) -> None:
    memory = KeptMemory(descriptor)
    assert memory.array("none", 0).size == 0
    memory = KeptMemory(descriptor)
    assert memory.array("none", 0).size == 0
    with pytest.raises(ServerError, match="has 0 bytes"):
        memory.array("none", 1)
    memory.forget("")
    assert memory.array("none", 1).size == 1


def test_only_touched_pages_take_memory_and_forgotten_ones_are_given_back(descriptor: int) -> None:
    memory = KeptMemory(descriptor)
    before = touched_bytes(descriptor)
    huge = memory.array("huge", 64 << 30)
    huge[:: 1 << 30] = 1
    assert touched_bytes(descriptor) - before <= 64 * (2 << 20)
    big = memory.array("big", 8 << 20)
    big[:] = 1
    assert touched_bytes(descriptor) - before >= 8 << 20
    del huge, big
    memory.forget("big")
    memory.forget("huge")
    assert touched_bytes(descriptor) <= before + PAGE
    size = os.fstat(descriptor).st_size
    again = memory.array("again", 16 << 20)
    assert not again.any()
    assert os.fstat(descriptor).st_size == size, "pages are used again"


def test_pages_are_used_again_and_hold_zeros(descriptor: int) -> None:
    memory = KeptMemory(descriptor)
    for turn in range(50):
        for number in range(6):
            array = memory.array(f"turn {turn}/{number}", (number + 1) * PAGE)
            assert not array.any()
            array[:] = 255
        memory.forget(f"turn {turn}/{turn % 6}")
        memory.forget(f"turn {turn - 1}/")
    assert os.fstat(descriptor).st_size < 100 * PAGE + (1 << 18)


def test_the_log_does_not_grow_with_what_is_replaced(descriptor: int) -> None:
    memory = KeptMemory(descriptor)
    for number in range(20_000):
        memory.put(f"key {number % 10}", str(number).encode() * 10)
    assert memory.keys("") == [f"key {number}" for number in range(10)]
    assert os.fstat(descriptor).st_size <= 1 << 20
    large = os.urandom(3 << 20)
    memory.put("large", large)
    memory = KeptMemory(descriptor)
    assert memory.get("large") == large
    assert memory.get("key 9") == b"19999" * 10


def test_an_array_holds_no_descriptor_and_its_mapping_ends_with_it(descriptor: int) -> None:
    def mapped() -> list[str]:
        inode = f" {os.fstat(descriptor).st_ino} "
        return [line for line in Path("/proc/self/maps").read_text().splitlines() if inode in line]

    memory = KeptMemory(descriptor)
    before = len(os.listdir("/proc/self/fd"))
    arrays = [memory.array(str(number), PAGE) for number in range(100)]
    assert len(os.listdir("/proc/self/fd")) == before
    memory.close()
    assert mapped()
    arrays.clear()
    assert not mapped()


def test_without_memory_the_call_is_not_made(descriptor: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, before[1]))
    try:
        with pytest.raises(ServerError, match="kept memory cannot grow to .*: File too large"):
            KeptMemory(descriptor).array("endless", 1 << 31)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    memory = KeptMemory(descriptor)
    with pytest.raises(ServerError, match="kept memory cannot be mapped: Cannot allocate memory"):
        memory.array("endless", 1 << 61)
    assert memory.array("endless", 1).tolist() == [0]


NAMES = st.sampled_from(["", "a", "a/1", "a/2", "b", "b/ü"])


class Machine(RuleBasedStateMachine):
    """Random calls, and lives that end between two of them, against dictionaries."""

    @initialize()
    def begin(self) -> None:
        self.descriptor = KeptMemory.create()
        self.memory = KeptMemory(self.descriptor)
        self.life = 0
        self.records: dict[str, bytes] = {}
        self.arrays: dict[str, np.ndarray] = {}

    @rule(key=NAMES, value=st.binary(max_size=4), times=st.sampled_from([0, 1, 5, 5000, 50_000]))
    def put(self, key: str, value: bytes, times: int) -> None:
        self.memory.put(key, value * times)
        self.records.pop(key, None)
        self.records[key] = value * times

    @rule(name=NAMES, nbytes=st.sampled_from([0, 1, PAGE, PAGE + 1, 5 * PAGE]))
    def make_array(self, name: str, nbytes: int) -> None:
        has = self.arrays.setdefault(name, np.zeros(nbytes, np.uint8)).size
        if has != nbytes:
            with pytest.raises(ServerError):
                self.memory.array(name, nbytes)
        assert (self.memory.array(name, has) == self.arrays[name]).all()

    @precondition(lambda self: self.arrays)
    @rule(number=st.integers(0), value=st.integers(0, 255))
    def write(self, number: int, value: int) -> None:
        name = list(self.arrays)[number % len(self.arrays)]
        self.memory.array(name, self.arrays[name].size)[:] = value
        self.arrays[name][:] = value

    @rule(prefix=NAMES)
    def forget(self, prefix: str) -> None:
        self.memory.forget(prefix)
        self.records = {key: value for key, value in self.records.items() if not key.startswith(prefix)}
        self.arrays = {name: array for name, array in self.arrays.items() if not name.startswith(prefix)}

    @rule(closes=st.booleans())
    def open_again(self, closes: bool) -> None:
        if closes:
            self.memory.close()
        self.memory = KeptMemory(self.descriptor)
        self.life += 1
        assert self.memory.life == self.life

    @invariant()
    def records_are_the_same(self) -> None:
        for prefix in ("", "a", "a/", "c"):
            assert self.memory.keys(prefix) == [key for key in self.records if key.startswith(prefix)]
        assert all(self.memory.get(key) == value for key, value in self.records.items())

    @invariant()
    def arrays_are_the_same(self) -> None:
        for name, array in self.arrays.items():
            assert (self.memory.array(name, array.size) == array).all()

    def teardown(self) -> None:
        os.close(self.descriptor)


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


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
    """In a child: make all calls, but be killed at the n-th step within the files under test."""
    folder, steps = os.path.dirname(under_test.__file__), 0

    def step(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        if os.path.dirname(frame.f_code.co_filename) != folder:
            return None
        frame.f_trace_opcodes = opcodes
        if event == ("opcode" if opcodes else "line"):
            if steps == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            steps += 1
        return step

    memory: Any = None
    for number, call in enumerate(CALLS):
        sys.settrace(step)
        memory = do(descriptor, memory, call)
        sys.settrace(None)
        done[0] = number + 1


def killed_at(descriptor: int, done: mmap.mmap, kill_at: int, opcodes: bool) -> bool:
    """Whether a child that is to be killed at this step was, before it had made all calls."""
    child = os.fork()
    if child == 0:
        try:
            live(descriptor, done, kill_at, opcodes)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL)
    return code != 0


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
        pytest.param(1, False, marks=pytest.mark.slow),
        pytest.param(1, True, marks=pytest.mark.nightly),
    ],
)
def test_a_kill_at_any_step_leaves_each_call_made_or_not_made(every: int, opcodes: bool) -> None:
    for kill_at in range(0, 1 << 30, every):
        with created() as descriptor, mmap.mmap(-1, PAGE) as done:
            if not killed_at(descriptor, done, kill_at, opcodes):
                assert done[0] == len(CALLS)
                break
            check_after_a_kill(descriptor, done[0])
    assert kill_at > 500
