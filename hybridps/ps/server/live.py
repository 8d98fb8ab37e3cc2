"""The status of a server, for those who watch the run that it belongs to."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridps.config import Settings
from hybridps.live import ServerStatus, StatusFile
from hybridps.ps.server.metrics import Labels, Observer
from hybridps.ps.server.server import Server


def show_live(server: Server, settings: Settings, life: int = 0) -> StatusFile | None:
    """Write the status of a server from now on, if it belongs to a run that is watched; the caller closes the file."""
    if settings.live_folder is None or not Path(settings.live_folder).is_dir():
        return None
    observer = server.observe()
    started_at, host = time.time(), socket.gethostname()

    def status() -> ServerStatus:
        return ServerStatus(
            run=settings.launch or "",
            host=host,
            pid=os.getpid(),
            started_at=started_at,
            address=server.address,
            life=life,
            **_figures(observer),
        )

    # The port alone, as hosts may have several addresses with characters that are none of a file's name.
    name = f"server-{host}-{server.address.rpartition(':')[2]}"
    return StatusFile(Path(settings.live_folder), name, status)


def _figures(observer: Observer) -> dict[str, Any]:
    """Return the latest snapshot of the server's counters, over all tenants and jobs."""
    latest = observer.latest
    return {
        "groups": int(_sum(latest, "job_groups")),
        "tables": len(latest.get("table_rounds", {})),
        "rounds": max(latest.get("table_rounds", {}).values(), default=0.0),
        "lag": max(latest.get("table_staleness_values", {}).values(), default=0.0),
        "backlog": int(_sum(latest, "backlog")),
        "received_bytes": int(_sum(latest, "tenant_received_bytes")),
        "sent_bytes": int(_sum(latest, "tenant_sent_bytes")),
        "refused": int(_sum(latest, "refused_requests")),
        "memory_bytes": int(_sum(latest, "tenant_memory_bytes")),
    }


def _sum(latest: Mapping[str, Mapping[Labels, float]], name: str) -> float:
    return sum(latest.get(name, {}).values())
