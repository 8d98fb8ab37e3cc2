"""The status of a worker, made from its events."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from hybridps import progress
from hybridps.config import Settings
from hybridps.events import (
    AlgorithmChosen,
    Communicated,
    Counted,
    Evaluated,
    Event,
    Exchanged,
    Paced,
    Planned,
    Recovered,
    Skipped,
    Slowed,
)
from hybridps.live.delays import delayed_seconds, longest_delay
from hybridps.live.files import StatusFile
from hybridps.live.status import Report, WorkerStatus


class LiveWorker:
    """Writes the status of this worker to a folder. Any thread may call `note`, with each of the worker's events.

    `steps`: returns the number of steps done. `waits_for`: returns what the worker waits for at this moment, in words;
    None if it waits for nothing. `run`: as in `Status`.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        plan: Planned,
        settings: Settings,
        steps: Callable[[], int],
        waits_for: Callable[[], str | None],
    ) -> None:
        self._steps, self._waits_for = steps, waits_for
        self._changed_at = time.monotonic()
        self._exchanged_in = -1
        self._delayed = dict[str, float]()
        self._status = WorkerStatus(
            run=run,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=time.time(),
            worker=plan.worker,
            workers=plan.workers,
            group=plan.group,
            groups=plan.groups,
            group_rank=plan.group_rank,
            algorithm=settings.algorithm,
            is_crowded=settings.is_crowded,
            life=settings.life,
        )
        progress.listeners.append(self._report)
        self._file = StatusFile(folder, f"worker-{plan.worker}", self._now, plan.workers)

    def note(self, event: Event) -> None:
        """Note an event of this worker."""
        status = self._status
        match event:
            case AlgorithmChosen():
                status.algorithm = event.algorithm
            case Paced():
                status.paces += 1
                status.step_seconds, status.own_seconds = event.step_seconds, event.own_seconds
                status.program_seconds, status.waiting_seconds = event.program_seconds, event.waiting_seconds
                status.mean_own_seconds = event.mean_own_seconds
            case Communicated():
                status.bytes_to_servers, status.bytes_from_servers = event.bytes_to_servers, event.bytes_from_servers
            case Exchanged():
                status.exchanges += event.step != self._exchanged_in  # several tables may be exchanged in a step
                self._exchanged_in = event.step
                status.exchange_seconds = event.took_seconds
                status.distance = event.distance if event.distance == event.distance else None
            case Skipped():
                status.skipped += 1
            case Counted():
                status.groups, status.workers = event.groups, event.workers
            case Slowed() if event.worker == status.worker:
                status.factor, status.slow = event.factor, event.reason
            case Recovered() if event.worker == status.worker:
                status.factor, status.slow = 1.0, None

    def close(self) -> None:
        """End the status: the worker has ended in good order."""
        progress.listeners.remove(self._report)
        self._file.close()

    def _report(self, event: Evaluated) -> None:
        self._status.report = Report.of(event)

    def _now(self) -> WorkerStatus:
        before, self._delayed = self._delayed, delayed_seconds()
        status, steps, now = self._status, self._steps(), time.monotonic()
        status.delayed_seconds += longest_delay(before, self._delayed)
        if steps != status.steps:
            self._changed_at = now
        status.steps, status.still_seconds = steps, now - self._changed_at
        status.waits_for = self._waits_for() if status.is_still else None
        return status
