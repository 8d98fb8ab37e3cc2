"""Memory of a server that outlives its process: what is kept, and random use of it."""

from __future__ import annotations

import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hybridps.errors import ServerError
from hybridps.ps.server.kept import KeptMemory
from hybridps.ps.server.kept.pages import HUGE_PAGE
from hybridps.shared_memory import gather

PAGE = mmap.PAGESIZE


@pytest.fixture
def descriptor() -> Iterator[int]:
    number = KeptMemory.create()
    yield number
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


def test_large_arrays_lie_on_huge_pages_and_keep_their_values(descriptor: int) -> None:
    """Where the system has them: an array must begin with one for that, in the file and in each life."""
    memory = KeptMemory(descriptor)
    memory.array("little", PAGE)
    arrays = [memory.array(name, 2 * HUGE_PAGE + 3) for name in "ab"]
    for number, array in enumerate(arrays, 1):
        array[::PAGE] = number
        gather(array)
        assert (array[::PAGE] == number).all()
        assert not array[1::PAGE].any()
    later = KeptMemory(descriptor)
    for number, name in enumerate("ab", 1):
        array = later.array(name, 2 * HUGE_PAGE + 3)
        assert array.__array_interface__["data"][0] % HUGE_PAGE == 0
        assert (array[::PAGE] == number).all()
    assert later.array("little", PAGE).size == PAGE


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
