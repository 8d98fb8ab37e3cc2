"""The messages between groups and servers.

A message is a control frame (msgpack of one of these structs) and, where said, payload frames: each has what a chunk
has of the message's elements. The table's codec encodes those of an exchange; the centre travels exact. Decoding checks
types, bounds and names; nothing is unpickled. What a message costs is known from its control frame and the number of
its frames.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from hybridps.errors import ProtocolError
from hybridps.ps.chunk_map import LARGEST_CHUNK_BYTES as LARGEST_CHUNK_BYTES
from hybridps.ps.joining import AskToJoin as AskToJoin
from hybridps.ps.joining import EndOfGroup as EndOfGroup
from hybridps.ps.joining import Terms
from hybridps.ps.joining import ToldToJoin as ToldToJoin
from hybridps.ps.joining import agreed_settings as agreed_settings
from hybridps.ps.message import Count, JobName, Number, TenantName, Token
from hybridps.ps.message import Message as Message
from hybridps.ps.model import Rules, SnapshotStart, TableSpec
from hybridps.ps.profile import PAGES, State
from hybridps.ps.refusals import Refused as Refused
from hybridps.ps.refusals import error_of as error_of
from hybridps.ps.refusals import refusal as refusal
from hybridps.ps.rules.rule import MOST_STATES

VERSION = 17
"""Of the protocol: both sides must have the same."""

LARGEST_CONTROL_BYTES = 1 << 22
MOST_ROWS = 1024
"""Vectors of one group."""

MOST_CHUNKS = 1024
"""Chunks of one message, and so its payload frames."""

MOST_RULES = 1 << 14
"""Of one message."""

Represented = Annotated[int, Meta(ge=0, le=1 << 30)]
"""Of how many groups values are the sum: of a rack's, if a rack server brings them."""

ArrayNumber = Annotated[int, Meta(ge=0, le=MOST_STATES)]
"""The centre (0), or a state of the rule (1, ...)."""

TableName = Annotated[str, Meta(min_length=1, max_length=256)]


class Hello(Message, frozen=True, omit_defaults=True):
    """The first message of a client, and the first on a connection that was restored. Answer: Welcome.

    `session` is a secret of the client, drawn at random. It names the client in Heartbeat and when it comes back, and
    it is the epoch of the group: numbers of requests count within it.
    """

    version: int
    session: Number
    job: JobName
    group: Number
    groups: Count
    tenant: TenantName = ""
    token: Token = ""
    again: bool = False
    """The server has welcomed this client before, and shall still know it."""
    life: Number = 0
    """How often the group was started again."""
    terms: Terms = Terms()


class OfTable(Message, frozen=True):
    """Base class: a request that concerns a table."""

    request: Number
    table: TableName


class Register(OfTable, frozen=True, omit_defaults=True):
    """Join a table. Answer: Registered, when it is this group's turn. `initialise` and `start` as in
    `Registrations.register`."""

    spec: TableSpec
    initialise: bool
    start: SnapshotStart | None = None


class OfSpan(OfTable, frozen=True):
    """Base class: concerns what this server owns of elements `start:stop`, in `MOST_CHUNKS` chunks at most."""

    start: Number
    stop: Number


class Initial(OfSpan, frozen=True):
    """Initial values of whole chunks. Payload: those of each chunk, or none for zeros. Answer: Done."""


class RegionOffset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a flat buffer begins: so many bytes into an attached region."""

    region: Number
    offset: Number


RegionOffsets = Annotated[tuple[RegionOffset, ...], Meta(max_length=MOST_ROWS)]


class Exchange(OfSpan, frozen=True):
    """Payload: the group's values. Answer: Done with the answers of the rounds as payload.

    In place, without payload, if `values` and `answers` are given: the sum of `values` counts, and the answers are
    written to all of `answers`. `rules`: of the span, if they are not the table's.
    """

    values: RegionOffsets = ()
    answers: RegionOffsets = ()
    groups: Represented = 1
    rules: Annotated[Rules, Meta(max_length=MOST_RULES)] = ()


class Pull(OfSpan, frozen=True):
    """Answer: Done with an array of whole chunks as payload."""

    array: ArrayNumber = 0


class Put(OfSpan, frozen=True):
    """Replace an array of whole chunks. Payload: the values of each chunk. Answer: Done."""

    array: ArrayNumber


class Drop(OfTable, frozen=True):
    """The group is done with a table. Answer: Done without chunks."""


class Attach(Message, frozen=True):
    """Memory of the client, in which exchanges may take place. Answer: Done without chunks.

    Descriptor `descriptor` of process `pid`; the server is to find `secret` there.
    """

    request: Number
    region: Number
    pid: Annotated[int, Meta(ge=1, le=1 << 31)]
    descriptor: Annotated[int, Meta(ge=0, le=1 << 31)]
    secret: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]
    nbytes: Annotated[int, Meta(ge=1, le=1 << 48)]


class Detach(Message, frozen=True):
    """The client has released a region: the server is to release it too. Answer: Done without chunks."""

    request: Number
    region: Number


class Profile(Message, frozen=True):
    """Record what concerns the job of the client, keep that, or forget it. Answer: Done without chunks."""

    request: Number
    state: State


class ProfilePage(Message, frozen=True):
    """Read a page of the profile of the client's job. Answer: Done without chunks, with the page as payload."""

    request: Number
    page: Annotated[int, Meta(ge=0, lt=PAGES)]


class Back(Message, frozen=True):
    """Follows a Hello on a connection that was restored: all that was under way was sent again. No answer."""


class Leave(Message, frozen=True):
    """The group is done with all its tables. Answer: Alive.

    `early`: it leaves the job before the end of its training, and is not counted among the job's groups any more.
    """

    early: bool = False


class Heartbeat(Message, frozen=True):
    """Sign of life, on a socket of its own. Answer: Alive. All requests before `settled` were answered.

    `silent_seconds`: for how long some rank of the group has given its leader no sign of life. `waiting_seconds`: for
    how long its oldest request has been under way, 0 if none is; None: that is not said.
    """

    session: Number
    settled: Number
    silent_seconds: Annotated[float, Meta(ge=0)] = 0.0
    waiting_seconds: Annotated[float, Meta(ge=0)] | None = None


class Silence(Message, frozen=True):
    """Which groups of the client's job are silent for longer? On a socket of its own, of any process that knows the
    session. It is no sign of life. Answer: Silent."""

    session: Number
    seconds: Annotated[float, Meta(ge=0)]


Request = (
    Hello
    | Register
    | Initial
    | Exchange
    | Pull
    | Put
    | Attach
    | Detach
    | Drop
    | Profile
    | ProfilePage
    | Back
    | Leave
    | Heartbeat
    | Silence
    | AskToJoin
    | EndOfGroup
)


class Welcome(Message, frozen=True):
    """The server takes the group in. With a parent its centre is not what the first group initialised it with.

    `life`: how many processes have been this server before. In another one the client attaches its memory again.
    """

    version: int
    has_parent: bool = False
    life: Number = 0


class Registered(Message, frozen=True, omit_defaults=True):
    """The table is joined. With `initialise` the group is to send the initial values; `dropped` as in `Joining`.

    `start`: the group tells it to the other servers.
    """

    request: Number
    initialise: bool
    dropped: bool = False
    start: SnapshotStart | None = None


class Done(Message, frozen=True, omit_defaults=True):
    """A request is done, for these chunks if it concerns some; payload as said there.

    `not_finite`: of the values in an exchange that count although they have NaN or Inf, the number of the row and the
    first such element; one for each chunk.
    """

    request: Number
    chunks: tuple[Number, ...]
    not_finite: tuple[tuple[Number, Number], ...] = ()


class Alive(Message, frozen=True, omit_defaults=True):
    """The server has heard a Heartbeat, Leave or EndOfGroup. To a Heartbeat: the groups of the job that are there or
    expected, and their workers; 0 if that is not known."""

    groups: Number = 0
    workers: Number = 0


class Silent(Message, frozen=True):
    """These groups have been silent for longer. Those that left in good order, or never came, are not among them."""

    groups: tuple[Number, ...]


Answer = Welcome | Registered | Done | Alive | Silent | ToldToJoin | Refused

Decoded = TypeVar("Decoded")
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)

encode = msgspec.msgpack.Encoder().encode
"""The control frame of a message."""


def decode_request(frame: bytes | memoryview) -> Request:
    """A message to a server. Raises ProtocolError. The layout of a table is not looked at."""
    request = _decode(_requests, frame)
    if isinstance(request, Hello) and request.version != VERSION:
        raise ProtocolError(
            f"the group speaks version {request.version} of the protocol, the server version {VERSION}: "
            "install the same hybridps everywhere"
        )
    return request


def decode_answer(frame: bytes | memoryview) -> Answer:
    """A message to a group. Raises ProtocolError."""
    return _decode(_answers, frame)


def _decode(decoder: msgspec.msgpack.Decoder[Decoded], frame: bytes | memoryview) -> Decoded:
    if len(frame) > LARGEST_CONTROL_BYTES:
        raise ProtocolError(f"the control frame has {len(frame)} bytes: {LARGEST_CONTROL_BYTES} at most")
    try:
        return decoder.decode(frame)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the message cannot be read: {str(error)[:200]}") from None
