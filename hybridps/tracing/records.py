"""The lines of a trace file. Times are whole microseconds of the monotonic clock of the process, since its base."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

Microseconds = Annotated[int, Meta(ge=-(1 << 53), le=1 << 53)]
Number = Annotated[int, Meta(ge=-1, le=1 << 53)]
Name = Annotated[str, Meta(max_length=4096)]

Kind = Literal["vote", "allreduce", "exchange", "averaging"]
"""What the communication thread does: it waits until all ranks of the group have the gradients of a bucket; reduces in
the group; waits for the answer of the servers; exchanges weights with other groups."""


class Line(msgspec.Struct, frozen=True, tag=str.lower, tag_field="line"):
    """Base class. `line` is the name of the class in small letters."""


class Process(Line, frozen=True):
    """Begins the lines of one life of a worker. Of the same moment: `base` in seconds of its clock, `wall` since 1970.

    `clock`: the host and its boot: processes with the same one may share a monotonic clock.
    """

    worker: Number
    group: Number
    group_rank: Number
    base: float
    wall: float
    clock: str = ""
    launch: str | None = None
    life: Number = 0


class Keys(Line, frozen=True):
    """Keys of a table, in the order of their numbers from `first` on: their names, elements, and bytes of gradients."""

    table: Name
    first: Number
    names: list[Name]
    elements: list[Number]
    nbytes: list[Number]


class Span(NamedTuple):
    """What the communication thread did from `began` to `ended`; `key`: the first one of the bucket, or -1."""

    kind: Kind
    began: Microseconds
    ended: Microseconds
    key: Number = -1
    nbytes: Number = 0


class Step(Line, frozen=True):
    """A step of a model of a worker. `began`: its first key was pushed; `ended`: all of its sums are there.

    `arrived`: the numbers of keys, and when their gradients had been computed. `loading`: when the script loaded data.
    """

    number: Number
    model: Number
    began: Microseconds
    ended: Microseconds
    arrived: list[tuple[Number, Microseconds]]
    spans: list[Span]
    loading: list[tuple[Microseconds, Microseconds]] = []


class Served(Line, frozen=True):
    """What a server did for the job since it was last asked: the messages that it handled and the rounds it computed.

    One element of each column for each of them. `kind`, `table`: numbers of `names`. `chunk`, `group`, `request`: -1
    where there is none; `request` is the number that the client gave its message. `thread`: 0 for the one that handles
    messages, 1 + n for number n of those that own chunks. `began`: microseconds of the server's clock. `missing`: for
    how many records the server had no room.
    """

    server: Number
    address: Name
    names: list[Name]
    kind: list[Number]
    table: list[Number]
    chunk: list[Number]
    group: list[Number]
    thread: list[Number]
    request: list[Number]
    began: list[Microseconds]
    took: list[Microseconds]
    missing: Number = 0


class Probe(Line, frozen=True):
    """A short message of this worker to a server and back: `request` is its number. Compares their clocks."""

    server: Number
    address: Name
    request: Number
    began: Microseconds
    ended: Microseconds


AnyLine = Process | Keys | Step | Served | Probe
