"""Machines as data: links, memory and speed, and what a calibration has measured.

A caller gets a `Machine` by name or from a file (`machine_of`). `Line` and `fit_line` turn measured times into a
start-up time and a time per unit. The records of a calibration are in `calibration`.
"""

from hybridps.oracle.machines.fit import Line, fit_cost, fit_line
from hybridps.oracle.machines.machine import (
    ABCI,
    SETTINGS,
    Level,
    Link,
    Machine,
    machine_of,
    with_settings,
)

__all__ = [
    "ABCI",
    "SETTINGS",
    "Level",
    "Line",
    "Link",
    "Machine",
    "fit_cost",
    "fit_line",
    "machine_of",
    "with_settings",
]
