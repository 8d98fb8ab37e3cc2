"""The lines of a trace file. Times are whole microseconds of the process's monotonic clock, since its base."""

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


class Line(msgspec.Struct, frozen=True, omit_defaults=True, tag=str.lower, tag_field="line"):
    """Base class. `line` is the name of the class in lower case."""


class Process(Line, frozen=True):
    """The first line of each life of a worker. `base` (in seconds of its clock) and `wall` (since 1970) are one moment.

    `clock`: the host and its boot. Processes with the same value may share a monotonic clock.
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
    """Keys of a table, numbered from `first` on: their names, numbers of elements, and bytes of gradients."""

    table: Name
    first: Number
    names: list[Name]
    elements: list[Number]
    nbytes: list[Number]


class Span(NamedTuple):
    """What the communication thread did from `began` to `ended`. `key`: the first key of the bucket, or -1."""

    kind: Kind
    began: Microseconds
    ended: Microseconds
    key: Number = -1
    nbytes: Number = 0


class Step(Line, frozen=True):
    """A step of a model of a worker. `began`: when its first key was pushed; `ended`: when it had all of its sums.

    `arrived`: the numbers of keys, and when their gradients had been computed. `loading`: when the script loaded data.
    `program`: the time from when the script began the step before to when it began this one, without waits for sums.
    `computes_before`: the script computes the gradients before it begins the step.
    """

    number: Number
    model: Number
    began: Microseconds
    ended: Microseconds
    arrived: list[tuple[Number, Microseconds]]
    spans: list[Span]
    loading: list[tuple[Microseconds, Microseconds]] = []
    program: Microseconds = 0
    computes_before: bool = False


class Served(Line, frozen=True):
    """What a server did for the job since the last request: the messages that it handled and the rounds it computed.

    Each column has one element for each of them. `kind`, `table`: indices of `names`. `chunk`, `group`, `request`: -1
    where there is none; `request` is the number that the client gave its message. `thread`: 0 for the thread that
    handles messages, 1 + n for thread n of those that own chunks. `began`: microseconds of the server's clock.
    `missing`: the number of records for which the server had no room.
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
    """A short message of this worker to a server and back, which compares their clocks. `request` is its number."""

    server: Number
    address: Name
    request: Number
    began: Microseconds
    ended: Microseconds


AnyLine = Process | Keys | Step | Served | Probe
