"""Flat buffers: the place of each key (`Layout`), and the memory itself (`Arena`).

Each dtype has a layout and a flat buffer. Gradients and parameters lie in these buffers, so that every tier works on
the same memory without packing.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Mapping
from functools import cached_property
from itertools import chain, islice

import msgspec
import numpy as np

from hybridps.errors import LayoutError

ALIGNMENT = 64
"""In bytes. Every key begins at a multiple of it."""

FLOATS = ("float16", "float32", "float64")
DTYPES = (*FLOATS, "int32", "int64")
"""The dtypes of flat buffers."""


class Slot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The place of one key: elements `start` to `start + size` of the flat buffer."""

    key: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def stop(self) -> int:
        return self.start + self.size


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The slots of a flat buffer of one dtype, in order. Equal on all ranks."""

    dtype: str
    slots: tuple[Slot, ...]

    @staticmethod
    def of(dtype: str, shapes: Mapping[str, tuple[int, ...]]) -> Layout:
        """Return a layout of the keys one after the other, each aligned.

        Raises LayoutError for a dtype that is not one of `DTYPES`, or for a negative dimension.
        """
        dtype = np.dtype(dtype).name
        if dtype not in DTYPES:
            whose = "".join(f" of key {key!r}" for key in [*shapes][:1])
            raise LayoutError(f"dtype {dtype}{whose} cannot be laid out: use one of {', '.join(DTYPES)}")
        step = ALIGNMENT // np.dtype(dtype).itemsize
        slots, start = [], 0
        for key, shape in shapes.items():
            if any(extent < 0 for extent in shape):
                raise LayoutError(f"key {key!r} has the shape {tuple(shape)}: dimensions must be known and >= 0")
            slot = Slot(str(key), tuple(int(extent) for extent in shape), start)
            slots.append(slot)
            start += -(-slot.size // step) * step
        return Layout(dtype, tuple(slots))

    def check(self) -> None:
        """Raise LayoutError unless this is what `of` makes. For layouts that other processes have sent."""
        again = Layout.of(self.dtype, {slot.key: slot.shape for slot in self.slots})
        if again != self:
            raise LayoutError("the slots are not aligned and in order, or a key occurs twice")

    @cached_property
    def length(self) -> int:
        """The number of elements of the flat buffer, including the padding."""
        step = ALIGNMENT // self.itemsize
        return -(-self.slots[-1].stop // step) * step if self.slots else 0

    @cached_property
    def itemsize(self) -> int:
        """The number of bytes of an element."""
        return np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """The number of bytes of the flat buffer."""
        return self.length * self.itemsize

    @cached_property
    def slot_of(self) -> dict[str, Slot]:
        return {slot.key: slot for slot in self.slots}

    def difference(self, other: Layout) -> str:
        """Return one line that says how `other` differs from this layout; empty if it does not."""
        if self.dtype != other.dtype:
            named = f", from key {other.slots[0].key!r} on" if other.slots else ""
            return f"dtype {other.dtype} instead of {self.dtype}{named}"
        here, there = self.slot_of, other.slot_of
        missing = (f"key {key!r} is missing" for key in here if key not in there)
        new = (f"key {key!r} is new" for key in there if key not in here)
        reshaped = (
            f"key {key!r} has the shape {there[key].shape} instead of {here[key].shape}"
            for key in here
            if key in there and here[key].shape != there[key].shape
        )
        said = [*islice(chain(missing, new, reshaped), 4)]  # a server has no time for all of a hundred thousand keys
        if not said and self != other:
            said = ["the order of the keys differs"]
        return "; ".join(said[:3]) + ("; and more" if len(said) > 3 else "")


class Arena:
    """The flat buffer of a layout.

    `flat` is the one-dimensional array of `layout.length` elements of `layout.dtype`.
    """

    def __init__(self, layout: Layout, flat: np.ndarray | None = None) -> None:
        """Use `flat`, or allocate zeros in private memory on huge pages. Raises LayoutError if `flat` does not fit."""
        if flat is None:
            flat = private_memory(layout.nbytes).view(layout.dtype)
        if flat.shape != (layout.length,) or flat.dtype != layout.dtype:
            raise LayoutError(
                f"the buffer has {flat.shape} elements of {flat.dtype}, "
                f"the layout needs ({layout.length},) of {layout.dtype}"
            )
        self.layout = layout
        self.flat = flat

    def view(self, key: str) -> np.ndarray:
        """Return the array of a key, in its shape, in the arena's memory. Raises LayoutError for an unknown key."""
        slot = self.layout.slot_of.get(key)
        if slot is None:
            raise LayoutError(f"key {key!r} is not in the layout of {len(self.layout.slots)} keys")
        return self.flat[slot.start : slot.stop].reshape(slot.shape)


def private_memory(nbytes: int) -> np.ndarray:
    """Return zeroed bytes (uint8) of this process alone, on huge pages where the system grants them."""
    if nbytes == 0:
        return np.zeros(0, np.uint8)
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def address_of(array: np.ndarray) -> int:
    """Return the address of an array's first byte."""
    try:  # takes a third of the time of NumPy's own ways
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # the array is read-only, not contiguous, or empty
        return int(array.__array_interface__["data"][0])


def keep_freed_memory() -> None:
    """Let this process keep freed memory for later use, because fresh pages for large messages cost time.

    This sets options of glibc; elsewhere it does nothing.
    """
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        arenas, mmap_threshold, trim_threshold = -8, -3, -1
        for option, value in ((arenas, 1), (mmap_threshold, 1 << 30), (trim_threshold, (1 << 31) - 1)):
            mallopt(option, value)


def keep_message_memory() -> None:
    """Let this process keep the memory of a few large messages for the next ones, without changing options of glibc.

    This suits a process that belongs to somebody else. glibc keeps as much as the largest block that was ever freed, up
    to 32 MB with its header and rounding to pages. So this frees one block of that size, which was never touched.
    """
    np.empty((32 << 20) - (64 << 10), np.uint8)
