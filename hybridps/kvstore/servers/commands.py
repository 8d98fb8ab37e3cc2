"""`_send_command_to_servers`: what a command means to MXNet's servers, and what it does here.

No command is sent on, and nothing is unpickled. A command is obeyed here, or has no effect because the store already
does what it asks for, or raises an error that names the call to make instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybridps.errors import HybridPSError
from hybridps.kvstore.servers.profile import ServersProfile

OPTIMIZER, MULTI_PRECISION, STOP, SYNCHRONOUS, COMPRESSION, PROFILER = range(6)
"""The commands that MXNet's servers know, by number."""

INSTEAD = {
    OPTIMIZER: "takes a pickled optimizer, and nothing is unpickled here: call set_optimizer(optimizer) on all workers",
    STOP: "stops the servers, which may serve other jobs too: leave it out, they end with their jobs",
    COMPRESSION: "sets half of a gradient compression: call set_gradient_compression(...) on all workers",
}
"""What to do instead of a command that is not supported."""


def command(
    head: int, body: str, *, optimizer: Any, is_asynchronous: bool, profile: ServersProfile, note: Callable[[str], None]
) -> None:
    """Obey a command on one worker. `optimizer`: that of the store, if there is one.

    Raises HybridPSError for a command that is not supported. A command that MXNet's servers do not know is noted, and
    has no effect.
    """
    if head == PROFILER:
        _profile(body, profile)
        return
    instead = INSTEAD.get(head)
    if head == MULTI_PRECISION and not getattr(optimizer, "multi_precision", False):
        instead = "is a setting of the optimizer: give it multi_precision=True, and call set_optimizer first"
    if head == SYNCHRONOUS and is_asynchronous:
        instead = "would make an asynchronous store synchronous: create a dist_hybridps_sync"
    if instead is not None:
        raise HybridPSError(f"the command {head} to servers {instead}")
    if head not in (MULTI_PRECISION, SYNCHRONOUS):
        note(f"the command {head} ({body[:64]!r}) is unknown to servers: it has no effect")


def _profile(body: str, profile: ServersProfile) -> None:
    """Obey a call of `mx.profiler` in MXNet's form of a command: its arguments, and a last digit for the function."""
    arguments, kind = body[:-1], body[-1:]
    if kind == "0":
        profile.configure(dict(each.split(":", 1) for each in arguments.split(",") if ":" in each))
    elif kind in ("1", "2", "3") and arguments in ("0", "1"):
        (profile.set_state, profile.pause, profile.dump)[int(kind) - 1](arguments == "1")
    else:
        raise HybridPSError(f"{body[:64]!r} is no command to a profiler: call the functions of mx.profiler")
