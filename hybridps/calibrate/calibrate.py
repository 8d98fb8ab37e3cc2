"""Runs all measurements of a calibration one after the other, each in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hybridps.calibrate.copies import measure_steps
from hybridps.calibrate.speed import add_bytes_per_second, copy_bytes_per_second, matrix_flops
from hybridps.errors import OracleError
from hybridps.oracle.machines import Calibration, Communication, Layers, Operation, Steps, fit_line

MEASURE_SECONDS = 600

Report = Callable[[str], None]


@dataclass(frozen=True)
class MeasurementPlan:
    """What to measure. `layouts`: pairs of workers and groups. `hosts`: their hosts; empty for this machine."""

    command: tuple[str, ...]
    layouts: tuple[tuple[int, int], ...]
    copies: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    batches: int
    models: Path | None
    hosts: str = ""


class _Measured(msgspec.Struct):
    """What `hybridps.calibrate.communication` writes about one operation."""

    sizes_bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    loss: float


def calibrate(plan: MeasurementPlan, report: Report) -> Calibration:
    """Run all measurements that the plan asks for. Raises OracleError if a measurement fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        steps = []
        for count in plan.copies:
            report(f"steps of {count} copies, batches of {' and '.join(map(str, plan.batch_sizes))}")
            steps.append(_steps(plan, count, folder))
        report("layers of the network")
        layers = _layers(plan, folder)
        report("memory and kernels")
        speeds = copy_bytes_per_second(), add_bytes_per_second(), matrix_flops()
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return Calibration(
            len(os.sched_getaffinity(0)),
            plan.hosts,
            tuple(steps),
            communications(plan, report),
            layers,
            *speeds,
            memory_bytes,
        )


def communications(plan: MeasurementPlan, report: Report) -> tuple[Communication, ...]:
    """Measure the communication of each layout."""
    found = []
    for workers, groups in plan.layouts:
        report(f"communication of {workers} workers in {groups} groups")
        found.append(_communication(plan, workers, groups))
    return tuple(found)


def _steps(plan: MeasurementPlan, copies: int, folder: Path) -> Steps:
    found = [measure_steps(plan.command, copies, size, plan.batches, folder) for size in plan.batch_sizes]
    sizes = [each.batch_size for each in found]
    step = fit_line(sizes, [each.step_seconds for each in found], relative=True)
    if step.seconds_per_unit <= 0:
        times = ", ".join(f"{each.batch_size}: {1e3 * each.step_seconds:.0f} ms" for each in found)
        raise OracleError(
            f"larger batches take no longer ({times}): the machine is busy with something else, wait for it"
        )
    return Steps(copies, step, fit_line(sizes, [each.loader_seconds for each in found], relative=True))


def _layers(plan: MeasurementPlan, folder: Path) -> Layers:
    batch, out = max(plan.batch_sizes), folder / "layers.json"
    run = folder / f"{plan.copies[0]}-{plan.batch_sizes[0]}-0"
    module = [sys.executable, "-m", "hybridps.calibrate.layers"]
    _run([*module, str(run), str(plan.models or ""), str(batch), str(out)])
    return msgspec.json.decode(out.read_bytes(), type=Layers)


def _communication(plan: MeasurementPlan, workers: int, groups: int) -> Communication:
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "communication.json"
        launcher = [sys.executable, "-m", "hybridps.cli", "run", "--quiet", "-n", str(workers), "--groups", str(groups)]
        launcher += ["--hosts", plan.hosts, "--insecure"] if plan.hosts else []
        _run([*launcher, "--", sys.executable, "-m", "hybridps.calibrate.communication", str(out)])
        found = msgspec.json.decode(out.read_bytes(), type=dict[str, _Measured])
    operations = {
        name: Operation(fit_line(each.sizes_bytes, each.seconds, relative=True), each.loss)
        for name, each in found.items()
    }
    return Communication(workers, groups, operations["sum"], operations.get("average"))


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MEASURE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise OracleError(f"{' '.join(command)} took over {MEASURE_SECONDS} s") from None
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()[-1:]
        raise OracleError(f"{' '.join(command)} ended with status {done.returncode}: {' '.join(said)}")
