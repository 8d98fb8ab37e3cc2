"""The field types and the base class of all messages between groups and servers."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Number = Annotated[int, Meta(ge=0, le=1 << 62)]
Count = Annotated[int, Meta(ge=1, le=4096)]
JobName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
TenantName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{0,64}$")]
Token = Annotated[str, Meta(max_length=64)]


class Message(msgspec.Struct, frozen=True, tag=True, tag_field="kind", forbid_unknown_fields=True):
    """Base class of messages."""
