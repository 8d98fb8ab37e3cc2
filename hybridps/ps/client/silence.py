"""Asks a server which groups are silent, at any time and from any process of the job."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hybridps.config import Settings
from hybridps.errors import ServerError
from hybridps.ps import wire
from hybridps.ps.client.sockets import Sockets
from hybridps.ps.keys import Credentials
from hybridps.ps.zmq_sockets import has_message


def silent_groups(addresses: Sequence[str], session: int, seconds: float, settings: Settings) -> Sequence[int]:
    """Return the groups of a job that have given its first server no sign of life for longer than `seconds`.

    `session`: the number of a client of the job, perhaps in another process. The question uses its own socket, so that
    it does not wait for operations under way. Raises ServerError if there is no answer within
    `settings.connect_seconds`, or if the client is lost.
    """
    address = addresses[0]
    sockets = Sockets([address], Credentials.of(settings), None)
    try:
        socket, monitor = sockets.sockets[0], sockets.monitors[0]
        asked = wire.encode(wire.Silence(session, seconds))
        socket.send(asked)
        deadline = time.monotonic() + settings.connect_seconds
        while not has_message(socket):
            sockets.poller.poll(100)
            while has_message(monitor):
                if sockets.is_restored(0):
                    socket.send(asked)
            if time.monotonic() > deadline:
                raise ServerError(
                    f"no answer from {address} within {settings.connect_seconds:g} s: the server is gone or cannot be "
                    "reached"
                )
        answer = wire.decode_answer(socket.recv())
    finally:
        sockets.close(linger_seconds=0.0)
    if isinstance(answer, wire.Refused):
        raise wire.error_of(answer, address)
    if not isinstance(answer, wire.Silent):
        raise ServerError(f"{address} answered {type(answer).__name__} to Silence: it is not a server of this version")
    return answer.groups
