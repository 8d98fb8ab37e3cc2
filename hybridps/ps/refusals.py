"""How a server sends an error to a client: as a message with the kind of the error."""

from __future__ import annotations

from hybridps.errors import HybridPSError, LayoutError, ProtocolError, ServerError
from hybridps.ps.message import Message, Number
from hybridps.ps.model import GroupTakenError, IdleGroupError, UnknownClientError
from hybridps.ps.rules.finite import NotFiniteError

_ERRORS: dict[str, type[HybridPSError]] = {
    "layout": LayoutError,
    "protocol": ProtocolError,
    "taken": GroupTakenError,
    "not finite": NotFiniteError,
    "idle": IdleGroupError,
    "unknown": UnknownClientError,
    "server": ServerError,
}
"""The kinds of errors by code. The first one that an error belongs to is sent."""

LONGEST = 1000
"""The largest number of characters of an error that is sent. Names that a client has chosen may be longer."""


class Refused(Message, frozen=True, omit_defaults=True):
    """The request, or a part of it in one `chunk`, cannot be carried out. Answers for other chunks still follow.

    `code` names one of `_ERRORS`. `request` is None if it is not known.
    """

    code: str
    message: str
    request: Number | None = None
    chunk: Number | None = None


def refusal(error: HybridPSError, request: int | None, chunk: int | None = None) -> Refused:
    """Return the message that sends `error`."""
    code = next((code for code, kind in _ERRORS.items() if isinstance(error, kind)), "server")
    text = str(error)
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} ... {text[5 - LONGEST // 2 :]}"
    return Refused(code, text, request, chunk)


def error_of(refused: Refused, address: str) -> HybridPSError:
    """Return the error that a refusal describes."""
    return _ERRORS.get(refused.code, ServerError)(f"{address}: {refused.message}")
