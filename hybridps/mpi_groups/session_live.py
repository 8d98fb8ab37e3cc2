"""The part of a rank in what its run shows of itself."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

from hybridps.config import Settings
from hybridps.events import EventLog, Planned
from hybridps.live.folder import LiveFolder
from hybridps.live.worker import LiveWorker
from hybridps.mpi_groups.plan import WORKER


class SessionLive:
    """The live folder of a run as a rank knows it. The first rank makes it, unless a launcher has.

    `path`: as the first rank has told it. `run`: a name for the run, equal on all ranks.
    """

    def __init__(self, made: LiveFolder | None, path: str, run: str) -> None:
        self._made = made
        self._worker: LiveWorker | None = None
        self.run = run
        self.path = Path(path) if path and Path(path).is_dir() else None
        """None where this rank cannot reach it, as on another host without a shared folder."""

    def begin(
        self,
        plan: Planned,
        settings: Settings,
        events: EventLog,
        steps: Callable[[], int],
        waits_for: Callable[[], str | None],
    ) -> None:
        """Write the status of this rank from now on, if it is a worker. For the functions, see `LiveWorker`."""
        if self.path is not None and plan.role == WORKER:
            self._worker = LiveWorker(self.path, self.run, plan, settings, steps, waits_for)
            events.listen = self._worker.note

    def close(self) -> None:
        """Note that the rank has ended normally."""
        if self._worker is not None:
            self._worker.close()
        if self._made is not None:
            self._made.close()


def make_live(settings: Settings, is_first: bool) -> tuple[LiveFolder | None, str, str, str]:
    """Make the live folder on the first rank, unless a launcher has made one.

    Returns the folder, its path, a name for the run, and why there is no folder.
    """
    run = settings.launch or uuid.uuid4().hex
    if settings.live_folder is not None or not is_first:
        return None, settings.live_folder or "", run, ""
    try:
        made = LiveFolder(settings.run_folder)
    except OSError as error:
        return None, "", run, f"`hybridps top` does not see this run: {error.strerror or error}"
    return made, str(made.path), run, ""
