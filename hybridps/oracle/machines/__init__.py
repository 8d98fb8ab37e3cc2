"""Machines as data: links, memory and speed, and what a calibration measured of them.

A caller takes a `Machine` by name or from a file (`machine_of`), or reads a measured `Calibration`. `Line` and
`fit_line` turn measured times into a start-up time and a time per unit.
"""

from hybridps.oracle.machines.calibration import (
    Calibration,
    Communication,
    Layers,
    Operation,
    Pass,
    Steps,
    read_calibration,
    write_calibration,
)
from hybridps.oracle.machines.collectives import allgather_seconds, allreduce_seconds
from hybridps.oracle.machines.fit import Line, fit_line
from hybridps.oracle.machines.machine import (
    ABCI,
    MICROSECOND,
    SETTINGS,
    Level,
    Link,
    Machine,
    checked,
    machine_of,
    with_settings,
)

__all__ = [
    "ABCI",
    "MICROSECOND",
    "SETTINGS",
    "Calibration",
    "Communication",
    "Layers",
    "Level",
    "Line",
    "Link",
    "Machine",
    "Operation",
    "Pass",
    "Steps",
    "allgather_seconds",
    "allreduce_seconds",
    "checked",
    "fit_line",
    "machine_of",
    "read_calibration",
    "with_settings",
    "write_calibration",
]
