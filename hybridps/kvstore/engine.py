"""Asynchronous operations of MXNet's engine, from Python.

An operation is started by an engine thread when its arrays are ready, and ends when its `done` is
called, from any thread. Until then the engine holds back every later reader and writer of the arrays,
and the caller goes on.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence

from mxnet.base import _LIB, check_call
from mxnet.ndarray import NDArray

Done = Callable[[], None]
Started = Callable[[Done], None]

_ASYNCHRONOUS = ctypes.c_int(4)  # FnProperty::kAsync


class _OnComplete(ctypes.Structure):
    _fields_ = [("callback", ctypes.c_void_p), ("engine", ctypes.c_void_p), ("parameter", ctypes.c_void_p)]


class _Context(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int), ("device_id", ctypes.c_int32)]


_START = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_OnComplete), ctypes.c_void_p)
_DONE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_CPU = _Context(1, 0)

_waiting: dict[int, Started] = {}
_numbers = itertools.count(1)


@_START
def _start(_run_context: int, on_complete: ctypes._Pointer[_OnComplete], number: int) -> None:
    # `on_complete` lives on the engine's stack: its three words are copied now.
    words = on_complete.contents
    callback, engine, parameter = words.callback, words.engine, words.parameter
    _waiting.pop(number)(lambda: _DONE(callback)(engine, parameter, None))


def push(arrays: Sequence[NDArray], started: Started, priority: int = 0) -> None:
    """Call `started(done)` on an engine thread when all earlier work on `arrays` (on the CPU) is done.

    `started` must return at once and not raise; the operation ends when `done()` is called.
    """
    number = next(_numbers)
    _waiting[number] = started
    handles = (ctypes.c_void_p * len(arrays))(*[array.handle.value for array in arrays])
    check_call(
        _LIB.MXEnginePushAsyncND(
            _start,
            ctypes.c_void_p(number),
            None,
            ctypes.byref(_CPU),
            None,
            0,
            handles,
            len(arrays),
            ctypes.byref(_ASYNCHRONOUS),
            priority,
            b"hybridps",
            # Run it also when an earlier operation on the arrays has failed: the others wait for this worker, which
            # ends when it meets the error.
            True,
        )
    )
