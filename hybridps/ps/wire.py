"""The messages between groups and servers.

A message is a control frame (msgpack of one of these structs) and, for some, payload frames. Each payload frame has
those of the message's elements that are in one chunk. The values of an exchange are encoded by the table's codec; the
centre is sent exactly. Decoding checks types, bounds and names; nothing is unpickled. The cost of a message is known
from its control frame and the number of its frames.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from hybridps.errors import ProtocolError
from hybridps.ps.chunk_map import LARGEST_CHUNK_BYTES as LARGEST_CHUNK_BYTES
from hybridps.ps.joining import AskToJoin as AskToJoin
from hybridps.ps.joining import EndOfGroup as EndOfGroup
from hybridps.ps.joining import Meet as Meet
from hybridps.ps.joining import Met as Met
from hybridps.ps.joining import Terms
from hybridps.ps.joining import ToldToJoin as ToldToJoin
from hybridps.ps.message import Count, JobName, Number, TenantName, Token
from hybridps.ps.message import Message as Message
from hybridps.ps.model import Rules, SnapshotStart, TableSpec
from hybridps.ps.profile import PAGES, State
from hybridps.ps.refusals import Refused as Refused
from hybridps.ps.refusals import error_of as error_of
from hybridps.ps.refusals import refusal as refusal
from hybridps.ps.rules.rule import MOST_STATES

VERSION = 20
"""The version of the protocol, which must be the same on both sides."""

LARGEST_CONTROL_BYTES = 1 << 22
MOST_ROWS = 1024
"""The largest number of vectors of one group."""

MOST_CHUNKS = 1024
"""The largest number of chunks, and so of payload frames, in one message."""

MOST_RULES = 1 << 14
"""The largest number of rules in one message."""

Represented = Annotated[int, Meta(ge=0, le=1 << 30)]
"""The number of groups that values are the sum of. A rack server brings the values of several."""

ArrayNumber = Annotated[int, Meta(ge=0, le=MOST_STATES)]
"""The centre (0), or a state of the rule (1, ...)."""

TableName = Annotated[str, Meta(min_length=1, max_length=256)]


class Hello(Message, frozen=True, omit_defaults=True):
    """The first message of a client, and the first on a restored connection. Answer: Welcome.

    `session` is a secret of the client, drawn at random. It identifies the client in Heartbeat and when it reconnects.
    It is also the epoch of the group: numbers of requests count within it.
    """

    version: int
    session: Number
    job: JobName
    group: Number
    groups: Count
    tenant: TenantName = ""
    token: Token = ""
    again: bool = False
    """The server has welcomed this client before, and must still know it."""
    life: Number = 0
    """How often the group was started again."""
    terms: Terms = Terms()


class OfTable(Message, frozen=True):
    """Base class of requests that concern a table."""

    request: Number
    table: TableName


class Register(OfTable, frozen=True, omit_defaults=True):
    """Join a table. Answer: Registered, when it is this group's turn. See `Registrations.register`."""

    spec: TableSpec
    initialise: bool
    start: SnapshotStart | None = None


class OfSpan(OfTable, frozen=True):
    """Base class of requests for what this server owns of elements `start:stop`: at most `MOST_CHUNKS` chunks."""

    start: Number
    stop: Number


class Initial(OfSpan, frozen=True):
    """Initial values of whole chunks. Payload: those of each chunk, or none for zeros. Answer: Done."""


class RegionOffset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a flat buffer begins: `offset` bytes into an attached region."""

    region: Number
    offset: Number


RegionOffsets = Annotated[tuple[RegionOffset, ...], Meta(max_length=MOST_ROWS)]


class Exchange(OfSpan, frozen=True):
    """Contribute to rounds. Payload: the group's values. Answer: Done, with the answers of the rounds as payload.

    If `values` and `answers` are given, the exchange is in place, without payload: the sum of `values` counts, and the
    answers are written to all of `answers`. `rules`: the rules of the span, if they are not the table's.
    """

    values: RegionOffsets = ()
    answers: RegionOffsets = ()
    groups: Represented = 1
    rules: Annotated[Rules, Meta(max_length=MOST_RULES)] = ()


class Pull(OfSpan, frozen=True):
    """Read an array. Answer: Done, with the values of whole chunks as payload."""

    array: ArrayNumber = 0


class Put(OfSpan, frozen=True):
    """Replace an array of whole chunks. Payload: the values of each chunk. Answer: Done."""

    array: ArrayNumber


class Drop(OfTable, frozen=True):
    """The group gives up a table. Answer: Done without chunks."""


class Attach(Message, frozen=True):
    """Offer memory of the client for exchanges in place. Answer: Done without chunks.

    The memory is descriptor `descriptor` of process `pid`, where the server must find `secret`.
    """

    request: Number
    region: Number
    pid: Annotated[int, Meta(ge=1, le=1 << 31)]
    descriptor: Annotated[int, Meta(ge=0, le=1 << 31)]
    secret: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]
    nbytes: Annotated[int, Meta(ge=1, le=1 << 48)]


class Detach(Message, frozen=True):
    """The client has released a region, and the server must do so too. Answer: Done without chunks."""

    request: Number
    region: Number


class Profile(Message, frozen=True):
    """Record what concerns the client's job, stop recording, or forget the records. Answer: Done without chunks."""

    request: Number
    state: State


class ProfilePage(Message, frozen=True):
    """Read a page of the profile of the client's job. Answer: Done without chunks, with the page as payload."""

    request: Number
    page: Annotated[int, Meta(ge=0, lt=PAGES)]


class Back(Message, frozen=True):
    """Follows a Hello on a restored connection: all that was under way has been sent again. No answer."""


class Leave(Message, frozen=True):
    """The group gives up all its tables. Answer: Alive.

    `early`: it leaves before the training ends, and does not count as one of the job's groups any more.
    """

    early: bool = False


class Heartbeat(Message, frozen=True):
    """A sign of life, on a socket of its own. Answer: Alive. All requests before `settled` were answered.

    `silent_seconds`: for how long some rank of the group has given its leader no sign of life. `waiting_seconds`: for
    how long its oldest request has been under way, 0 if there is none; None if this is not reported.
    """

    session: Number
    settled: Number
    silent_seconds: Annotated[float, Meta(ge=0)] = 0.0
    waiting_seconds: Annotated[float, Meta(ge=0)] | None = None


class Silence(Message, frozen=True):
    """Asks which groups of the client's job have been silent for longer than `seconds`. Answer: Silent.

    Any process that knows the session may ask, on a socket of its own. It is no sign of life.
    """

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
    | Meet
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
    """The server lets the group in.

    `has_parent`: the centre may differ from what the first group initialised it with. `life`: how many processes have
    been this server before. If it has changed, the client attaches its memory again.
    """

    version: int
    has_parent: bool = False
    life: Number = 0


class Registered(Message, frozen=True, omit_defaults=True):
    """The group has joined the table. If `initialise`, it must send the initial values. `dropped` as in `Joining`.

    `start`: the group passes this on to the other servers.
    """

    request: Number
    initialise: bool
    dropped: bool = False
    start: SnapshotStart | None = None


class Done(Message, frozen=True, omit_defaults=True):
    """A request is done, for these chunks if it concerns chunks. The request says which payload this has.

    `not_finite`: for each chunk of an exchange whose values count although they have NaN or Inf, the number of the row
    and its first such element.
    """

    request: Number
    chunks: tuple[Number, ...]
    not_finite: tuple[tuple[Number, Number], ...] = ()


class Alive(Message, frozen=True, omit_defaults=True):
    """The server has received a Heartbeat, Leave or EndOfGroup.

    After a Heartbeat: the groups of the job that are there or expected, and their workers; 0 if not known. `behind`:
    1 + the number of the group furthest behind the others; 0 if none is.
    """

    groups: Number = 0
    workers: Number = 0
    behind: Number = 0


class Silent(Message, frozen=True):
    """The groups that have been silent for longer. Groups that left in good order or never started are not listed."""

    groups: tuple[Number, ...]


Answer = Welcome | Registered | Done | Met | Alive | Silent | ToldToJoin | Refused

Decoded = TypeVar("Decoded")
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)

encode = msgspec.msgpack.Encoder().encode
"""Returns the control frame of a message."""


def decode_request(frame: bytes | memoryview) -> Request:
    """Decode a message to a server. Raises ProtocolError. The layout of a table is not checked."""
    request = _decode(_requests, frame)
    if isinstance(request, Hello) and request.version != VERSION:
        raise ProtocolError(
            f"the group speaks version {request.version} of the protocol, the server version {VERSION}: "
            "install the same hybridps everywhere"
        )
    return request


def decode_answer(frame: bytes | memoryview) -> Answer:
    """Decode a message to a group. Raises ProtocolError."""
    return _decode(_answers, frame)


def _decode(decoder: msgspec.msgpack.Decoder[Decoded], frame: bytes | memoryview) -> Decoded:
    if len(frame) > LARGEST_CONTROL_BYTES:
        raise ProtocolError(f"the control frame has {len(frame)} bytes: {LARGEST_CONTROL_BYTES} at most")
    try:
        return decoder.decode(frame)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the message cannot be read: {str(error)[:200]}") from None
