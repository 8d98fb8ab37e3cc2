"""`hybridps tune`: measures the collectives on this machine, and keeps the table."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hybridps.cli.run.launcher import run
from hybridps.cli.run.plan import make_launch
from hybridps.cli.run.plan.hosts import Host
from hybridps.config import load_settings


def tune(workers: int, ranks_per_node: int | None, hosts: tuple[Host, ...], path: Path | None) -> int:
    """Start the ranks that measure, as one group. Return the exit status."""
    settings = msgspec.structs.replace(
        load_settings(),
        algorithm="sync",
        groups=1,
        group_sizes=None,
        servers=(),
        run_folder=None,
        quiet=True,
        tuning="built-in",
        collective=None,
        collective_chunk_bytes=None,
        deterministic=False,
        wire="exact",
        ranks_per_node=ranks_per_node or load_settings().ranks_per_node,
    )
    # Without a path, the first worker chooses the file, since it may be on another host.
    table = (str(path.absolute()),) if path else ()
    command = ("python", "-m", "hybridps.tune", *table)
    return run(make_launch(command, settings, workers=workers, servers=0, hosts=hosts))
