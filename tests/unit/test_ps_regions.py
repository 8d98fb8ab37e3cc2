"""Memory that a server is offered: only what hybridps made, of this user, of fixed size, and by who may open it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack

import numpy as np
import pytest

from hybridps.errors import LayoutError
from hybridps.memory import private_memory
from hybridps.shared_memory import attach_offered, place_of, secret_at, shared_memory

SECRET = 16 * "ab"


def offered(array):
    """What a client says of its memory."""
    place = place_of(array)
    return os.getpid(), place.descriptor, place.secret, place.nbytes


def test_it_is_the_same_memory():
    mine = shared_memory(4096)
    theirs = attach_offered(*offered(mine))
    theirs[5] = 7
    assert mine[5] == 7
    assert len(theirs) == 4096


def test_a_part_knows_its_place():
    memory = shared_memory(4096).view(np.float32)
    place = place_of(memory[100:200].reshape(10, 10)[2:])
    assert (place.offset, place.nbytes) == (480, 4096)
    for private in (np.zeros(4), private_memory(64), memory.copy()):
        assert place_of(private) is None


def test_the_descriptor_is_open_as_long_as_the_memory_is_used():
    memory = shared_memory(4096)
    descriptor = place_of(memory).descriptor
    part = memory[10:]
    del memory
    assert secret_at(f"/proc/self/fd/{descriptor}")
    del part
    with pytest.raises(OSError, match="No such file"):
        os.readlink(f"/proc/self/fd/{descriptor}")


OFFER = """
import os, sys
from hybridps.shared_memory import place_of, shared_memory
memory = shared_memory(4096)
place = place_of(memory)
print(os.getpid(), place.descriptor, place.secret, place.nbytes, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("apart", [False, True])
def test_another_network_namespace_is_another_host(apart):
    """Where nodes of a cluster are such namespaces, their values go over the links between them."""
    command = [*["unshare", "--net"] * apart, sys.executable, "-c", OFFER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        said = other.stdout.readline().split()
        if apart and not said:
            pytest.skip("no network namespace can be made here")
        pid, descriptor, secret, nbytes = said
        offer = int(pid), int(descriptor), secret, int(nbytes)
        if apart:
            with pytest.raises(LayoutError, match="another network namespace"):
                attach_offered(*offer)
        else:
            assert len(attach_offered(*offer)) == 4096
        other.stdin.close()


@pytest.mark.parametrize("change", [(0, 1 << 22), (1, 4000), (2, SECRET), (2, ""), (3, 8192)])
def test_what_is_not_as_offered_is_refused(change):
    memory = shared_memory(4096)
    offer = list(offered(memory))
    offer[change[0]] = change[1]
    with pytest.raises(LayoutError, match="shared memory"):
        attach_offered(*offer)


def named_memory(name, sealed=False):
    descriptor = os.memfd_create(name, os.MFD_ALLOW_SEALING if sealed else 0)
    os.ftruncate(descriptor, 4096)
    return descriptor


@pytest.mark.parametrize("kind", ["file", "device", "pipe", "socket", "other memory", "memory that can become smaller"])
def test_other_descriptors_are_refused_and_never_waited_for(kind):
    with ExitStack() as stack:
        if kind == "file":
            file = stack.enter_context(tempfile.NamedTemporaryFile(prefix=f"memfd:hybridps-{SECRET}"))
            file.truncate(4096)
            descriptor = file.fileno()
        elif kind == "device":
            descriptor = os.open("/dev/zero", os.O_RDWR)
        elif kind == "pipe":
            descriptor, other = os.pipe()
            stack.callback(os.close, other)
        elif kind == "socket":
            descriptor = os.eventfd(0)
        elif kind == "other memory":
            descriptor = named_memory("secrets of another program", sealed=True)
        else:
            descriptor = named_memory(f"hybridps-{SECRET}")
        stack.callback(os.close, descriptor if kind != "file" else os.dup(descriptor))
        with pytest.raises(LayoutError, match="shared memory"):
            attach_offered(os.getpid(), descriptor, SECRET, 4096)


def test_the_size_is_fixed():
    memory = shared_memory(4096)
    for nbytes in (0, 8192):
        with pytest.raises(OSError, match="Operation not permitted"):
            os.ftruncate(place_of(memory).descriptor, nbytes)
