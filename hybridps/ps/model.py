"""The records of the parameter service, each defined once: what groups agree on, and what one room hands to another.

The loop of a server knows which group has brought what. It hands a contribution to a worker thread, which alone touches
the memory of the chunk, and gets an answer back. A `Task` says which part of this runs on which thread.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Annotated, Any, Literal, NamedTuple
from zlib import crc32

import msgspec
import numpy as np
from msgspec import Meta

from hybridps.codecs import CodecSpec, Values, codec_of
from hybridps.errors import HybridPSError, LayoutError, ServerError
from hybridps.memory import Layout
from hybridps.ps.chunk_map import LARGEST_CHUNK_BYTES, ChunkMap, Span
from hybridps.ps.clocks import Clock
from hybridps.ps.rules import AnyRule


class UnknownClientError(ServerError):
    """A server does not know a client, or no longer knows it."""


class IdleGroupError(UnknownClientError):
    """A group asked for nothing while others of its job waited, and a server has treated it as lost."""


class GroupTakenError(ServerError):
    """Another process is that group. It may have ended without having been declared lost yet."""


class Joining(enum.Enum):
    """What a group finds when it registers a table."""

    NEW = "new"
    """This group has initialised the centre."""
    LATE = "late"
    """The centre existed already."""
    SNAPSHOT = "snapshot"
    """The centre is that of a snapshot, and no group has trained since."""
    DROPPED = "dropped"
    """All groups had registered the table and dropped it, so there is nothing to read."""

    @property
    def takes_centre(self) -> bool:
        """Whether the group's own initial values do not count, because there is a centre."""
        return self in (Joining.LATE, Joining.SNAPSHOT)


class Meeting(NamedTuple):
    """What a group learns at a meeting of the groups that train in step: how many meetings there have been, and how
    many groups begin to take part that were restarted.
    """

    number: int
    newcomers: int
    joins: bool
    """Whether this group is one of them."""
    gives: bool
    """Whether this group gives them what they need to train with the others."""
    giver: int | None
    """The group that does; None if no group has trained that is still there."""
    finished: bool
    """Whether a group has come to the end of its training."""


class TableSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all groups of a table agree on. `server` is the place of this server among `servers`."""

    layout: Layout
    rule: AnyRule
    clock: Clock
    chunk_bytes: Annotated[int, Meta(ge=1, le=LARGEST_CHUNK_BYTES)]
    server: Annotated[int, Meta(ge=0)]
    servers: Annotated[int, Meta(ge=1, le=4096)]
    codec: CodecSpec = "exact"

    def check(self) -> None:
        """Raise LayoutError or ServerError if the rule cannot be computed in this layout, or with this clock."""
        name = type(self.rule).__name__
        if self.layout.dtype not in self.rule.dtypes:
            raise LayoutError(f"{name} is not computed in {self.layout.dtype}: use {' or '.join(self.rule.dtypes)}")
        if not isinstance(self.clock, self.rule.clocks):
            allowed = " or ".join(clock.__name__ for clock in self.rule.clocks)
            raise ServerError(f"{name} has no meaning with the clock {self.clock}: use {allowed}")
        codec_of(self.codec).nbytes(0, self.layout.dtype)
        if self.rule.whole_keys and len(self.layout.slots) != 1:
            raise LayoutError(f"{self.rule} needs tables of one key: this layout has {len(self.layout.slots)}")
        if self.rule.whole_keys and not self.layout.nbytes <= self.chunk_bytes <= LARGEST_CHUNK_BYTES:
            raise LayoutError(
                f"key {self.layout.slots[0].key!r} has {self.layout.nbytes} bytes, and {self.rule} needs it in one "
                f"chunk, of {LARGEST_CHUNK_BYTES} bytes at most: use another optimizer, or let the workers update"
            )

    def check_same(self, other: TableSpec, table: str) -> None:
        """Raise LayoutError or ServerError, with both values, if `other` differs from this spec."""
        if self.layout != other.layout:
            difference = self.layout.difference(other.layout)
            raise LayoutError(f"table {table!r} is registered with another layout: {difference}")
        for name in ("rule", "clock", "chunk_bytes", "servers", "server", "codec"):
            here, there = getattr(self, name), getattr(other, name)
            if here != there:
                raise ServerError(
                    f"table {table!r} is registered with {name}={here}, and this group gives {there}: "
                    "start all groups of a job with the same settings"
                )

    def shape_of(self, span: Span) -> tuple[int, ...]:
        """Return the shape of a whole chunk: the key's if the table is one key in one chunk, otherwise flat.

        The padding after the last key is left out.
        """
        slots = self.layout.slots
        if len(slots) == 1 and span.length == self.layout.length:
            return slots[0].shape or (1,)
        return (min(span.stop, slots[-1].stop) - span.start,)

    def chunk_map(self) -> ChunkMap:
        """Return the chunks of the table on all servers. Raises LayoutError if they cannot be made."""
        first = crc32(self.layout.slots[0].key.encode()) if self.rule.whole_keys else 0
        return ChunkMap(self.layout, self.chunk_bytes, self.servers, first)


Rules = tuple[tuple[int, AnyRule], ...]
"""Rules for a range of elements that replace the table's rule. Each comes with the element before which it ends. They
differ from the table's rule in their numbers only, such as a changing learning rate. An empty tuple: the table's rule
applies."""


def rules_of_span(rules: Rules, start: int, stop: int) -> Rules:
    """Return the rules of elements `start:stop`, from the rules of a range that contains them."""
    if not rules:
        return ()
    first = bisect_right(rules, start, key=itemgetter(0))
    last = bisect_left(rules, stop, first, key=itemgetter(0))
    return tuple((min(end, stop), rule) for end, rule in rules[first : last + 1])


class Origin(NamedTuple):
    """The sender of a request: one life (`epoch`) of a group of a job, and the number of the request in that life.

    With a chunk it identifies a contribution, so that one that arrives twice counts once.
    """

    job: str
    group: int
    epoch: int
    request: int


class Contribution(msgspec.Struct, frozen=True, eq=False):
    """What a group brings to a round for the elements of a span: the sum of `rows`.

    `rows` are flat arrays of the span's length, or encoded values. The answer is written to all `targets`, memory of
    the group; None: it is sent. `groups`: how many groups the values represent; a rack server brings several. `rules`:
    the rules of the span. `not_finite`: filled by a worker thread that has found NaN or Inf, which count nevertheless,
    with the number of the row and its first such element in the flat buffer.
    """

    origin: Origin
    span: Span
    rows: Sequence[Values]
    targets: Sequence[np.ndarray] | None = None
    groups: int = 1
    rules: Rules = ()
    not_finite: list[tuple[int, int]] = []


class Answer(msgspec.Struct, frozen=True, eq=False):
    """A request is done, or was refused with an `error`: for one chunk, or as a whole (None).

    `values` are to be sent and never change; None: nothing is sent. `not_finite`: as in `Contribution`.
    """

    origin: Origin
    chunk: int | None
    values: np.ndarray | None = None
    error: HybridPSError | None = None
    not_finite: Sequence[tuple[int, int]] = ()


class SnapshotStart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Says that a table starts from snapshot `number`: once, for the `token` that the first server has drawn."""

    number: Annotated[int, Meta(ge=0, le=1 << 62)]
    token: Annotated[int, Meta(ge=0, le=1 << 62)]


class Admitted(msgspec.Struct, frozen=True):
    """A group has joined a table. If `initialise`, it must send the initial values. `dropped` as in `Joining`.

    `start`: the first server has taken the centre from a snapshot, and the others must do the same.
    """

    origin: Origin
    initialise: bool
    dropped: bool = False
    start: SnapshotStart | None = None


class Met(msgspec.Struct, frozen=True):
    """The groups of a job have met for the `number`-th time.

    `trains`: the groups that train from now on, with the life of each. `newcomers`: the groups that have come and did
    not train before, as they were restarted. `giver`: the lowest of the groups that have trained; None if there are no
    newcomers, or nobody has trained that is still there, so that nobody trains. `finished`: whether some group has come
    to the end of its training.
    """

    origin: Origin
    number: int
    trains: dict[int, int]
    newcomers: tuple[int, ...]
    giver: int | None
    finished: bool


class ChunkPlace(NamedTuple):
    """Identifies a chunk of a table of a job."""

    job: str
    table: str
    chunk: int


class Task(msgspec.Struct, frozen=True, eq=False):
    """Work on the memory of a chunk. The worker thread `owner` calls `run`, in order; then the loop calls `then`.

    `then` gets the result of `run`, or a ServerError that stands for its exception. It returns the outcomes that
    follow.
    """

    owner: int
    run: Callable[[], Any]
    then: Callable[[Any], Iterable[Outcome]]
    nbytes: int | None = None
    """The number of bytes that are read and written, if it is known and nothing is compiled. The loop itself runs small
    tasks at once."""
    sends: bool = False
    """Whether values are sent afterwards. The loop is then woken at once, instead of with the next result."""
    round_of: ChunkPlace | None = None
    """The chunk of which a round is computed, if one is."""


class ParentRequest(msgspec.Struct, frozen=True, eq=False):
    """A rack server asks its parents to register or drop a `RackTable`, or to exchange a part of it.

    When the answer is back, the loop calls `then` with None, or with the error with which the parents refused the
    values.
    """

    action: Literal["register", "exchange", "drop"]
    table: Any
    then: Callable[[HybridPSError | None], Iterable[Outcome]]
    place: slice = slice(0, 0)
    """The elements of the table's buffer to exchange. They are the sum of `groups` groups."""
    groups: int = 1


Outcome = Admitted | Answer | Met | Task | ParentRequest
