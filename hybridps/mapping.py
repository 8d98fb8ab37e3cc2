"""Maps files in memory (`memfd`), on huge pages where the system grants them."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

import numpy as np

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


def make_private(address: int, nbytes: int, descriptor: int) -> bool:
    """Make what this process writes to a mapping its own from now on. Return whether the system has done so."""
    access, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED
    return bool(_libc.mmap(address, nbytes, access, flags, descriptor, 0) == address)


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


def address_of(array: np.ndarray) -> int:
    """Return the address of an array's first byte."""
    return int(array.__array_interface__["data"][0])


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
