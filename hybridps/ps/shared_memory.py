"""Shared memory of the groups of this host, which a server works on in place.

What a message names is never opened as a path: it is a descriptor of a process, which must be memory made by hybridps,
of this user, and of a size that cannot change; and the sender must know its secret, which only who may open it can
read. A process in another network namespace counts as one of another host.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

import numpy as np

from hybridps.errors import LayoutError
from hybridps.memory import attach_shared, secret_at

MOST_REGIONS = 1024
"""Of one client."""


def attach(pid: int, descriptor: int, secret: str, nbytes: int) -> np.ndarray:
    """The memory (uint8) behind a descriptor of another process. Raises LayoutError if it is not what it should be."""
    name = f"/proc/{pid}/fd/{descriptor}"
    try:
        # Only looked at: to open a pipe would wait.
        held = os.open(name, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise LayoutError(f"shared memory {name} cannot be opened: {error.strerror}") from None
    memory, near = f"/proc/self/fd/{held}", False
    try:
        with suppress(OSError):
            near = os.path.samefile(f"/proc/{pid}/ns/net", "/proc/self/ns/net")
        if not near:
            raise LayoutError(f"shared memory {name} is of a process in another network namespace")
        found = os.stat(memory)
        ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        if not ours or not secret or secret_at(memory) != secret:
            raise LayoutError(f"{name} is no shared memory of this group")
        return attach_shared(memory, nbytes)
    finally:
        os.close(held)
