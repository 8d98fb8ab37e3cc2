"""Readers of a run under way: scalars for TensorBoard, metrics for Prometheus, and the job line of the launcher.

A `Watcher` looks at the live folder once a second. The launcher has one, or without a launcher the first worker
(`start_watcher`).
"""

from hybridps.watch.start import make_readers, start_watcher
from hybridps.watch.watcher import Reader, Watcher

__all__ = ["Reader", "Watcher", "make_readers", "start_watcher"]
