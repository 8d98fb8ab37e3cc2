"""The letters between the leaders of groups that gossip: a header of this form, and a payload of values.

Decoding checks types, bounds and names; nothing is unpickled.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from hybridps.errors import ProtocolError

MOST_HEADER_BYTES = 4096
MOST_TEXT = 500

Number = Annotated[int, Meta(ge=0, le=1 << 62)]
Kind = Literal[
    "ask",  # asks for the table's layout and initial values. Payload: the sender's layout
    "give",  # the initial values of the table, as payload
    "joined",  # the group has the table; `number` is `HAS_BEGUN`, `IS_GONE` or 0
    "refuse",  # the layouts differ; `text` says how
    "offer",  # the sender's weights, for a symmetric average
    "difference",  # what the receiver of an offer has added to its weights
    "pull",  # asks for weights
    "values",  # the weights that were asked for
    "push",  # the sender's weights, with a `share`
    "behind",  # the sender's table is far ahead: the receiver must take weights over, and answers `taken`
    "taken",  # a push was taken in, or `behind` was read
    "decline",  # an offer, pull or push was not taken in
    "late",  # as `decline`; also, the sender's table is far ahead: the receiver must take its weights over
    "arrived",  # the group has reached barrier `number`
    "ping",  # asks for a sign of life
    "pong",  # a sign of life
    "left",  # the group has ended
]

ANSWERS = ("difference", "values", "taken", "decline", "late")
"""Answers, each to the request with the same number."""

REQUESTS = ("offer", "pull", "push", "behind")

WITH_VALUES = ("offer", "difference", "values", "push")
"""Letters whose payload is elements `start:stop` of the table."""

HAS_BEGUN, IS_GONE = 1, 2


class Letter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The header of a letter.

    `session`: when the sender's life began, in nanoseconds since 1970. A later life has a larger number. In a `pong`,
    `asker` is the session of the group that asked; `passed` is how many barriers the sender has passed, if it knows an
    earlier life of that group, and else 0.
    """

    kind: Kind
    session: Number
    table: Annotated[str, Meta(max_length=512)] = ""
    number: Number = 0
    start: Number = 0
    stop: Number = 0
    share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    text: Annotated[str, Meta(max_length=MOST_TEXT)] = ""
    asker: Number = 0
    passed: Number = 0


_decoder = msgspec.msgpack.Decoder(Letter)
encode = msgspec.msgpack.Encoder().encode


def decode(header: bytes | memoryview) -> Letter:
    """Decode a header. Raises ProtocolError."""
    try:
        return _decoder.decode(header)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the letter cannot be read: {str(error)[:200]}") from None
