"""The pages of a file in memory (`memfd`): which of them are used, and arrays on those that are."""

from __future__ import annotations

import bisect
import ctypes
import mmap
import os
import weakref
from collections.abc import Iterable

import numpy as np

from hybridps.errors import ServerError

PAGE = mmap.PAGESIZE

_ENDLESS = 1 << 62
"""The end of the free pages after the last used one. The file grows as needed."""

_KEEP_SIZE_AND_PUNCH_HOLE = 1 | 2  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


class Pages:
    """Allocates runs of pages of a file, and takes them back. Free pages hold zeros and take no memory.

    Offsets are bytes, and multiples of `PAGE`. The first page is never allocated. Call `keep_only` before `take`. All
    methods raise ServerError if the system refuses.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._free: list[tuple[int, int]] = []
        """The start and stop of each run of free pages, in order. The last one has no end."""
        self._grow(PAGE)

    def keep_only(self, used: Iterable[tuple[int, int]]) -> None:
        """Treat all pages except these as free, and clear them. `used`: offset and bytes of each run."""
        start, free = PAGE, []
        for offset, nbytes in sorted(run for run in used if run[1]):
            if start < offset:
                self._clear(start, offset)
                free.append((start, offset))
            start = offset + _whole(nbytes)
        self._clear(start, os.fstat(self._descriptor).st_size)
        self._free = [*free, (start, _ENDLESS)]

    def take(self, nbytes: int) -> int:
        """Return the offset of free pages for `nbytes`, which are used from now on."""
        size = _whole(nbytes)
        number, (start, stop) = next((number, run) for number, run in enumerate(self._free) if run[1] - run[0] >= size)
        self._grow(start + size)
        self._free[number : number + 1] = [(start + size, stop)] if start + size < stop else []
        return start

    def give_back(self, offset: int, nbytes: int) -> None:
        """Clear pages from `take`, and treat them as free. Arrays on them must not be used any more."""
        if nbytes == 0:
            return
        start, stop = offset, offset + _whole(nbytes)
        self._clear(start, stop)
        following = bisect.bisect(self._free, (start, stop))
        if self._free[following][0] == stop:
            _, stop = self._free.pop(following)
        if following and self._free[following - 1][1] == start:
            following -= 1
            start, _ = self._free.pop(following)
        self._free.insert(following, (start, stop))

    def map(self, offset: int, nbytes: int) -> np.ndarray:
        """Return the bytes at an offset (uint8), shared with all that map them; on huge pages where allowed.

        The mapping ends with the last array on it.
        """
        if nbytes == 0:
            return np.zeros(0, np.uint8)
        access = mmap.PROT_READ | mmap.PROT_WRITE
        # This avoids mmap.mmap, each of which would hold a descriptor of the process.
        address = _libc.mmap(None, nbytes, access, mmap.MAP_SHARED, self._descriptor, offset)
        if address == _FAILED:
            raise _refused(f"{nbytes} bytes of kept memory cannot be mapped", ctypes.get_errno())
        if hasattr(mmap, "MADV_HUGEPAGE"):
            _libc.madvise(address, nbytes, mmap.MADV_HUGEPAGE)
        memory = (ctypes.c_uint8 * nbytes).from_address(address)
        weakref.finalize(memory, _libc.munmap, address, nbytes).atexit = False  # at exit other threads may still use it
        return np.frombuffer(memoryview(memory), np.uint8)

    def _grow(self, size: int) -> None:
        """Make the file at least `size` bytes long."""
        if os.fstat(self._descriptor).st_size >= size:
            return
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise _refused(f"kept memory cannot grow to {size} bytes", error.errno or 0) from None

    def _clear(self, start: int, stop: int) -> None:
        """Give the memory of these pages back to the system. They then hold zeros."""
        if start >= stop:
            return
        if _libc.fallocate(self._descriptor, _KEEP_SIZE_AND_PUNCH_HOLE, start, stop - start) != 0:
            raise _refused("kept memory cannot be given back", ctypes.get_errno())


def _whole(nbytes: int) -> int:
    """Return `nbytes` rounded up to whole pages."""
    return -(-nbytes // PAGE) * PAGE


def _refused(what: str, error: int) -> ServerError:
    return ServerError(f"{what}: {os.strerror(error)}; the host or its limits (`ulimit -a`) allow no more")
