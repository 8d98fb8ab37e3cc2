"""How close the oracle comes to live runs of examples/imagenet on this machine. See docs/oracle.md.

    python -m benchmarks.oracle_accuracy calibrate FOLDER      # without communication between workers of a training
    python -m benchmarks.oracle_accuracy run FOLDER            # the configurations, those that are not there yet
    python -m benchmarks.oracle_accuracy table FOLDER

Limited links are those of hybridps/links.py: nodes in network namespaces, which share the cores of this machine.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Annotated

import typer

from hybridps.links import LinksError, limited_links

TOP = Path(__file__).parents[1]
SCRIPT = TOP / "examples" / "imagenet" / "train.py"
NETWORK = ["--data", "synthetic", "--synthetic-images", "1024", "--network", "resnet18_v1", "--image-size", "64"]
TRAIN = [sys.executable, str(SCRIPT), *NETWORK, "--classes", "100"]
TESTED = ["--batch-size", "8", "--max-batches", "8", "--epochs", "5", "--val-every", "9", "--keep", "1"]
CALIBRATED_BATCH_SIZES = "4,12,20"
RATE = "1gbit"
RUN_SECONDS = 300
ATTEMPTS = 3
MOST_OTHERS = 0.03
"""A run is repeated if other programs used more than this share of the cores. The least disturbed run counts."""
OTHERS = "others.txt"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
FolderArgument = Annotated[Path, typer.Argument(help="The folder of calibrations and runs.")]


@dataclass(frozen=True)
class Configuration:
    """A live run. `linked`: on two nodes behind limited links."""

    workers: int
    groups: int
    algorithm: str
    linked: bool

    @property
    def name(self) -> str:
        return f"{self.workers}w-{self.groups}g-{self.algorithm}-{RATE if self.linked else 'local'}"


CONFIGURATIONS = [
    Configuration(workers, groups, algorithm, linked)
    for linked in (False, True)
    for workers, groups in ((1, 1), (2, 1), (4, 1), (2, 2), (4, 2))
    for algorithm in (("sync", "elastic") if groups > 1 else ("sync",))
    if workers > 1 or not linked
]


@app.command()
def calibrate(folder: FolderArgument) -> None:
    """Measure this machine, then the links: with other batches than are tested, and no training on several workers."""
    command = ["calibrate", "--out", str(folder / "local"), "--batch-sizes", CALIBRATED_BATCH_SIZES]
    if not (folder / "local").exists():
        _oracle([*command, "--models", str(SCRIPT.with_name("models.py")), "--", *TRAIN])
    for workers in (2, 4):
        part = folder / f"linked-{workers}"
        with _linked(workers) as (launcher, environment, hosts):
            layouts = f"{workers}x1,{workers}x2" + (",2x1" if workers == 4 else "")
            words = ["calibrate", "--base", str(folder / "local"), "--out", str(part), "--layouts", layouts]
            _oracle([*words, "--hosts", hosts, "--", *TRAIN], launcher, environment)


@app.command()
def run(folder: FolderArgument) -> None:
    """Run the configurations that are not in the folder yet."""
    for each in CONFIGURATIONS:
        target = folder / each.name
        if target.exists():
            continue
        for attempt in range(ATTEMPTS):
            partial = folder / f"{each.name}.{attempt}"
            shutil.rmtree(partial, ignore_errors=True)
            others = _others_part(lambda each=each, partial=partial: _train(each, partial))  # type: ignore[misc]
            (partial / OTHERS).write_text(f"{others}\n")
            print(f"{each.name}: others used {100 * others:.0f} % of the cores", flush=True)
            if others < MOST_OTHERS:
                break
        tried = [folder / f"{each.name}.{number}" for number in range(attempt + 1)]
        min(tried, key=lambda path: float((path / OTHERS).read_text())).rename(target)


@app.command()
def table(folder: FolderArgument) -> None:
    """Print the accuracy of each configuration, in Markdown."""
    print("| workers | groups | algorithm | link | predicted, ms | measured, ms | step | compute | exposed | others |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    steps = []
    for each in CONFIGURATIONS:
        rows = {row["phase"]: row for row in json.loads(_compare(folder, each))}
        steps.append(rows["step"]["accuracy"])
        times = [f"{1e3 * rows['step'][name]:.0f}" for name in ("predicted_seconds", "measured_seconds")]
        accuracies = [rows[phase]["accuracy"] for phase in ("step", "compute", "exposed")]
        shown = ["" if value is None else f"{100 * value:.1f} %" for value in accuracies]
        what = [str(each.workers), str(each.groups), each.algorithm, RATE if each.linked else "none"]
        others = f"{100 * float((folder / each.name / OTHERS).read_text()):.0f} %"
        print(f"| {' | '.join([*what, *times, *shown, others])} |")
    print(f"\nmean {100 * mean(steps):.2f} %, best {100 * max(steps):.2f} %, worst {100 * min(steps):.2f} %")


def _others_part(work: Callable[[], None]) -> float:
    """Return the share of all cores' time that programs used, without those that `work` starts and waits for."""

    def seconds() -> tuple[float, float, float]:
        ticks = [int(word) / os.sysconf("SC_CLK_TCK") for word in Path("/proc/stat").read_text().split()[1:9]]
        user, nice, system, _, _, _, _, stolen = ticks  # without interrupts: those of the links are ours
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return sum(ticks), user + nice + system + stolen, used.ru_utime + used.ru_stime

    before = seconds()
    work()
    total, busy, ours = (now - then for now, then in zip(seconds(), before, strict=True))
    return max(0.0, busy - ours) / total


def _train(each: Configuration, folder: Path) -> None:
    words = ["run", "--quiet", "-n", str(each.workers), "--groups", str(each.groups), "--algorithm", each.algorithm]
    words += ["--tau", "4", "--run", str(folder)]
    if not each.linked:
        _hybridps([*words, "--", *TRAIN, *TESTED])
        return
    with _linked(each.workers) as (launcher, environment, hosts):
        _hybridps([*words, "--hosts", hosts, "--insecure", "--", *TRAIN, *TESTED], launcher, environment)


@contextmanager
def _linked(workers: int) -> Iterator[tuple[list[str], dict[str, str], str]]:
    """Open two nodes with half of the workers each, which share this machine's cores."""
    try:
        with tempfile.TemporaryDirectory() as folder, limited_links(2, RATE) as links:
            threads = str(max(1, len(os.sched_getaffinity(0)) // workers))
            environment = links.variables(Path(folder)) | {"OMP_NUM_THREADS": threads, "TMPDIR": folder}
            yield links.launcher, environment, ",".join(f"{address}:{workers // 2}" for address in links.addresses)
    except LinksError as error:
        raise SystemExit(f"no limited links here: {error}") from None


def _compare(folder: Path, each: Configuration) -> str:
    calibration = folder / (f"linked-{each.workers}" if each.linked else "local")
    words = [sys.executable, "-m", "hybridps.cli", "oracle", "compare", str(folder / each.name), "--format", "json"]
    done = subprocess.run(
        [*words, "--calibration", str(calibration)], cwd=TOP, capture_output=True, text=True, check=True
    )
    return done.stdout


def _oracle(words: Sequence[str], launcher: Sequence[str] = (), environment: dict[str, str] | None = None) -> None:
    _hybridps(["oracle", *words], launcher, environment, seconds=1200)


def _hybridps(
    words: Sequence[str],
    launcher: Sequence[str] = (),
    environment: dict[str, str] | None = None,
    seconds: float = RUN_SECONDS,
) -> None:
    command = [*launcher, sys.executable, "-m", "hybridps.cli", *words]
    subprocess.run(command, cwd=TOP, env=os.environ | (environment or {}), check=True, timeout=seconds)


if __name__ == "__main__":
    app()
