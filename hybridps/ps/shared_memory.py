"""Shared memory of the groups of this host, which a server works on in place.

What a message names is never opened as a path: it is a descriptor of a process, which must be memory made by hybridps,
of this user, and of a size that cannot change; and the sender must know its secret, which only who may open it can
read. A process in another network namespace counts as one of another host.
"""

from __future__ import annotations

import fcntl
import os
import stat

import numpy as np

from hybridps.errors import LayoutError
from hybridps.memory import SharedMemory, secret_at

MOST_REGIONS = 1024
"""Of one client."""

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def attach(pid: int, descriptor: int, secret: str, nbytes: int) -> np.ndarray:
    """The memory (uint8) behind a descriptor of another process. Raises LayoutError if it is not what it should be."""
    name = f"/proc/{pid}/fd/{descriptor}"
    try:
        # Only looked at: to open a pipe would wait.
        held = os.open(name, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise LayoutError(f"shared memory {name} cannot be opened: {error.strerror}") from None
    try:
        _check_host(pid, name)
        _check_ours(f"/proc/self/fd/{held}", name, secret)
        memory = SharedMemory.attach(f"/proc/self/fd/{held}", nbytes)
    finally:
        os.close(held)
    try:
        sealed = fcntl.fcntl(memory.descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    finally:
        memory.close()
    if not sealed:
        raise LayoutError(f"shared memory {name} can become smaller")
    return memory.bytes


def _check_host(pid: int, name: str) -> None:
    try:
        near = os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net")
    except OSError:
        near = False
    if not near:
        raise LayoutError(f"shared memory {name} is of a process in another network namespace")


def _check_ours(held: str, name: str, secret: str) -> None:
    found = os.stat(held)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or not secret or secret_at(held) != secret:
        raise LayoutError(f"{name} is no shared memory of this group")
