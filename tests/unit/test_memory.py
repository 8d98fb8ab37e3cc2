from __future__ import annotations

import gc
import multiprocessing
import platform
import resource

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridps import shared_memory
from hybridps.errors import LayoutError
from hybridps.memory import (
    ALIGNMENT,
    Arena,
    Layout,
    keep_freed_memory,
    keep_message_memory,
)
from hybridps.shared_memory import attach_shared, create_shared, shared_name

SHAPES = st.dictionaries(
    st.text(min_size=1, max_size=8), st.lists(st.integers(0, 9), max_size=3).map(tuple), max_size=9
)


@given(shapes=SHAPES, dtype=st.sampled_from(["float16", "float32", "float64"]))
def test_slots_are_aligned_and_apart(shapes, dtype: str) -> None:
    layout = Layout.of(dtype, shapes)
    layout.check()
    arena = Arena(layout, np.zeros(layout.length, dtype))
    for number, (key, shape) in enumerate(shapes.items(), 1):
        assert arena.view(key).shape == shape
        assert layout.slot_of[key].start * layout.itemsize % ALIGNMENT == 0
        arena.view(key)[...] = number
    for number, key in enumerate(shapes, 1):
        assert (arena.view(key) == number).all()


def test_difference_says_what() -> None:
    layout = Layout.of("float32", {"a": (2, 3), "b": (4,)})
    assert layout.difference(layout) == ""
    difference = "dtype float64 instead of float32, from key 'a' on"
    assert layout.difference(Layout.of("float64", {"a": (2, 3), "b": (4,)})) == difference
    assert (
        layout.difference(Layout.of("float32", {"a": (3, 3), "c": (4,)}))
        == "key 'b' is missing; key 'c' is new; key 'a' has the shape (3, 3) instead of (2, 3)"
    )
    assert layout.difference(Layout.of("float32", {"b": (4,), "a": (2, 3)})) == "the order of the keys differs"
    many = Layout.of("float32", {str(key): (1,) for key in range(5)})
    assert many.difference(layout) == "key '0' is missing; key '1' is missing; key '2' is missing; and more"


def test_bad_layouts_are_refused() -> None:
    with pytest.raises(LayoutError, match="int16"):
        Layout.of("int16", {"a": (1,)})
    with pytest.raises(LayoutError, match="'a' has the shape"):
        Layout.of("float32", {"a": (-1,)})
    good = Layout.of("float32", {"a": (3,), "b": (3,)})
    with pytest.raises(LayoutError, match="not aligned"):
        Layout("float32", (good.slots[0], good.slots[0])).check()
    with pytest.raises(LayoutError, match="'c' is not in the layout"):
        Arena(good).view("c")
    with pytest.raises(LayoutError, match="the layout needs"):
        Arena(good, np.zeros(3, np.float32))


def test_arena_begins_with_zeros_and_is_aligned() -> None:
    arena = Arena(Layout.of("float32", {"a": (1000, 1000)}))
    assert arena.flat.ctypes.data % ALIGNMENT == 0
    assert not arena.flat.any()


def _write(name: str, nbytes: int) -> None:
    attach_shared(name, nbytes)[:] = 7


def test_memory_is_shared_with_another_process() -> None:
    memory = create_shared(4096)
    name = shared_name(memory)
    child = multiprocessing.get_context("spawn").Process(target=_write, args=(name, 4096))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert (memory == 7).all()
    with pytest.raises(LayoutError, match="smaller"):
        attach_shared(name, 5000)
    del memory
    with pytest.raises(LayoutError, match="cannot be opened"):
        attach_shared(name, 1)


def faults_of_messages(pipe, keep) -> None:
    """Pages that are fresh each time, when six messages of 4 MB come and go."""
    keep()
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        messages = [np.ones(4_000_000, np.uint8) for _ in range(6)]
        del messages
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a matter of glibc")
def test_memory_may_outlive_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", failed.append)
    array = shared_memory.shared_memory(4096)
    monkeypatch.setattr(shared_memory, "os", None)  # as when the process ends
    del array
    gc.collect()
    assert not failed


def test_memory_of_messages_is_kept() -> None:
    faults, spawn = [], multiprocessing.get_context("spawn")
    for keep in (int, keep_message_memory, keep_freed_memory):
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=faults_of_messages, args=(theirs, keep))
        process.start()
        faults.append(ours.recv())
        process.join()
    usual, *kept = faults
    assert max(kept) < usual / 10


def test_a_dtype_that_cannot_be_laid_out_is_refused_with_its_key() -> None:
    with pytest.raises(LayoutError, match="dtype bool of key 'mask' cannot be laid out: use one of float16"):
        Layout.of("bool", {"mask": (3,)})
