"""The messages between groups and servers.

A message is a control frame (msgpack of one of these structs) and, where said, a payload frame: the raw
bytes of one chunk. Decoding checks types, bounds and names; nothing is unpickled.
"""

from __future__ import annotations

import enum
import math
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hybridps.errors import HybridPSError, LayoutError, ProtocolError, ServerError
from hybridps.memory import DTYPES
from hybridps.ps.shard import GroupTakenError
from hybridps.ps.table import Terms

VERSION = 1
"""Of the protocol: both sides must have the same."""

LARGEST_CHUNK_BYTES = 1 << 28
LARGEST_CONTROL_BYTES = 1 << 24
MOST_ELEMENTS = 1 << 48

Number = Annotated[int, Meta(ge=0, le=1 << 62)]
Count = Annotated[int, Meta(ge=1, le=1 << 16)]
JobName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
TableName = Annotated[str, Meta(min_length=1, max_length=256)]


class Message(msgspec.Struct, frozen=True, tag=True, tag_field="kind", forbid_unknown_fields=True):
    """Base class."""


class Hello(Message, frozen=True):
    """The first message of a client. Answer: Welcome. `session` is random, and names the client in Heartbeat."""

    version: int
    session: Number
    job: JobName
    group: Number
    groups: Count


class Register(Message, frozen=True):
    """Join a table. Answers: Received at once, then Registered. `initialise` as in `Table.register`."""

    request: Number
    table: TableName
    terms: Terms
    initialise: bool


class Initial(Message, frozen=True):
    """Initial values of a chunk. Payload: the values, or none for zeros. Answer: Done."""

    request: Number
    table: TableName
    chunk: Number


class Exchange(Message, frozen=True):
    """Payload: the group's values. Answer: Done with the answer of the round as payload."""

    request: Number
    table: TableName
    chunk: Number


class Push(Message, frozen=True):
    """Payload: the group's values. Answer: Done."""

    request: Number
    table: TableName
    chunk: Number


class Pull(Message, frozen=True):
    """Answer: Done with the centre of the chunk as payload."""

    request: Number
    table: TableName
    chunk: Number


class Leave(Message, frozen=True):
    """The group is done with all its tables. Answer: Left."""


class Heartbeat(Message, frozen=True):
    """Sign of life, on a socket of its own. Answer: Alive."""

    session: Number


Request = Hello | Register | Initial | Exchange | Push | Pull | Leave | Heartbeat


class Welcome(Message, frozen=True):
    """The server takes the group in."""

    version: int


class Received(Message, frozen=True):
    """A registration came; Registered follows when it is this group's turn."""

    request: Number


class Registered(Message, frozen=True):
    """The table is joined. With `initialise` the group is to send the initial values."""

    request: Number
    initialise: bool


class Done(Message, frozen=True):
    """A request for a chunk is done; payload as said there."""

    request: Number
    chunk: Number


class Left(Message, frozen=True):
    """The group has left."""


class Alive(Message, frozen=True):
    """Sign of life of the server."""


class Code(enum.Enum):
    """Why a request was refused."""

    LAYOUT = "layout"
    PROTOCOL = "protocol"
    SERVER = "server"
    TAKEN = "taken"


class Refused(Message, frozen=True):
    """The request cannot be carried out. `request` is None if it is not known."""

    code: Code
    message: str
    request: Number | None = None


Answer = Welcome | Received | Registered | Done | Left | Alive | Refused

_ERRORS: dict[Code, type[HybridPSError]] = {
    Code.LAYOUT: LayoutError,
    Code.PROTOCOL: ProtocolError,
    Code.TAKEN: GroupTakenError,
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
