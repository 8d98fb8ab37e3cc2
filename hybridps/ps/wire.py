"""The messages between groups and servers.

A message is a control frame (msgpack of one of these structs) and, where said, payload frames: each has what a chunk
has of the message's elements. The table's codec encodes those of an exchange; the centre travels exact. Decoding checks
types, bounds and names; nothing is unpickled. What a message costs is known from its control frame and the number of
its frames.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hybridps.errors import HybridPSError, LayoutError, ProtocolError, ServerError
from hybridps.ps.model import GroupTakenError, TableSpec, UnknownClientError
from hybridps.ps.rules.finite import NotFiniteError

VERSION = 6
"""Of the protocol: both sides must have the same."""

LARGEST_CHUNK_BYTES = 1 << 28
LARGEST_CONTROL_BYTES = 1 << 22
MOST_ROWS = 1024
"""Vectors of one group."""

MOST_CHUNKS = 1024
"""Chunks of one message, and so its payload frames."""

Number = Annotated[int, Meta(ge=0, le=1 << 62)]
Count = Annotated[int, Meta(ge=1, le=4096)]
Represented = Annotated[int, Meta(ge=0, le=1 << 30)]
"""Of how many groups values are the sum: of a rack's, if a rack server brings them."""

JobName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
TenantName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{0,64}$")]
Token = Annotated[str, Meta(max_length=64)]
TableName = Annotated[str, Meta(min_length=1, max_length=256)]


class Message(msgspec.Struct, frozen=True, tag=True, tag_field="kind", forbid_unknown_fields=True):
    """Base class."""


class Hello(Message, frozen=True):
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


class Register(Message, frozen=True):
    """Join a table. Answer: Registered, when it is this group's turn. `initialise` as in `Table.register`."""

    request: Number
    table: TableName
    spec: TableSpec
    initialise: bool


class OfSpan(Message, frozen=True):
    """Base class: concerns what this server owns of elements `start:stop`, in `MOST_CHUNKS` chunks at most."""

    request: Number
    table: TableName
    start: Number
    stop: Number


class Initial(OfSpan, frozen=True):
    """Initial values of whole chunks. Payload: those of each chunk, or none for zeros. Answer: Done."""


class Exchange(OfSpan, frozen=True):
    """Payload: the group's values. Answer: Done with the answers of the rounds as payload."""

    groups: Represented = 1


class Pull(OfSpan, frozen=True):
    """Answer: Done with the centre of whole chunks as payload."""


class Drop(Message, frozen=True):
    """The group is done with a table. Answer: Done without chunks."""

    request: Number
    table: TableName


class Attach(Message, frozen=True):
    """Memory of the client, in which ExchangeInPlace may take place. Answer: Attached.

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


class Spot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a flat buffer begins: so many bytes into an attached region."""

    region: Number
    offset: Number


Spots = Annotated[tuple[Spot, ...], Meta(min_length=1, max_length=MOST_ROWS)]


class ExchangeInPlace(OfSpan, frozen=True):
    """As Exchange, without payload: the sum of `values` counts, and the answers are written to all of `answers`."""

    values: Spots
    answers: Spots
    groups: Represented = 1


class Leave(Message, frozen=True):
    """The group is done with all its tables. Answer: Left."""


class Heartbeat(Message, frozen=True):
    """Sign of life, on a socket of its own. Answer: Alive. All requests before `settled` were answered."""

    session: Number
    settled: Number


Request = Hello | Register | Initial | Exchange | Pull | Attach | Detach | ExchangeInPlace | Drop | Leave | Heartbeat

Requested = Register | OfSpan | Attach | Detach | Drop
"""Requests that have a number."""


class Welcome(Message, frozen=True):
    """The server takes the group in. With a parent its centre is not what the first group initialised it with."""

    version: int
    has_parent: bool = False


class Registered(Message, frozen=True):
    """The table is joined. With `initialise` the group is to send the initial values; `dropped` as in `Joining`."""

    request: Number
    initialise: bool
    dropped: bool = False


class Attached(Message, frozen=True):
    """The server works on that memory from now on."""

    request: Number


class Done(Message, frozen=True):
    """A request is done for these chunks; payload as said there."""

    request: Number
    chunks: tuple[Number, ...]


class Left(Message, frozen=True):
    """The group has left."""


class Alive(Message, frozen=True):
    """Sign of life of the server."""


class Code(enum.Enum):
    """Why a request was refused."""

    LAYOUT = "layout"
    PROTOCOL = "protocol"
    NOT_FINITE = "not finite"
    SERVER = "server"
    TAKEN = "taken"
    UNKNOWN = "unknown"


class Refused(Message, frozen=True):
    """The request cannot be carried out. `request` is None if it is not known."""

    code: Code
    message: str
    request: Number | None = None


Answer = Welcome | Registered | Attached | Done | Left | Alive | Refused

_ERRORS: dict[Code, type[HybridPSError]] = {
    Code.LAYOUT: LayoutError,
    Code.PROTOCOL: ProtocolError,
    Code.TAKEN: GroupTakenError,
    Code.NOT_FINITE: NotFiniteError,
    Code.UNKNOWN: UnknownClientError,
    Code.SERVER: ServerError,
}

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(message: Message) -> bytes:
    """The control frame of a message."""
    return _encoder.encode(message)


def decode_request(frame: bytes | memoryview) -> Request:
    """A message to a server. Raises ProtocolError. The layout of a table is not looked at."""
    request: Request = _decode(_requests, frame)
    if isinstance(request, Hello) and request.version != VERSION:
        raise ProtocolError(
            f"the group speaks version {request.version} of the protocol, the server version {VERSION}: "
            "install the same hybridps everywhere"
        )
    return request


def decode_answer(frame: bytes | memoryview) -> Answer:
    """A message to a group. Raises ProtocolError."""
    answer: Answer = _decode(_answers, frame)
    return answer


def refusal(error: HybridPSError, request: int | None) -> Refused:
    """The message that tells `error`."""
    code = next((code for code, kind in _ERRORS.items() if isinstance(error, kind)), Code.SERVER)
    return Refused(code, str(error), request)


def error_of(refused: Refused, address: str) -> HybridPSError:
    """The error that a refusal tells."""
    return _ERRORS[refused.code](f"{address}: {refused.message}")


def _decode(decoder: Any, frame: bytes | memoryview) -> Any:
    if len(frame) > LARGEST_CONTROL_BYTES:
        raise ProtocolError(f"the control frame has {len(frame)} bytes: {LARGEST_CONTROL_BYTES} at most")
    try:
        return decoder.decode(frame)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the message cannot be read: {str(error)[:200]}") from None
