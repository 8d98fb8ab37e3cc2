"""A parameter server of `hybridps serve` that is no rank of an MPI world, and its lives if it is started again."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from hybridps.cli import told
from hybridps.cli.serve.options import ServeOptions
from hybridps.config import Settings
from hybridps.errors import ServerError
from hybridps.memory import keep_freed_memory
from hybridps.processes import SAYS
from hybridps.ps.keys import AllowList
from hybridps.ps.rules import Sum, warm_up
from hybridps.ps.server import Server
from hybridps.ps.server.kept import KeptMemory, supervise
from hybridps.ps.server.live import show_live
from hybridps.ps.server.metrics import serve_metrics

_IN_USE_SECONDS, _LOOK_SECONDS = 2.0, 0.02
"""So long a later life tries to get its addresses, which something else may have taken; and between two attempts."""

_ADDRESS, _METRICS_PORT, _SAID = "serve/address", "serve/metrics-port", "serve/said"
"""Records of the kept memory: where the first life served, and that it was said."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Asked:
    """What the command line asks for."""

    given: ServeOptions
    settings: Settings
    allowed: AllowList | None
    """The keys. A later life cannot read them: `hybridps run` removes their folder when all servers have started."""


def serve_alone(given: ServeOptions, settings: Settings) -> int:
    """Serve in this process, or with `restarts` in a child of it; returns the exit status. Raises HybridPSError."""
    keep_freed_memory()
    asked = _Asked(given, settings, AllowList.of(settings))
    if given.restarts:
        # The first rule that a process loads takes a third of a second, the others some milliseconds each.
        warm_up(Sum(), "float32")
        return supervise(lambda kept: _serve_life(asked, kept), given.restarts, _say)
    return _serve_life(asked, None)


def _serve_life(asked: _Asked, kept: KeptMemory | None) -> int:
    """Serve until the end, in a later life where the first one did; returns the exit status. Raises HybridPSError."""
    server, metrics = _open(asked, kept)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: server.stop())
    with server:
        _say_where(server.address, metrics, kept)
        if asked.given.told_ends:
            if kept is not None and kept.life > 0:
                print(told.AGAIN, flush=True)
            threading.Thread(target=told.hear, args=(server,), name="hybridps-told", daemon=True).start()
        server.say_groups(told.groups_for_launcher if asked.given.told_ends else told.Newcomers(_say))
        if kept is not None:
            kept.mark_serving()
        shown = show_live(server, asked.settings, 0 if kept is None else kept.life)
        gc.freeze()  # what is there now stays until the end, and collections would stop the loop to look at it
        server.run()
        if shown is not None:
            shown.close()
    return 0


def _open(asked: _Asked, kept: KeptMemory | None) -> tuple[Server, list[str]]:
    """The server, and the lines about its metrics, at the addresses of the first life if there was one."""
    bind, settings, seconds = asked.given.bind, asked.settings, 0.0
    if kept is not None and kept.life > 0:
        seconds = _IN_USE_SECONDS
        bind = (kept.get(_ADDRESS) or bind.encode()).decode()
        if port := kept.get(_METRICS_PORT):
            settings = msgspec.structs.replace(settings, metrics_port=int(port))

    def listen() -> Server:
        return Server.of(
            settings,
            bind,
            insecure=asked.given.insecure,
            stop_after_groups=asked.given.stop_after_groups,
            allowed=asked.allowed,
            kept=kept,
        )

    server = _once_free(listen, seconds)
    try:
        return server, _once_free(lambda: serve_metrics(server.observe, settings), seconds)
    except ServerError:
        server.close()
        raise


def _once_free(open_it: Callable[[], _T], seconds: float) -> _T:
    """What is opened, as soon as its address is free. Raises ServerError if that takes longer than `seconds`."""
    end = time.monotonic() + seconds
    while True:
        try:
            return open_it()
        except ServerError:
            if time.monotonic() >= end:
                raise
        time.sleep(_LOOK_SECONDS)


def _say_where(address: str, metrics: list[str], kept: KeptMemory | None) -> None:
    """Print where the server is, unless an earlier life is known to have; a later one is said to be back."""
    if kept is not None and kept.life > 0:
        _say(f"the server is back at {address}")
    if kept is not None and kept.get(_SAID) is not None:
        return
    if kept is not None:
        kept.put(_ADDRESS, address.encode())
        for line in metrics:
            kept.put(_METRICS_PORT, str(urlsplit(line.split()[-1]).port).encode())
    print("\n".join((f"{SAYS}{address}", *metrics)), flush=True)
    if kept is not None:
        kept.put(_SAID, b"")


def _say(text: str) -> None:
    """Print a line on standard error, if anybody reads it."""
    with contextlib.suppress(OSError):
        print(f"hybridps: {text}", file=sys.stderr, flush=True)
