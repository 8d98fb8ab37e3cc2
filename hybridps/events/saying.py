"""Lines for the user on standard error."""

from __future__ import annotations

import os
import sys
from contextlib import suppress


def say(text: str) -> None:
    """Print a line for the user on standard error. Any thread may call this.

    A line that cannot be written, because a disk is full or the stream is closed, is dropped. It does not stay in the
    stream's buffer, which Python would try to write at the end of the process, with exit status 120.
    """
    stream, own, line = sys.stderr, sys.__stderr__, f"hybridps: {text}\n"
    if stream is None:  # it was closed when Python started
        return
    with suppress(OSError, ValueError):
        if own is None or stream is not own:  # for example that of a notebook
            print(line, end="", file=stream, flush=True)
        else:
            own.flush()
            os.write(own.fileno(), line.encode(errors="backslashreplace"))
