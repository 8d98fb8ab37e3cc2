"""Asks a server one thing, at any time and from any process, on a separate socket."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from hybridps.config import Settings
from hybridps.errors import ServerError
from hybridps.ps import wire
from hybridps.ps.client.sockets import Sockets
from hybridps.ps.keys import Credentials
from hybridps.ps.zmq_sockets import has_message


def ask(
    address: str, message: wire.Silence | wire.AskToJoin | wire.EndOfGroup, settings: Settings, seconds: float
) -> wire.Answer:
    """Send one message to a server and return its answer.

    Raises ServerError if there is no answer within `seconds`, or the error with which the server refuses.
    """
    credentials = Credentials.of(settings)
    if credentials is not None and not isinstance(message, wire.Silence):
        message = msgspec.structs.replace(message, tenant=credentials.tenant, token=credentials.token)
    sockets = Sockets([address], credentials, None)
    try:
        (socket,), (monitor,) = sockets.sockets, sockets.monitors
        sockets.send(0, [wire.encode(message)])
        deadline = time.monotonic() + seconds
        while not has_message(socket):
            sockets.poller.poll(50)
            while has_message(monitor):
                if sockets.is_restored(0):
                    sockets.send(0, [wire.encode(message)])
            if time.monotonic() > deadline:
                raise ServerError(
                    f"no answer from {address} within {seconds:g} s: is the job running, is this the address of its "
                    "first server, and are these its keys?"
                )
        answer = wire.decode_answer(socket.recv())
    finally:
        sockets.close(linger_seconds=0.0)
    if isinstance(answer, wire.Refused):
        raise wire.error_of(answer, address)
    return answer


def silent_groups(addresses: Sequence[str], session: int, seconds: float, settings: Settings) -> Sequence[int]:
    """Return the groups of a job that have given its first server no sign of life for longer than `seconds`.

    `session`: the number of a client of the job, perhaps in another process. The question does not wait for operations
    under way. Raises ServerError if there is no answer within `settings.connect_seconds`, or within
    `settings.lost_seconds` if that is less, or if the client is lost.
    """
    patience = min(settings.connect_seconds, settings.lost_seconds)
    answer = ask(addresses[0], wire.Silence(session, seconds), settings, patience)
    if not isinstance(answer, wire.Silent):
        raise ServerError(
            f"{addresses[0]} answered {type(answer).__name__} to Silence: it is not a server of this version"
        )
    return answer.groups
