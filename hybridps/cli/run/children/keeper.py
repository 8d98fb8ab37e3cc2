"""Cleans up after a killed launcher: ends its processes and removes its folders.

A program of its own, run as a file so that it loads nothing else. It waits on a pipe from the launcher. If the pipe
ends without the word `DONE`, the launcher was killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

DONE = "done"
FOLDER = "folder "
"""The word before the path of a folder to remove, or of a link to one."""

EMPTY = "empty "
"""The word before the path of a folder to remove if it is empty, in the same way, after those before it."""

GRACE_SECONDS = 5.0
"""How long processes may take to end by themselves: when the launcher died, the kernel sent its children a signal."""


def main(mark: str) -> None:
    """Wait for the end of the launcher. `mark` begins a `NAME=VALUE` in the environment of all that it has started."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    told = []
    for line in sys.stdin:
        if line.rstrip("\n") == DONE:
            return
        told.append(line.rstrip("\n"))
    end = time.monotonic() + GRACE_SECONDS
    while (left := marked(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    for pid in left:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for line in told:
        if line.startswith(EMPTY):
            with contextlib.suppress(OSError):  # other launches use it
                os.rmdir(line.removeprefix(EMPTY))
        else:
            remove(line.removeprefix(FOLDER))


def remove(folder: str) -> None:
    """Remove a folder, or a link to one, but not what it leads to."""
    with contextlib.suppress(OSError):
        if os.path.islink(folder):
            os.unlink(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def marked(mark: str) -> list[int]:
    """Return the ids of the other processes with a `NAME=VALUE` in their environment that begins with `mark`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if int(folder.name) != os.getpid() and any(each.startswith(mark.encode()) for each in variables):
            found.append(int(folder.name))
    return found


if __name__ == "__main__":
    main(sys.argv[1])
