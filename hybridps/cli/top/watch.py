"""Shows a server's figures once, or again and again until Ctrl-C."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hybridps.cli.top.figures import Figures, read, url_of
from hybridps.cli.top.page import page
from hybridps.errors import ServerError

if TYPE_CHECKING:
    from rich.console import Console

REFRESH_SECONDS = 1.0
NEWER_SECONDS = 5.0
"""Longest time that a server may take to make a new snapshot."""

_RETRY_SECONDS = 0.2
_PLAIN_WIDTH = 250


def watch(address: str, *, once: bool, tables: bool) -> None:
    """Show the figures of a server until Ctrl-C, or `once`. Raises ServerError if they cannot be read."""
    url = url_of(address)
    if once:
        _console().print(page(*_two_snapshots(url), tables))
        return
    try:
        _watch(url, tables)
    except KeyboardInterrupt:
        return


def _watch(url: str, tables: bool) -> None:
    from rich.live import Live

    last, shown = _two_snapshots(url)
    with Live(page(last, shown, tables), console=_console(), screen=sys.stdout.isatty(), auto_refresh=False) as live:
        for figures in _each_second(url):
            if figures.uptime_seconds > shown.uptime_seconds:
                last, shown = shown, figures
                live.update(page(last, shown, tables), refresh=True)
            elif figures.uptime_seconds < shown.uptime_seconds:
                last, shown = figures, figures  # another server


def _each_second(url: str) -> Iterator[Figures]:
    while True:
        time.sleep(REFRESH_SECONDS)
        yield read(url)


def _two_snapshots(url: str) -> tuple[Figures, Figures]:
    """Two snapshots in a row. Raises ServerError if the second one does not come within `NEWER_SECONDS`."""
    before = read(url)
    deadline_seconds = time.monotonic() + NEWER_SECONDS
    while (now := read(url)).uptime_seconds == before.uptime_seconds:
        if time.monotonic() >= deadline_seconds:
            raise ServerError(f"the server at {url} made no new snapshot for {NEWER_SECONDS:g} s: it hangs")
        time.sleep(_RETRY_SECONDS)
    return before, now


def _console() -> Console:
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=_PLAIN_WIDTH)
