"""How a server tells an error to a client: a message with the kind of the error."""

from __future__ import annotations

from hybridps.errors import HybridPSError, LayoutError, ProtocolError, ServerError
from hybridps.ps.message import Message, Number
from hybridps.ps.model import GroupTakenError, UnknownClientError
from hybridps.ps.rules.finite import NotFiniteError

_ERRORS: dict[str, type[HybridPSError]] = {
    "layout": LayoutError,
    "protocol": ProtocolError,
    "taken": GroupTakenError,
    "not finite": NotFiniteError,
    "unknown": UnknownClientError,
    "server": ServerError,
}
"""Of the kinds that an error is, the first one is told."""


class Refused(Message, frozen=True, omit_defaults=True):
    """The request cannot be carried out, or not for that chunk: the answers for its other chunks still come.

    `code` names one of `_ERRORS`. `request` is None if it is not known.
    """

    code: str
    message: str
    request: Number | None = None
    chunk: Number | None = None


def refusal(error: HybridPSError, request: int | None, chunk: int | None = None) -> Refused:
    """The message that tells `error`."""
    code = next((code for code, kind in _ERRORS.items() if isinstance(error, kind)), "server")
    return Refused(code, str(error), request, chunk)


def error_of(refused: Refused, address: str) -> HybridPSError:
    """The error that a refusal tells."""
    return _ERRORS.get(refused.code, ServerError)(f"{address}: {refused.message}")
