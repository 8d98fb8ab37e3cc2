"""The messages between groups and servers.

A message is a control frame (msgpack of one of these structs) and, where said, payload frames: the raw bytes of
one chunk each. Decoding checks types, bounds and names; nothing is unpickled.
"""

from __future__ import annotations

import enum
import math
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hybridps.errors import HybridPSError, LayoutError, ProtocolError, ServerError
from hybridps.memory import DTYPES
from hybridps.ps.members import UnknownClientError
from hybridps.ps.rules.finite import NotFiniteError
from hybridps.ps.shard import GroupTakenError
from hybridps.ps.terms import Terms

VERSION = 5
"""Of the protocol: both sides must have the same."""

LARGEST_CHUNK_BYTES = 1 << 28
LARGEST_CONTROL_BYTES = 1 << 22
MOST_ELEMENTS = 1 << 48
MOST_ROWS = 1024
"""Vectors of one group."""

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
    terms: Terms
    initialise: bool


class OfChunks(Message, frozen=True):
    """Base class: concerns those of the chunks `start` to `stop` that are on this server."""

    request: Number
    table: TableName
    start: Number
    stop: Number


class Initial(OfChunks, frozen=True):
    """Initial values. Payload: those of each chunk, or none for zeros. Answer: Done."""


class Exchange(OfChunks, frozen=True):
    """Payload: the group's values of each chunk. Answer: Done with the answers of the rounds as payload."""

    groups: Represented = 1


class Push(OfChunks, frozen=True):
    """Payload: the group's values of each chunk. Answer: Done."""


class Pull(OfChunks, frozen=True):
    """Answer: Done with the centre of the chunks as payload."""


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


class Spot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a flat buffer begins: so many bytes into an attached region."""

    region: Number
    offset: Number


Spots = Annotated[tuple[Spot, ...], Meta(min_length=1, max_length=MOST_ROWS)]


class ExchangeInPlace(OfChunks, frozen=True):
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


Request = Hello | Register | Initial | Exchange | Push | Pull | Attach | ExchangeInPlace | Leave | Heartbeat


class Welcome(Message, frozen=True):
    """The server takes the group in. With a parent its centre is not what the first group initialised it with."""

    version: int
    has_parent: bool = False


class Registered(Message, frozen=True):
    """The table is joined. With `initialise` the group is to send the initial values."""

    request: Number
    initialise: bool


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
    """A message to a server. Raises ProtocolError, or LayoutError for an unusable layout."""
    request: Request = _decode(_requests, frame)
    if isinstance(request, Hello) and request.version != VERSION:
        raise ProtocolError(
            f"the group speaks version {request.version} of the protocol, the server version {VERSION}: "
            "install the same hybridps everywhere"
        )
    if isinstance(request, Register):
        check_terms(request.terms)
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


def check_terms(terms: Terms) -> None:
    """Raise LayoutError or ProtocolError unless the terms can be used as they are."""
    layout = terms.layout
    if layout.dtype not in DTYPES:
        raise LayoutError(f"dtype {layout.dtype[:32]!r} cannot be used: use one of {', '.join(DTYPES)}")
    if terms.server >= terms.servers:
        raise ProtocolError(f"server {terms.server} is none of {terms.servers} servers: they count from 0")
    elements = 0
    for slot in layout.slots:
        if len(slot.shape) > 32 or any(not 0 <= extent <= MOST_ELEMENTS for extent in slot.shape):
            raise LayoutError(
                f"key {slot.key[:64]!r} has a shape that cannot be used: 32 dimensions of 0 or more at most"
            )
        elements += math.prod(slot.shape)
    if elements > MOST_ELEMENTS:
        raise LayoutError(f"the layout has {elements} elements: {MOST_ELEMENTS} at most")
    layout.check()


def _decode(decoder: Any, frame: bytes | memoryview) -> Any:
    if len(frame) > LARGEST_CONTROL_BYTES:
        raise ProtocolError(f"the control frame has {len(frame)} bytes: {LARGEST_CONTROL_BYTES} at most")
    try:
        return decoder.decode(frame)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the message cannot be read: {str(error)[:200]}") from None
