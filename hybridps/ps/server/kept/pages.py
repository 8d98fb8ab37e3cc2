"""The pages of a file in memory (`memfd`): which of them are used, and arrays on those that are."""

from __future__ import annotations

import bisect
import ctypes
import os
from collections.abc import Iterable

import numpy as np

from hybridps.errors import ServerError
from hybridps.shared_memory import HUGE_PAGE, PAGE, map_file

_ENDLESS = 1 << 62
"""The end of the free pages after the last used one. The file grows as needed."""

_KEEP_SIZE_AND_PUNCH_HOLE = 1 | 2  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


class Pages:
    """Allocates runs of pages of a file, and takes them back. Free pages hold zeros and take no memory.

    Offsets are bytes, and multiples of `PAGE`, for runs of at least `HUGE_PAGE` bytes of that. The first page is never
    allocated. Call `keep_only` before `take`. All methods raise ServerError if the system refuses.
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
        size, step = _whole(nbytes), HUGE_PAGE if nbytes >= HUGE_PAGE else PAGE
        for number, (start, stop) in enumerate(self._free):  # noqa: B007 (the last run has no end)
            first = -(-start // step) * step
            if stop - first >= size:
                break
        self._grow(first + size)
        left = (start, first), (first + size, stop)
        self._free[number : number + 1] = [run for run in left if run[0] < run[1]]
        return first

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
        """Return the bytes at an offset (uint8), shared with all that map them. It is unmapped with its last array."""
        if nbytes == 0:
            return np.zeros(0, np.uint8)
        try:
            return map_file(self._descriptor, nbytes, offset)
        except OSError as error:
            raise _refused(f"{nbytes} bytes of kept memory cannot be mapped", error.errno or 0) from None

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
