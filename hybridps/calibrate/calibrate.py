"""All measurements of a calibration, one after the other, each in processes of its own."""

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
from hybridps.oracle.calibration import Calibration, Communication, Layers, Operation, Steps
from hybridps.oracle.fit import fit_line

MEASURE_SECONDS = 600

Report = Callable[[str], None]


@dataclass(frozen=True)
class Wish:
    """What to measure. `layouts`: pairs of workers and groups. `hosts`: where those are; empty for this machine."""

    command: tuple[str, ...]
    layouts: tuple[tuple[int, int], ...]
    copies: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    batches: int
    models: Path | None
    hosts: str = ""


class _Measured(msgspec.Struct):
    """What `hybridps.calibrate.communication` writes of one operation."""

    sizes_bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    loss: float


def calibrate(wish: Wish, report: Report) -> Calibration:
    """Measure all that is wished for. Raises OracleError where a measurement fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        steps = []
        for count in wish.copies:
            report(f"steps of {count} copies, batches of {' and '.join(map(str, wish.batch_sizes))}")
            steps.append(_steps(wish, count, folder))
        report("layers of the network")
        layers = _layers(wish, folder)
        report("memory and kernels")
        speeds = copy_bytes_per_second(), add_bytes_per_second(), matrix_flops()
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return Calibration(
            len(os.sched_getaffinity(0)),
            wish.hosts,
            tuple(steps),
            communications(wish, report),
            layers,
            *speeds,
            memory_bytes,
        )


def communications(wish: Wish, report: Report) -> tuple[Communication, ...]:
    """What each layout needs to communicate."""
    found = []
    for workers, groups in wish.layouts:
        report(f"communication of {workers} workers in {groups} groups")
        found.append(_communication(wish, workers, groups))
    return tuple(found)


def _steps(wish: Wish, copies: int, folder: Path) -> Steps:
    found = [measure_steps(wish.command, copies, size, wish.batches, folder) for size in wish.batch_sizes]
    sizes = [each.batch_size for each in found]
    step = fit_line(sizes, [each.step_seconds for each in found], relative=True)
    if step.seconds_per_unit <= 0:
        times = ", ".join(f"{each.batch_size}: {1e3 * each.step_seconds:.0f} ms" for each in found)
        raise OracleError(
            f"larger batches take no longer ({times}): the machine is busy with something else, wait for it"
        )
    return Steps(copies, step, fit_line(sizes, [each.loader_seconds for each in found], relative=True))


def _layers(wish: Wish, folder: Path) -> Layers:
    batch, out = max(wish.batch_sizes), folder / "layers.json"
    run = folder / f"{wish.copies[0]}-{wish.batch_sizes[0]}-0"
    module = [sys.executable, "-m", "hybridps.calibrate.layers"]
    _run([*module, str(run), str(wish.models or ""), str(batch), str(out)])
    return msgspec.json.decode(out.read_bytes(), type=Layers)


def _communication(wish: Wish, workers: int, groups: int) -> Communication:
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "communication.json"
        launcher = [sys.executable, "-m", "hybridps.cli", "run", "--quiet", "-n", str(workers), "--groups", str(groups)]
        launcher += ["--hosts", wish.hosts, "--insecure"] if wish.hosts else []
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
