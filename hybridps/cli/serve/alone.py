"""The server of `hybridps serve` outside an MPI world, and its later lives if it is restarted."""

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
"""How long a later life tries to get its addresses, which may be in use by then, and the time between two attempts."""

_ADDRESS, _METRICS_PORT, _SAID = "serve/address", "serve/metrics-port", "serve/said"
"""Records of the kept memory: where the first life served, and that it was printed."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Asked:
    """What the command line asks for."""

    given: ServeOptions
    settings: Settings
    allowed: AllowList | None
    """The keys. A later life cannot read them: `hybridps run` removes their folder when all servers have started."""


def serve_alone(given: ServeOptions, settings: Settings) -> int:
    """Serve in this process or, with `restarts`, in a child of it; return the exit status. Raises HybridPSError."""
    keep_freed_memory()
    asked = _Asked(given, settings, AllowList.of(settings))
    if given.restarts:
        # The first rule that a process loads takes a third of a second, the others a few milliseconds each.
        warm_up(Sum(), "float32")
        return supervise(lambda kept: _serve_life(asked, kept), given.restarts, _say)
    return _serve_life(asked, None)


def _serve_life(asked: _Asked, kept: KeptMemory | None) -> int:
    """Serve until the end, a later life at the addresses of the first; return the exit status. Raises HybridPSError."""
    server, metrics = _open(asked, kept)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: server.stop())
    with server:
        _say_where(server.address, metrics, kept)
        if asked.given.told_ends:
            server.expect_ends()
            if kept is not None and kept.life > 0:
                print(told.AGAIN, flush=True)
            threading.Thread(target=told.hear, args=(server,), name="hybridps-told", daemon=True).start()
        server.say_groups(told.groups_for_launcher if asked.given.told_ends else told.Newcomers(_say))
        if kept is not None:
            kept.mark_serving()
        shown = show_live(server, asked.settings, 0 if kept is None else kept.life)
        gc.freeze()  # these objects stay until the end, and collections that visit them would stop the loop
        gc.set_threshold(100_000)  # nothing in the loop is in a cycle, so that a collection finds nothing
        server.run()
        if shown is not None:
            shown.close()
    return 0


def _open(asked: _Asked, kept: KeptMemory | None) -> tuple[Server, list[str]]:
    """Return the server and the lines about its metrics. A later life listens at the addresses of the first one."""
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
    """Return the result of `open_it` as soon as its address is free. Raises ServerError after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        try:
            return open_it()
        except ServerError:
            if time.monotonic() >= end:
                raise
        time.sleep(_LOOK_SECONDS)


def _say_where(address: str, metrics: list[str], kept: KeptMemory | None) -> None:
    """Print where the server is, unless an earlier life is known to have. A later life reports that it is back."""
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
    """Print a line on standard error, and ignore it if that is closed."""
    with contextlib.suppress(OSError):
        print(f"hybridps: {text}", file=sys.stderr, flush=True)
