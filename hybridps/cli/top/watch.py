"""`hybridps top`: finds out what to watch."""

from __future__ import annotations

from pathlib import Path

from hybridps.errors import ConfigError
from hybridps.live.folder import find_live


def watch(run: str | None, *, once: bool, tables: bool) -> None:
    """Show a run folder, the newest run (None), or the server whose metrics are at an address.

    Raises HybridPSError if there is nothing to show.
    """
    if run is not None and not Path(run).is_dir() and (":" in run or "://" in run):
        from hybridps.cli.top.servers import watch as watch_server

        watch_server(run, once=once, tables=tables)
        return
    if run is not None and not Path(run).is_dir():
        raise ConfigError(f"{run!r} is neither a run folder nor an address HOST:PORT of a server's metrics")
    if tables:
        raise ConfigError("--tables belongs to the address of a server's metrics: omit it, or give HOST:PORT")
    from hybridps.cli.top.run import watch as watch_run

    watch_run(find_live(run), once=once, is_newest=run is None)
