"""What the groups of a table agree on, and what its calls return: who is to be answered, and what is to be done."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from hybridps.errors import HybridPSError, LayoutError, ServerError
from hybridps.memory import Layout, shared_memory
from hybridps.ps.chunk_map import ChunkMap
from hybridps.ps.clocks import Clock
from hybridps.ps.rules import AnyRule

CHUNK_RECORD_BYTES, GROUP_RECORD_BYTES, KEY_RECORD_BYTES = 3072, 64, 512
"""Of a chunk, of a group in each chunk, and of a key: about what Python's objects for them take."""

TABLE_RECORD_BYTES, MEMBER_RECORD_BYTES = 6144, 256
"""Of a table, and of a group in it."""

Payload = memoryview | np.ndarray
"""Bytes of a chunk, as they came."""


class Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all groups of a table agree on. `server` is the place of this server among `servers`."""

    layout: Layout
    rule: AnyRule
    clock: Clock
    chunk_bytes: Annotated[int, Meta(ge=1, le=1 << 28)]
    server: Annotated[int, Meta(ge=0)]
    servers: Annotated[int, Meta(ge=1, le=4096)]

    def check(self) -> None:
        """Raise LayoutError or ServerError if the rule cannot be computed in this dtype, or with this clock."""
        name = type(self.rule).__name__
        if self.layout.dtype not in self.rule.dtypes:
            raise LayoutError(f"{name} is not computed in {self.layout.dtype}: use {' or '.join(self.rule.dtypes)}")
        if not isinstance(self.clock, self.rule.clocks):
            allowed = " or ".join(clock.__name__ for clock in self.rule.clocks)
            raise ServerError(f"{name} has no meaning with the clock {self.clock}: use {allowed}")

    def check_same(self, other: Terms, table: str) -> None:
        """Raise LayoutError or ServerError with both values if `other` differs from these terms."""
        difference = self.layout.difference(other.layout)
        if difference:
            raise LayoutError(f"table {table!r} is registered with another layout: {difference}")
        for name in ("rule", "clock", "chunk_bytes", "servers", "server"):
            here, there = getattr(self, name), getattr(other, name)
            if here != there:
                raise ServerError(
                    f"table {table!r} is registered with {name}={here}, and this group gives {there}: "
                    "start all groups of a job with the same settings"
                )

    def memory_bytes(self, groups: int) -> int:
        """Of a table on this server, about: the centre, the rule's state and sums under way, and the records of them.

        Small chunks and keys cost more than what is in them.
        """
        values = (2 + self.rule.states) * self.layout.nbytes // self.servers
        chunks = self.layout.nbytes // self.chunk_bytes // self.servers + 1
        records = CHUNK_RECORD_BYTES * chunks + GROUP_RECORD_BYTES * chunks * groups + self._keys_bytes()
        return values + records + TABLE_RECORD_BYTES + MEMBER_RECORD_BYTES * groups

    def _keys_bytes(self) -> int:
        return sum(KEY_RECORD_BYTES + len(slot.key) for slot in self.layout.slots)


class Ticket(NamedTuple):
    """Who is to be answered: a group, and the number it gave its request, greater than all before."""

    job: str
    group: int
    request: int


@dataclass(frozen=True, slots=True)
class Joined:
    """The registration is done; with `initialise` the group is to send the initial values."""

    ticket: Ticket
    initialise: bool


@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """A request for a chunk is done, or was refused or has failed with an `error`.

    `values` are to be sent, and nobody changes them; None: nothing to send.
    """

    ticket: Ticket
    chunk: int
    values: np.ndarray | None = None
    error: HybridPSError | None = None


class Upward:
    """A table of a rack server as its parents know it: one flat key, the chunks that this server owns, in order.

    `values` is where they lie on the way to the parents and back, each in its `places`; `centre` is for the centre of
    the parents, where the rule answers something else.
    """

    def __init__(self, job: str, table: str, terms: Terms) -> None:
        self.job = job
        self.table = table
        self.rule, self.clock, self.chunk_bytes = terms.rule, terms.clock, terms.chunk_bytes
        whole, server = terms.layout, f"{terms.server}-of-{terms.servers}"
        self.job_above = f"{re.sub('[^A-Za-z0-9_.-]', '-', job)[:32]}.{_digest(job.encode())}.{server}"
        """Servers with the same place in their racks meet there."""
        self.places: dict[int, slice] = {}
        length = 0
        for chunk in ChunkMap(whole, terms.chunk_bytes, terms.servers).owned_by(terms.server):
            self.places[chunk.index] = slice(length, length + chunk.length)
            length += chunk.length
        # Other keys, or others in number, make another name: the parents refuse them.
        key = f"server {server}, {len(whole.slots)} keys {_digest(msgspec.msgpack.encode(whole))}"
        self.layout = Layout.of(whole.dtype, {key: (length,)})
        self.values = shared_memory(self.layout.nbytes).view(whole.dtype)
        replaces = terms.rule.replaces or terms.rule.alone
        self.centre = None if replaces else shared_memory(self.layout.nbytes).view(whole.dtype)


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:12]


@dataclass(frozen=True, slots=True, eq=False)
class Up:
    """The values of a chunk of a table are to be exchanged with the parents; they are the sum of so many groups.

    None: the table is to be registered there, with the values of all chunks. `error`: they could not be had.
    """

    way: Upward
    chunk: int | None = None
    groups: int = 1
    error: HybridPSError | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What is to be done to the memory of a chunk: by its owner alone, in order. `done` is told afterwards."""

    owner: int
    run: Callable[[], None]
    done: Sequence[Done | Up] = ()


Outcome = Joined | Done | Up | Work
