"""Shared memory of the processes of a host: ranks of a node reduce in it, and servers work in it.

The memory has no file: it is gone when the last process that uses it ends, however it ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import re
import secrets
import stat
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from hybridps.errors import LayoutError
from hybridps.memory import address_of, private_memory

PAGE = mmap.PAGESIZE
HUGE_PAGE = 2 << 20
"""Mappings of at least this many bytes begin at a multiple of it."""

_MADV_COLLAPSE = 25  # Linux 6.1; not in Python's mmap
_PROT_NONE, _MAP_FIXED, _MAP_NORESERVE = 0, 0x10, 0x4000
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_FIXED_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Place(NamedTuple):
    """The place of an array in shared memory of this process."""

    descriptor: int
    """A descriptor of this process, open as long as the memory is used."""
    nbytes: int
    """The size of the whole memory."""
    offset: int
    """The number of bytes before the array."""
    secret: str
    """A text that only processes can read that may open the memory."""


def place_of(array: np.ndarray) -> Place | None:
    """Return the place of a contiguous array, or None if it is not a part of shared memory."""
    start = address_of(array)
    while isinstance(array.base, np.ndarray):
        array = array.base
    begin = address_of(array)
    whole = _mapped.get(begin)
    return None if whole is None else whole._replace(offset=start - begin)


_mapped: dict[int, Place] = {}
"""The shared memory that this process has mapped, by address."""


def _map(descriptor: int, nbytes: int) -> np.ndarray:
    """Map shared memory. Its descriptor stays open as long as an array over it is used. Raises OSError."""
    memory = map_file(descriptor, nbytes)
    address, kept = address_of(memory), os.dup(descriptor)
    _mapped[address] = Place(kept, nbytes, 0, secret_at(f"/proc/self/fd/{kept}"))
    # This comes before the memory is unmapped, so that its address cannot have another use yet: Python calls what was
    # registered last first.
    weakref.finalize(memory.base.obj, _forget, address).atexit = False  # type: ignore[union-attr]
    return memory


def _forget(address: int, close: Callable[[int], None] = os.close) -> None:
    close(_mapped.pop(address).descriptor)


def _part() -> None:
    """Make what this process writes to shared memory its own from now on, as in other memory after a fork."""
    for address, place in list(_mapped.items()):
        if not _make_private(address, place):
            os.abort()  # otherwise this process would write into its parent's memory


os.register_at_fork(after_in_child=_part)


def shared_memory(nbytes: int) -> np.ndarray:
    """Return zeroed bytes (uint8) that a server on this host may work on, or private ones if the system grants none."""
    try:
        return create_shared(nbytes) if nbytes else private_memory(0)
    except OSError:
        return private_memory(nbytes)


def create_shared(nbytes: int) -> np.ndarray:
    """Return zeroed bytes (uint8; at least one) that others on this host attach to by `shared_name`. Raises OSError."""
    # Only processes that may read this process's descriptors can read the secret, so servers ask for it. The size is
    # fixed for ever, because memory that becomes smaller kills the processes that read it.
    descriptor = os.memfd_create(f"hybridps-{secrets.token_hex(16)}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "r+b", buffering=0) as file:
        file.truncate(nbytes)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _FIXED_SIZE | fcntl.F_SEAL_SEAL)
        return _map(descriptor, nbytes)


def shared_name(memory: np.ndarray) -> str:
    """Return the name by which other processes attach to memory of `create_shared` while this process uses it.

    The name is empty for other memory.
    """
    place = place_of(memory)
    return f"/proc/{os.getpid()}/fd/{place.descriptor}" if place else ""


def attach_shared(name: str, nbytes: int) -> np.ndarray:
    """Return memory (uint8) that another process created.

    Raises LayoutError if it cannot be reached, or if it is or may become smaller than `nbytes`.
    """
    try:
        with open(name, "r+b", buffering=0) as file:
            if os.fstat(file.fileno()).st_size < nbytes:
                raise LayoutError(f"shared memory {name} is smaller than the {nbytes} bytes expected")
            if fcntl.fcntl(file, fcntl.F_GET_SEALS) & _FIXED_SIZE != _FIXED_SIZE:
                raise LayoutError(f"shared memory {name} can become smaller")
            return _map(file.fileno(), nbytes)
    except OSError as error:
        raise LayoutError(f"shared memory {name} cannot be opened: {error.strerror}") from None


def attach_offered(pid: int, descriptor: int, secret: str, nbytes: int) -> np.ndarray:
    """Return the memory (uint8) behind a descriptor that another process of this user offers, with the memory's secret.

    What a message names is never opened as a path. A process in another network namespace counts as one of another
    host. Raises LayoutError if the memory cannot be reached, was not made by hybridps, or may become smaller.
    """
    name = f"/proc/{pid}/fd/{descriptor}"
    try:
        # This only looks at the file, because opening a pipe would wait.
        held = os.open(name, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise LayoutError(f"shared memory {name} cannot be opened: {error.strerror}") from None
    memory, near = f"/proc/self/fd/{held}", False
    try:
        with suppress(OSError):
            near = os.path.samefile(f"/proc/{pid}/ns/net", "/proc/self/ns/net")
        if not near:
            raise LayoutError(f"shared memory {name} belongs to a process in another network namespace")
        found = os.stat(memory)
        ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        if not ours or not secret or secret_at(memory) != secret:
            raise LayoutError(f"{name} is not shared memory of this group")
        return attach_shared(memory, nbytes)
    finally:
        os.close(held)


def secret_at(name: str) -> str:
    """Return the secret of the shared memory whose descriptor is this file of /proc; empty if it is other memory."""
    found = re.fullmatch(r"/memfd:hybridps-([0-9a-f]{32}) \(deleted\)", os.readlink(name))
    return found[1] if found else ""


def is_released(descriptor: int, secret: str) -> bool:
    """Return whether this process no longer has the shared memory with this descriptor and secret."""
    try:
        return secret_at(f"/proc/self/fd/{descriptor}") != secret
    except OSError:
        return True


def map_file(descriptor: int, nbytes: int, offset: int = 0) -> np.ndarray:
    """Return `nbytes` (at least one) of a file (uint8), shared with all that map them. Raises OSError.

    `offset`: a multiple of `PAGE`. The bytes are unmapped with the last array over them, and not at the end of the
    process, when other threads may still use them. `mmap.mmap` would hold a descriptor, and choose the address.
    """
    place = _huge_place(nbytes) if nbytes >= HUGE_PAGE else None
    flags = mmap.MAP_SHARED | (0 if place is None else _MAP_FIXED)
    address = _libc.mmap(place, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, offset)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if place is not None:
        _libc.madvise(address, nbytes, mmap.MADV_HUGEPAGE)
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    weakref.finalize(memory, _libc.munmap, address, nbytes).atexit = False
    return np.frombuffer(memoryview(memory), np.uint8)


def _make_private(address: int, place: Place) -> bool:
    """Make what this process writes to shared memory its own from now on. Return whether the system has done so."""
    access, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED
    return bool(_libc.mmap(address, place.nbytes, access, flags, place.descriptor, 0) == address)


def gather(array: np.ndarray) -> None:
    """Move the whole huge pages in a mapped array to huge pages, if the system can (Linux 6.1). They then take memory.

    The system usually gives shared memory no huge pages by itself. This takes some milliseconds for each 10 MB; other
    threads may use the array meanwhile.
    """
    begin = address_of(array)
    first, end = -begin % HUGE_PAGE, (begin + array.nbytes) // HUGE_PAGE * HUGE_PAGE - begin
    if first < end:
        array.reshape(-1).view(np.uint8)[first:end:HUGE_PAGE].max()  # the system gathers around a page that exists
        _libc.madvise(begin + first, end - first, _MADV_COLLAPSE)


def _huge_place(nbytes: int) -> int | None:
    """Return where a mapping of `nbytes` begins with a huge page; None if the system has no such place."""
    size = -(-nbytes // PAGE) * PAGE
    access, flags = _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    begin = _libc.mmap(None, size + HUGE_PAGE, access, flags, -1, 0)
    if begin == _FAILED:
        return None
    place = -(-begin // HUGE_PAGE) * HUGE_PAGE
    for start, stop in ((begin, place), (place + size, begin + size + HUGE_PAGE)):
        if start < stop:
            _libc.munmap(start, stop - start)
    return int(place)
