"""Starts the readers that the settings ask for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hybridps.config import Settings
from hybridps.watch.watcher import Reader, Watcher


def start_watcher(
    folder: Path | None, settings: Settings, readers: Sequence[Reader] = ()
) -> tuple[Watcher | None, str]:
    """Return the watcher of a run, None if it would have no readers; and a message for the user, or an empty one.

    `folder`: the live folder. `readers`: other readers than those that the settings name. Raises ConfigError if a
    library is missing or a folder cannot be written, and ServerError if a port cannot be used.
    """
    asked, said = list(readers), ""
    if folder is None:
        return None, said
    if settings.tensorboard is not None:
        from hybridps.watch.tensorboard import TensorBoard

        asked.append(TensorBoard(Path(settings.tensorboard)))
    if settings.worker_metrics_port is not None:
        from hybridps.watch.metrics import RunMetrics

        metrics = RunMetrics(settings.metrics_bind, settings.worker_metrics_port)
        asked.append(metrics)
        said = f"metrics of the workers at {metrics.url}"
    return (Watcher(folder, asked) if asked else None), said
