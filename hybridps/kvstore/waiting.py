"""Where a program waits for MXNet."""

from __future__ import annotations

import sys

import mxnet as mx

WAITS = {
    mx.ndarray.ndarray.__file__: {"waitall", "wait_to_read", "asnumpy", "to_dlpack_for_write", "_sync_copyfrom"},
    mx.ndarray.utils.__file__: {"save"},
}
"""By file: MXNet's functions that wait for arrays. All other waits of Python for an array pass one of them."""


def waits_for_mxnet(thread: int) -> bool:
    """Whether the thread with this identity stands in a function of MXNet that waits for an array."""
    frame = sys._current_frames().get(thread)
    return frame is not None and frame.f_code.co_name in WAITS.get(frame.f_code.co_filename, ())
