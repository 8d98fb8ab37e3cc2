"""Runs all measurements of a calibration in sequence, each in separate processes."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hybridps.calibrate.copies import measure_steps
from hybridps.calibrate.processes import run_at_once
from hybridps.calibrate.speed import add_bytes_per_second, copy_bytes_per_second, matrix_flops
from hybridps.oracle.machines.calibration import Calibration, Communication, Layers, Operation

MEASURE_SECONDS = 600

Report = Callable[[str], None]


@dataclass(frozen=True)
class MeasurementPlan:
    """What to measure. `layouts`: pairs of workers and groups. `hosts`: those of `layouts`; empty for this machine."""

    command: tuple[str, ...]
    layouts: tuple[tuple[int, int], ...]
    copies: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    batches: int
    models: Path | None
    hosts: str = ""


def calibrate(plan: MeasurementPlan, report: Report) -> Calibration:
    """Run all measurements that the plan asks for. Raises OracleError if a measurement fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        steps = []
        for count in plan.copies:
            report(f"steps of {count} copies, batches of {' and '.join(map(str, plan.batch_sizes))}")
            steps.append(measure_steps(plan.command, count, plan.batch_sizes, plan.batches, folder))
        report("layers of the network")
        layers = _layers(plan, folder)
    report("memory and kernels")
    return Calibration(
        cores=len(os.sched_getaffinity(0)),
        hosts=plan.hosts,
        steps=tuple(steps),
        layers=layers,
        copy_bytes_per_second=copy_bytes_per_second(),
        add_bytes_per_second=add_bytes_per_second(),
        matrix_flops=matrix_flops(),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        communications=communications(plan, report),
    )


def communications(plan: MeasurementPlan, report: Report) -> tuple[Communication, ...]:
    """Measure the communication of each layout of the plan. Raises OracleError if a measurement fails."""
    found = []
    for workers, groups in plan.layouts:
        report(f"communication of {workers} workers in {groups} groups")
        launcher = [sys.executable, "-m", "hybridps.cli", "run", "--quiet", "-n", str(workers), "--groups", str(groups)]
        launcher += ["--hosts", plan.hosts, "--insecure"] if plan.hosts else []
        with tempfile.NamedTemporaryFile() as out:
            module = [sys.executable, "-m", "hybridps.calibrate.communication", out.name]
            run_at_once([[*launcher, "--", *module]], MEASURE_SECONDS)
            operations = msgspec.json.decode(out.read(), type=dict[str, Operation])
        found.append(Communication(workers, groups, operations["sum"], operations.get("average")))
    return tuple(found)


def _layers(plan: MeasurementPlan, folder: Path) -> Layers:
    batch, out = max(plan.batch_sizes), folder / "layers.json"
    run = folder / f"{plan.copies[0]}-{plan.batch_sizes[0]}-0"
    module = [sys.executable, "-m", "hybridps.calibrate.layers"]
    run_at_once([[*module, str(run), str(plan.models or ""), str(batch), str(out)]], MEASURE_SECONDS)
    return msgspec.json.decode(out.read_bytes(), type=Layers)
