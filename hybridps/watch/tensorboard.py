"""Scalars of a run for TensorBoard: a curve for each worker and server, and for the job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hybridps.errors import ConfigError
from hybridps.live import Live, Report, WorkerStatus
from hybridps.live.reading import rate, steps_per_second
from hybridps.watch.epochs import Epochs

MOST_CURVES = 64
"""The largest number of workers, or of servers, that have curves of their own."""

_MODEL = ("loss", "accuracy", "centre_accuracy")


class TensorBoard:
    """Writes scalars to a folder, from which `tensorboard --logdir FOLDER` shows them; the horizontal axis is steps.

    Raises ConfigError if tensorboardX is not installed, or if the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise ConfigError(
                f"HYBRIDPS_TENSORBOARD={folder} needs tensorboardX: pip install 'hybridps[tensorboard]'"
            ) from None
        self._folder = folder
        self._make = SummaryWriter
        self._writers: dict[str, Any] = {}
        self._reported: dict[int, float] = {}
        """The epoch that each worker has reported last."""
        self._epochs = Epochs()
        self._written = 0.0
        """The last epoch whose means are written."""
        try:
            self._writer("job")
        except OSError as error:
            raise ConfigError(f"HYBRIDPS_TENSORBOARD={folder} cannot be written: {error.strerror}") from None

    def look(self, before: Live, now: Live) -> None:
        """Write the new scalars."""
        for number, seen in sorted(now.workers.items())[:MOST_CURVES]:
            earlier = before.workers.get(number)
            then = None if earlier is None else earlier.status
            if then is None or then.steps < seen.status.steps:
                self._write(f"worker-{number}", _of_worker(then, seen.status), seen.status.steps)
        self._write_reports(now)
        self._write_job(before, now)
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()

    def _write_reports(self, now: Live) -> None:
        reports = self._epochs.look(now)
        for number, report in reports.items():
            if report.epoch > self._reported.get(number, 0.0):
                self._reported[number] = report.epoch
                if number < MOST_CURVES:
                    values = {f"model/{name}": getattr(report, name) for name in _MODEL}
                    self._write(f"worker-{number}", values, _step(now, number, report))
        epoch = self._epochs.epoch
        if epoch is not None and epoch > self._written:
            self._written = epoch
            means = {f"model/{name}": self._epochs.mean(name) for name in _MODEL}
            self._write("job", {**means, "model/epoch": epoch}, max(_step(now, *each) for each in reports.items()))

    def _write_job(self, before: Live, now: Live) -> None:
        if now.steps == before.steps:
            return
        values = {"pace/steps_per_second": steps_per_second(before, now)}
        for address, seen in sorted(now.servers.items())[:MOST_CURVES]:
            earlier = before.servers.get(address)
            then = None if earlier is None else earlier.status
            name = f"server-{seen.status.host}-{address.rpartition(':')[2]}"
            rates = {f"server/{field}_per_second": rate(then, seen.status, field) for field in _OF_SERVER}
            self._write(name, rates | {"server/lag": seen.status.lag}, now.steps)
        self._write("job", values, now.steps)

    def _write(self, name: str, values: Mapping[str, float | None], step: int) -> None:
        for tag, value in values.items():
            if value is not None:
                self._writer(name).add_scalar(tag, value, step)

    def _writer(self, name: str) -> Any:
        if name not in self._writers:
            self._writers[name] = self._make(str(self._folder / name))
        return self._writers[name]


_OF_SERVER = ("cpu_seconds", "rounds", "received_bytes", "sent_bytes")


def _of_worker(then: WorkerStatus | None, now: WorkerStatus) -> dict[str, float | None]:
    """Return the scalars of a worker; those without a value are None."""
    return {
        "pace/steps_per_second": rate(then, now, "steps"),
        "pace/step_seconds": now.step_seconds,
        "pace/own_seconds": now.own_seconds,
        "pace/waiting_seconds": now.waiting_seconds,
        "pace/cpu_seconds_per_second": rate(then, now, "cpu_seconds"),
        "exchange/distance": now.distance,
        "exchange/seconds": now.exchange_seconds,
        "exchange/bytes_to_servers": float(now.bytes_to_servers) if now.bytes_to_servers else None,
        "exchange/bytes_from_servers": float(now.bytes_from_servers) if now.bytes_from_servers else None,
    }


def _step(now: Live, worker: int, report: Report) -> int:
    return report.step or now.workers[worker].status.steps
