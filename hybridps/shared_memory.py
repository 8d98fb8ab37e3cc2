"""Shared memory of the processes of a host: ranks of a node reduce in it, and servers work in it.

The memory has no file: it is gone when the last process that uses it ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from hybridps.errors import LayoutError
from hybridps.mapping import address_of, make_private, map_file
from hybridps.memory import private_memory

_FIXED_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Place(NamedTuple):
    """The place of an array in shared memory of this process."""

    descriptor: int
    """A descriptor of this process, open as long as the memory is used."""
    nbytes: int
    """The size of the whole memory."""
    offset: int
    """The number of bytes before the array."""
    secret: str
    """A text that only processes can read that may open the memory."""


def place_of(array: np.ndarray) -> Place | None:
    """Return the place of a contiguous array, or None if it is not a part of shared memory."""
    start = address_of(array)
    while isinstance(array.base, np.ndarray):
        array = array.base
    whole = _mapped.get(address_of(array))
    return None if whole is None else whole._replace(offset=start - address_of(array))


_mapped: dict[int, Place] = {}
"""The shared memory that this process has mapped, by address."""


def _map(descriptor: int, nbytes: int) -> np.ndarray:
    """Map shared memory. Its descriptor stays open as long as an array over it is used. Raises OSError."""
    memory = map_file(descriptor, nbytes)
    address, kept = address_of(memory), os.dup(descriptor)
    _mapped[address] = Place(kept, nbytes, 0, secret_at(f"/proc/self/fd/{kept}"))
    # This comes before the memory is unmapped, so that its address cannot have another use yet: Python calls what was
    # registered last first.
    weakref.finalize(memory.base.obj, _forget, address).atexit = False  # type: ignore[union-attr]
    return memory


def _forget(address: int, close: Callable[[int], None] = os.close) -> None:
    close(_mapped.pop(address).descriptor)


def _part() -> None:
    """Make what this process writes to shared memory its own from now on, as in other memory after a fork."""
    for address, place in list(_mapped.items()):
        if not make_private(address, place.nbytes, place.descriptor):
            os.abort()  # otherwise this process would write into its parent's memory


os.register_at_fork(after_in_child=_part)


def shared_memory(nbytes: int) -> np.ndarray:
    """Return zeroed bytes (uint8) that a server on this host may work on, or private ones if the system grants none."""
    try:
        return create_shared(nbytes) if nbytes else private_memory(0)
    except OSError:
        return private_memory(nbytes)


def create_shared(nbytes: int) -> np.ndarray:
    """Return zeroed bytes (uint8; at least one) that others on this host attach to by `shared_name`. Raises OSError."""
    # Only processes that may read this process's descriptors can read the secret, so servers ask for it. The size is
    # fixed for ever, because memory that becomes smaller kills the processes that read it.
    descriptor = os.memfd_create(f"hybridps-{secrets.token_hex(16)}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(descriptor, "r+b", buffering=0) as file:
        file.truncate(nbytes)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _FIXED_SIZE | fcntl.F_SEAL_SEAL)
        return _map(descriptor, nbytes)


def shared_name(memory: np.ndarray) -> str:
    """Return the name by which other processes attach to memory of `create_shared` while this process uses it.

    The name is empty for other memory.
    """
    place = place_of(memory)
    return f"/proc/{os.getpid()}/fd/{place.descriptor}" if place else ""


def attach_shared(name: str, nbytes: int) -> np.ndarray:
    """Return memory (uint8) that another process created.

    Raises LayoutError if it cannot be reached, or if it is or may become smaller than `nbytes`.
    """
    try:
        with open(name, "r+b", buffering=0) as file:
            if os.fstat(file.fileno()).st_size < nbytes:
                raise LayoutError(f"shared memory {name} is smaller than the {nbytes} bytes expected")
            if fcntl.fcntl(file, fcntl.F_GET_SEALS) & _FIXED_SIZE != _FIXED_SIZE:
                raise LayoutError(f"shared memory {name} can become smaller")
            return _map(file.fileno(), nbytes)
    except OSError as error:
        raise LayoutError(f"shared memory {name} cannot be opened: {error.strerror}") from None


def attach_offered(pid: int, descriptor: int, secret: str, nbytes: int) -> np.ndarray:
    """Return the memory (uint8) behind a descriptor that another process of this user offers, with the memory's secret.

    What a message names is never opened as a path. A process in another network namespace counts as one of another
    host. Raises LayoutError if the memory cannot be reached, was not made by hybridps, or may become smaller.
    """
    name = f"/proc/{pid}/fd/{descriptor}"
    try:
        # This only looks at the file, because opening a pipe would wait.
        held = os.open(name, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise LayoutError(f"shared memory {name} cannot be opened: {error.strerror}") from None
    memory, near = f"/proc/self/fd/{held}", False
    try:
        with suppress(OSError):
            near = os.path.samefile(f"/proc/{pid}/ns/net", "/proc/self/ns/net")
        if not near:
            raise LayoutError(f"shared memory {name} belongs to a process in another network namespace")
        found = os.stat(memory)
        ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        if not ours or not secret or secret_at(memory) != secret:
            raise LayoutError(f"{name} is not shared memory of this group")
        return attach_shared(memory, nbytes)
    finally:
        os.close(held)


def secret_at(name: str) -> str:
    """Return the secret of the shared memory whose descriptor is this file of /proc; empty if it is other memory."""
    found = re.fullmatch(r"/memfd:hybridps-([0-9a-f]{32}) \(deleted\)", os.readlink(name))
    return found[1] if found else ""


def is_released(descriptor: int, secret: str) -> bool:
    """Return whether this process no longer has the shared memory with this descriptor and secret."""
    try:
        return secret_at(f"/proc/self/fd/{descriptor}") != secret
    except OSError:
        return True
