"""Synchronous SGD step by step: one iteration as a graph of tasks, and when each task runs.

A caller predicts a run of this package on a calibrated machine (`predict`), or replays a measured trace with other
ways to send the gradients (`read_trace`, `replay`). `place` gives the schedule of an iteration.
"""

from hybridps.oracle.ssgd.dag import place
from hybridps.oracle.ssgd.live import PHASES, Phases, Run, predict
from hybridps.oracle.ssgd.schedule import Placed, end_seconds
from hybridps.oracle.ssgd.trace import Replay, fit_link, iterations, read_trace, replay

__all__ = [
    "PHASES",
    "Phases",
    "Placed",
    "Replay",
    "Run",
    "end_seconds",
    "fit_link",
    "iterations",
    "place",
    "predict",
    "read_trace",
    "replay",
]
