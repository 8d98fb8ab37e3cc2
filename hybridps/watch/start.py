"""Starts the readers that the settings ask for."""

from __future__ import annotations

from pathlib import Path

from hybridps.config import Settings
from hybridps.watch.watcher import Reader, Watcher


def start_watcher(folder: Path | None, settings: Settings) -> tuple[Watcher | None, str]:
    """Return the watcher of a run, None if it would have no readers; and a message for the user, or an empty one.

    `folder`: the live folder. Raises the errors of `make_readers`.
    """
    if folder is None:
        return None, ""
    readers, said = make_readers(settings)
    return (Watcher(folder, readers) if readers else None), said


def make_readers(settings: Settings) -> tuple[list[Reader], str]:
    """Return the readers that the settings ask for, and a message for the user, or an empty one.

    Raises ConfigError if a library is missing or a folder cannot be written, and ServerError if a port cannot be used.
    """
    asked: list[Reader] = []
    said = ""
    if settings.tensorboard is not None:
        from hybridps.watch.tensorboard import TensorBoard

        asked.append(TensorBoard(Path(settings.tensorboard)))
    if settings.worker_metrics_port is not None:
        from hybridps.watch.metrics import RunMetrics

        metrics = RunMetrics(settings.metrics_bind, settings.worker_metrics_port)
        asked.append(metrics)
        said = f"metrics of the workers at {metrics.url}"
    return asked, said
