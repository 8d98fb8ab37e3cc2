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
    line = f"hybridps: {text}\n"
    with suppress(OSError, ValueError):
        sys.stderr.flush()
        try:
            descriptor = sys.stderr.fileno()
        except (AttributeError, OSError, ValueError):  # not a file, as in a notebook
            print(line, end="", file=sys.stderr, flush=True)
        else:
            os.write(descriptor, line.encode(errors="backslashreplace"))
