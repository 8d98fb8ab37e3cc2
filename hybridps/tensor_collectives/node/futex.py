"""Sleep until a word of shared memory changes, with Linux's futex. On other systems, sleep for a short time."""

from __future__ import annotations

import ctypes
import platform
import sys
import time

_NAP_SECONDS = 0.0002

_NUMBERS = {"x86_64": 202, "aarch64": 98}
"""The number of the system call, by machine. Both machines are little-endian, so that an int64 begins with the 32 bits
that a futex compares."""

_WAIT, _WAKE = 0, 1

_NUMBER = _NUMBERS.get(platform.machine()) if sys.platform == "linux" else None

_call = ctypes.CDLL(None).syscall

_EVERYONE = (1 << 31) - 1


def wait_for_change(address: int, seen: int, seconds: float) -> None:
    """Return when the lower 32 bits of the int64 at `address` differ from `seen`, after `wake`, or after `seconds`.

    It may also return without a reason, so the caller must check again. It releases the interpreter lock.
    """
    if _NUMBER is None:
        time.sleep(min(_NAP_SECONDS, seconds))
        return
    limit = (ctypes.c_long * 2)(int(seconds), int(seconds % 1 * 1e9))  # struct timespec: seconds, nanoseconds
    _call(_NUMBER, ctypes.c_void_p(address), _WAIT, ctypes.c_uint32(seen & 0xFFFFFFFF), ctypes.byref(limit), None, 0)


def wake(address: int) -> None:
    """Wake all threads, in all processes, that wait for a change at `address`."""
    if _NUMBER is not None:
        _call(_NUMBER, ctypes.c_void_p(address), _WAKE, _EVERYONE, None, None, 0)
