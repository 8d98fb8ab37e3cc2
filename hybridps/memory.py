"""Flat buffers: which key lies where in them (Layout), and the memory itself (Arena).

One layout and one flat buffer for each dtype. Gradients and parameters lie in these buffers, so that
every tier works on the same memory without packing.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import re
import secrets
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from hybridps.errors import LayoutError

ALIGNMENT = 64
"""Bytes; every key begins at a multiple of it."""

_FIXED_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

DTYPES = ("float16", "float32", "float64")


class Slot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where one key lies: elements `start` to `start + size` of the flat buffer."""

    key: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """Number of elements."""
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
        """Lay the keys out one after the other, each aligned.

        Raises LayoutError for a dtype that is not one of `DTYPES`, or a negative dimension.
        """
        dtype = np.dtype(dtype).name
        if dtype not in DTYPES:
            raise LayoutError(f"dtype {dtype} cannot be laid out: use one of {', '.join(DTYPES)}")
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
        """Raise LayoutError unless this is what `of` makes: for layouts that come from outside."""
        again = Layout.of(self.dtype, {slot.key: slot.shape for slot in self.slots})
        if again != self:
            raise LayoutError("the slots are not aligned and in order, or a key stands twice")

    @cached_property
    def length(self) -> int:
        """Elements of the flat buffer, the padding included."""
        step = ALIGNMENT // self.itemsize
        return -(-self.slots[-1].stop // step) * step if self.slots else 0

    @cached_property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        return self.length * self.itemsize

    @cached_property
    def slot_of(self) -> dict[str, Slot]:
        return {slot.key: slot for slot in self.slots}

    def difference(self, other: Layout) -> str:
        """One line that says how `other` differs from this layout; empty if it does not."""
        if self.dtype != other.dtype:
            named = f", from key {other.slots[0].key!r} on" if other.slots else ""
            return f"dtype {other.dtype} instead of {self.dtype}{named}"
        here, there = self.slot_of, other.slot_of
        said = [f"key {key!r} is missing" for key in here if key not in there]
        said += [f"key {key!r} is new" for key in there if key not in here]
        said += [
            f"key {key!r} has the shape {there[key].shape} instead of {here[key].shape}"
            for key in here
            if key in there and here[key].shape != there[key].shape
        ]
        if not said and self != other:
            said = ["the order of the keys differs"]
        return "; ".join(said[:3]) + (f"; and {len(said) - 3} more" if len(said) > 3 else "")


class Arena:
    """The flat buffer of a layout.

    `flat` is the one-dimensional array of `layout.length` elements of `layout.dtype`.
    """

    def __init__(self, layout: Layout, flat: np.ndarray | None = None) -> None:
        """Use `flat`, or allocate zeros in private memory on huge pages."""
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
        """The array of a key, in its shape, in the memory of the arena. Raises LayoutError if unknown."""
        slot = self.layout.slot_of.get(key)
        if slot is None:
            raise LayoutError(f"key {key!r} is not in the layout of {len(self.layout.slots)} keys")
        return self.flat[slot.start : slot.stop].reshape(slot.shape)


def private_memory(nbytes: int) -> np.ndarray:
    """Zeroed bytes of this process alone, on huge pages where the system grants them (uint8)."""
    if nbytes == 0:
        return np.zeros(0, np.uint8)
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


class Place(NamedTuple):
    """Where an array lies in shared memory of this process."""

    descriptor: int
    """Of this process, open as long as the memory is used."""
    nbytes: int
    """Size of the whole memory."""
    offset: int
    """Bytes before the array."""
    secret: str
    """What only processes can read that may open the memory."""


def place_of(array: np.ndarray) -> Place | None:
    """Where a contiguous array lies, if it is a part of shared memory."""
    base = array
    while isinstance(base, np.ndarray) and base.base is not None:
        whole, base = base, base.base
    mapping = base.obj if isinstance(base, memoryview) else base
    if not isinstance(mapping, _Mapping):
        return None
    start = array.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    return Place(mapping.descriptor, len(mapping), start, mapping.secret)


class _Mapping(mmap.mmap):
    """Memory that knows where it comes from."""

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self.descriptor = os.dup(descriptor)
        self.secret = secret_at(f"/proc/self/fd/{self.descriptor}")

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.descriptor)  # a default: at the end of the process `os` may be gone before the last array


def shared_memory(nbytes: int) -> np.ndarray:
    """Zeroed bytes that a server on this host may work on, where the system grants them; else private (uint8)."""
    try:
        return create_shared(nbytes) if nbytes else private_memory(0)
    except OSError:
        return private_memory(nbytes)


def create_shared(nbytes: int) -> np.ndarray:
    """Zeroed bytes (uint8; at least one) that other processes of this host attach to by `shared_name`. Raises OSError.

    The memory has no file: it is gone when the last process that uses it ends, however it ends.
    """
    # Who names the secret may read this process's descriptors: servers ask for it. The size is fixed for ever, as
    # memory that becomes smaller kills whoever reads it.
    descriptor = os.memfd_create(f"hybridps-{secrets.token_hex(16)}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "r+b", buffering=0) as file:
        file.truncate(nbytes)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _FIXED_SIZE | fcntl.F_SEAL_SEAL)
        return np.frombuffer(_Mapping(descriptor, nbytes), np.uint8)


def shared_name(memory: np.ndarray) -> str:
    """By what other processes attach to memory of `create_shared`, as long as this one uses it; empty for other."""
    place = place_of(memory)
    return f"/proc/{os.getpid()}/fd/{place.descriptor}" if place else ""


def attach_shared(name: str, nbytes: int) -> np.ndarray:
    """Memory (uint8) that another process created. Raises LayoutError if it cannot be reached, or may be smaller."""
    try:
        with open(name, "r+b", buffering=0) as file:
            if os.fstat(file.fileno()).st_size < nbytes:
                raise LayoutError(f"shared memory {name} is smaller than the {nbytes} bytes expected")
            if fcntl.fcntl(file, fcntl.F_GET_SEALS) & _FIXED_SIZE != _FIXED_SIZE:
                raise LayoutError(f"shared memory {name} can become smaller")
            return np.frombuffer(_Mapping(file.fileno(), nbytes), np.uint8)
    except OSError as error:
        raise LayoutError(f"shared memory {name} cannot be opened: {error.strerror}") from None


def secret_at(name: str) -> str:
    """The secret of the shared memory whose descriptor is that file of /proc; empty if it is other memory."""
    found = re.fullmatch(r"/memfd:hybridps-([0-9a-f]{32}) \(deleted\)", os.readlink(name))
    return found[1] if found else ""


def is_released(descriptor: int, secret: str) -> bool:
    """Whether this process no longer has the shared memory that had this descriptor and secret."""
    try:
        return secret_at(f"/proc/self/fd/{descriptor}") != secret
    except OSError:
        return True


def keep_freed_memory() -> None:
    """Let this process keep memory that was freed for what comes next: fresh pages of large messages cost time.

    A matter of glibc; elsewhere nothing happens.
    """
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        arenas, mmap_threshold, trim_threshold = -8, -3, -1
        for option, value in ((arenas, 1), (mmap_threshold, 1 << 30), (trim_threshold, (1 << 31) - 1)):
            mallopt(option, value)


def keep_message_memory() -> None:
    """Let this process keep the memory of a few large messages for the next ones, as far as glibc would by itself.

    What glibc keeps, in the process of somebody else, goes with the largest block that was ever freed, up to 32 MB, its
    own header and rounding to pages included: this frees one of that size, which was never touched.
    """
    np.empty((32 << 20) - (64 << 10), np.uint8)
