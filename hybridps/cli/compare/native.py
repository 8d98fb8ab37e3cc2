"""A job on MXNet's own servers, started as its `launch.py` does: `python -m hybridps.cli.compare.native JOB`.

The scheduler, the servers and the workers are children of this process, and end with it. The reports of the workers go
to the run folder, as with `hybridps run`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial

import msgspec

from hybridps.addresses import Scheduler
from hybridps.cli.compare.plan import NativeJob
from hybridps.cli.run.children.child import Child
from hybridps.cli.run.children.output import Screen
from hybridps.cli.run.children.processes import Processes
from hybridps.cli.run.mpirun import rank_environment
from hybridps.cli.run.run_log import RunLog
from hybridps.cli.serve.mxnet import reserved_port
from hybridps.config import Settings
from hybridps.processes import child_environment, without_rank_marks

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_END_SECONDS = 10.0
"""How long the scheduler and the servers may take to end by themselves after the workers."""


class Native:
    """Runs one `NativeJob`."""

    def __init__(self, job: NativeJob) -> None:
        self._job = job
        names = ["scheduler", *(f"MXNet server {number}" for number in range(job.servers))]
        names += [f"worker {number}" for number in range(len(job.addresses))]
        self._screen = Screen(sys.stdout, sys.stderr, names)
        self._processes = Processes(self._screen, self._ended)
        self._log = RunLog(Settings(algorithm=job.store, run_folder=job.folder))
        self._service: list[Child] = []
        self._workers: list[Child] = []
        self._failed = 0
        self._signals: list[int] = []

    def run(self, scheduler: Scheduler) -> int:
        """Start everything, wait for the workers, and return the exit status."""
        for each in _SIGNALS:
            signal.signal(each, lambda number, frame: self._signals.append(number))
        try:
            for name in ("scheduler", *(f"MXNet server {number}" for number in range(self._job.servers))):
                role = "scheduler" if name == "scheduler" else "server"
                told = without_rank_marks(os.environ) | scheduler.environment(role, scheduler.host)
                self._service.append(self._start(name, [sys.executable, "-c", "import mxnet"], told))
            self._log.launched(len(self._job.addresses), scheduler.groups, scheduler.servers, self._job.command)
            for number in range(len(self._job.addresses)):
                self._workers.append(self._start_worker(number, scheduler))
            self._processes.until(lambda: bool(self._signals or self._failed) or not _running(self._workers))
            if not (self._signals or self._failed):
                self._processes.until(lambda: not _running(self._service), _END_SECONDS)
        finally:
            self._processes.stop([*self._workers, *self._service], lambda: bool(self._failed))
            self._processes.close()
        status = 128 + self._signals[0] if self._signals else self._failed
        for said in self._log.ended(status):
            self._screen.message(said)
        return status

    def _start_worker(self, number: int, scheduler: Scheduler) -> Child:
        job, workers = self._job, len(self._job.addresses)
        told = without_rank_marks(os.environ) | scheduler.environment("worker", job.addresses[number])
        told |= rank_environment(told, len(os.sched_getaffinity(0)), workers, workers) | job.environment
        # With a group, `report_progress` knows that its line is read; a store of hybridps would record it in its
        # events.
        alone = Settings(run_folder=job.folder, group_index=number, group_sizes=(1,) * workers)
        told = child_environment(told, alone)
        hear = partial(self._hear, job.groups[number])
        command = [*job.inside[number], *job.command]
        return self._processes.start(f"worker {number}", command, told, death_signal=signal.SIGKILL, on_line=hear)

    def _start(self, name: str, command: Sequence[str], told: dict[str, str]) -> Child:
        return self._processes.start(name, command, told, death_signal=signal.SIGKILL)

    def _hear(self, group: int, line: str) -> bool:
        workers = zip(self._workers, self._job.groups, strict=False)
        running = Counter(number for worker, number in workers if worker.status is None)
        heard = self._log.hear(group, line, running)
        for message in heard.messages:
            self._screen.message(message)
        return heard.hide

    def _ended(self, child: Child) -> None:
        """Note the end of a process. If it failed, the others are stopped, because they cannot continue without it."""
        if child.status and not self._failed and not self._signals:
            self._failed = child.status
            self._screen.message(f"{child.name} ended with exit status {child.status}; stopping the others")


def _running(children: list[Child]) -> list[Child]:
    return [child for child in children if child.status is None]


def main(text: str) -> int:
    job = msgspec.json.decode(text, type=NativeJob)
    with reserved_port(job.host) as port:
        return Native(job).run(Scheduler(job.host, port, len(job.addresses), job.servers))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
