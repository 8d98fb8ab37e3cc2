"""`hybridps top`: finds out what to watch."""

from __future__ import annotations

from pathlib import Path

from hybridps.errors import ConfigError
from hybridps.live.folder import LIVE, find_live, runs_in_progress


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

    folder = find_live(run)
    others = [] if run is not None else [path for path in runs_in_progress() if path != folder]
    watch_run(folder, once=once, others=[path.parent if path.name == LIVE else path for path in others])
