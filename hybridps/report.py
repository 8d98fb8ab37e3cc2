"""What a run folder says: `summary.json` and `training.png` from the lines that the workers wrote.

`train-<worker>.jsonl` is written by the training script (events `run`, `epoch`, `end`), and
`hybridps-<rank>.jsonl` by this package (see events.py). A restarted worker appends to its file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hybridps.errors import HybridPSError
from hybridps.events import Closed, Configured, Exchanged, Noted, Planned, Registered

AnyEvent = Configured | Planned | Registered | Exchanged | Noted | Closed
Line = dict[str, Any]
Value = Callable[[list[Line]], float | None]


@dataclass(frozen=True)
class Worker:
    """What one worker wrote about its training, from its last fresh start on."""

    number: int
    run: Line
    epochs: dict[int, Line]
    end: Line | None

    def settings(self) -> Line:
        found = self.run.get("settings")
        return found if isinstance(found, dict) else {}

    def images_per_second(self) -> float:
        """Mean over the epochs after the first, which has the start-up in it; over all if there is one."""
        rates = [epoch["images_per_second"] for _, epoch in sorted(self.epochs.items())]
        return float(np.mean(rates[1:] or rates)) if rates else 0.0

    def seconds(self) -> float:
        lines = [self.end] if self.end else list(self.epochs.values())
        return max((float(line.get("seconds") or 0.0) for line in lines), default=0.0)


@dataclass(frozen=True)
class Rank:
    """What one rank of the package wrote since it was last configured."""

    configured: Configured | None = None
    planned: Planned | None = None
    closed: Closed | None = None


@dataclass(frozen=True)
class Run:
    """All that a folder says of one job."""

    workers: dict[int, Worker]
    ranks: dict[int, Rank]
    expected: int
    groups: dict[int, int] = field(default_factory=dict)
    """The group of each worker, where it is known."""

    def finished(self) -> list[int]:
        return [number for number, worker in sorted(self.workers.items()) if worker.end]

    def lost(self) -> list[int]:
        return sorted((set(range(self.expected)) | set(self.workers)) - set(self.finished()))


def make_report(folder: Path) -> dict[str, Any]:
    """Write `summary.json` and `training.png` into a run folder, and return the summary.

    Half-written lines are passed over. Raises HybridPSError if no worker wrote anything there, or if
    matplotlib is not installed; the summary is written before the plot.
    """
    run = read_run(folder)
    summary = summarise(run)
    _write_atomically(folder / "summary.json", json.dumps(summary, indent=1).encode() + b"\n")
    plot(run, summary, folder / "training.png")
    return summary


def read_run(folder: Path) -> Run:
    """Read the files of all workers and ranks."""
    workers = {number: read_worker(number, path) for number, path in _numbered(folder, "train-")}
    workers = {number: worker for number, worker in workers.items() if worker.run or worker.epochs}
    if not workers:
        raise HybridPSError(f"{folder} has no train-<worker>.jsonl with a line in it: is it the folder of a run?")
    ranks = {number: read_rank(path) for number, path in _numbered(folder, "hybridps-")}
    expected = _expected(workers)
    workers = {number: worker for number, worker in workers.items() if number < expected}
    ranks = {number: rank for number, rank in ranks.items() if not rank.planned or rank.planned.worker < expected}
    plans = [rank.planned for rank in ranks.values() if rank.planned]
    return Run(workers, ranks, expected, {plan.worker: plan.group for plan in plans if plan.worker >= 0})


def read_worker(number: int, path: Path) -> Worker:
    """One training file. A run that begins at the first epoch forgets what is before it; a resumed one goes on."""
    run: Line = {}
    epochs: dict[int, Line] = {}
    end = None
    for line in _lines(path):
        if line.get("event") == "run":
            first = line.get("first_epoch") or 0
            run, end = line, None
            epochs = {epoch: fields for epoch, fields in epochs.items() if epoch <= first}
        elif line.get("event") == "epoch" and isinstance(line.get("epoch"), int):
            epochs[line["epoch"]] = line
        elif line.get("event") == "end":
            end = line
    return Worker(number, run, epochs, end)


def read_rank(path: Path) -> Rank:
    """One event file, from its last `Configured` on. Unknown events are passed over."""
    rank = Rank()
    for line in _lines(path):
        try:
            event = msgspec.convert(line, AnyEvent)
        except msgspec.ValidationError:
            continue
        if isinstance(event, Configured):
            rank = Rank(configured=event)
        elif isinstance(event, Planned):
            rank = Rank(rank.configured, event, rank.closed)
        elif isinstance(event, Closed):
            rank = Rank(rank.configured, rank.planned, event)
    return rank


def summarise(run: Run) -> dict[str, Any]:
    """The numbers of a run. Accuracies are fractions of all validation images, at the last common epoch."""
    judged = [run.workers[number] for number in run.finished()] or list(run.workers.values())
    epochs = _common_epochs(judged)
    last = epochs[-1] if epochs else 0
    validated = [epoch for epoch in epochs if all(worker.epochs[epoch].get("val_images") for worker in judged)]
    lines = [worker.epochs[validated[-1]] for worker in judged] if validated else []
    plans = [rank.planned for rank in run.ranks.values() if rank.planned]
    closed = [rank.closed for rank in run.ranks.values() if rank.closed]
    top1 = _fraction(lines, "val_top1_correct")
    return {
        "algorithm": algorithm(run),
        "groups": max((plan.groups for plan in plans), default=1),
        "workers": run.expected,
        "servers": max((len(plan.servers) for plan in plans), default=0),
        "epochs": last,
        "top1": top1,
        "top5": _fraction(lines, "val_top5_correct"),
        "top1_centre": _fraction(lines, "centre_top1_correct") if _has_centre(run) else top1,
        "loss": _mean_loss(judged, last),
        "images_per_second": sum(worker.images_per_second() for worker in judged),
        "seconds": max((worker.seconds() for worker in judged), default=0.0),
        "bytes_within_groups": sum(event.bytes_within_group for event in closed),
        "bytes_to_servers": sum(event.bytes_to_servers for event in closed),
        "finished": run.finished(),
        "lost": run.lost(),
    }


def algorithm(run: Run) -> str:
    """Name of the algorithm, from the settings of the job; else the type of the KVStore."""
    for rank in run.ranks.values():
        if rank.configured and rank.configured.settings.get("algorithm"):
            return str(rank.configured.settings["algorithm"])
    store = next((_store(worker) for worker in run.workers.values() if _store(worker)), "unknown")
    return store.removeprefix("dist_hybridps_")


def plot(run: Run, summary: dict[str, Any], path: Path) -> None:
    """Draw the loss and the accuracy of the workers and of the centre over the epochs."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise HybridPSError("the plot needs matplotlib: pip install 'hybridps[demo]'") from None
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _draw_loss(left, run)
    _draw_accuracy(right, run)
    figure.suptitle(_title(summary), fontsize=11)
    partial = path.with_name(f".{path.name}.partial")
    figure.savefig(partial, dpi=130, format="png")
    os.replace(partial, path)


def _draw_loss(axes: Any, run: Run) -> None:
    _draw_groups(axes, run, _loss_at)
    _draw_mean(axes, run, _loss_at)
    _label(axes, run, "training loss")


def _draw_accuracy(axes: Any, run: Run) -> None:
    def own(lines: list[Line]) -> float | None:
        return _percent(lines, "val_top1_correct")

    def centre(lines: list[Line]) -> float | None:
        return _percent(lines, "centre_top1_correct")

    _draw_groups(axes, run, own)
    _draw_mean(axes, run, own)
    if _has_centre(run):
        axes.plot(*_curve(run.workers.values(), centre), "--", color="C3", linewidth=2.0, marker=".", label="centre")
    _label(axes, run, "validation top-1 (%)")


def _draw_mean(axes: Any, run: Run, value: Value) -> None:
    label = "mean of the workers" if len(run.workers) > 1 else "worker"
    axes.plot(*_curve(run.workers.values(), value), color="C0", linewidth=2.2, marker=".", label=label)


def _draw_groups(axes: Any, run: Run, value: Value) -> None:
    """A thin line for each group, or for each worker where the groups are not known or there is one."""
    many = len(set(run.groups.values())) > 1
    members: dict[int, list[Worker]] = {}
    for number, worker in sorted(run.workers.items()):
        members.setdefault(run.groups.get(number, number) if many else number, []).append(worker)
    if len(members) < 2:
        return
    for count, (_, workers) in enumerate(sorted(members.items())):
        label = ("each group" if many else "each worker") if count == 0 else None
        axes.plot(*_curve(workers, value), color="0.55", linewidth=0.9, alpha=0.8, label=label)


def _label(axes: Any, run: Run, what: str) -> None:
    axes.set_xlabel("epoch")
    axes.set_ylabel(what)
    axes.grid(alpha=0.3)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if axes.lines:
        axes.legend(frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _title(summary: dict[str, Any]) -> str:
    def count(number: int, word: str) -> str:
        return f"{number} {word}" + ("" if number == 1 else "s")

    parts = [str(summary["algorithm"])]
    parts += [count(summary[f"{word}s"], word) for word in ("worker", "group", "server") if summary[f"{word}s"]]
    parts.append(f"{summary['images_per_second']:,.0f} images/s")
    if summary["lost"]:
        parts.append(f"not finished: {', '.join(map(str, summary['lost']))}")
    return "  ·  ".join(parts)


def _curve(workers: Iterable[Worker], value: Value) -> tuple[list[int], list[float]]:
    """Epochs at which any of the workers has a value, and the value of those that have one."""
    points: dict[int, list[Line]] = {}
    for worker in workers:
        for epoch, line in worker.epochs.items():
            points.setdefault(epoch, []).append(line)
    values = {epoch: value(lines) for epoch, lines in sorted(points.items())}
    kept = {epoch: number for epoch, number in values.items() if number is not None}
    return list(kept), list(kept.values())


def _loss_at(lines: list[Line]) -> float | None:
    losses = [line["loss"] for line in lines if line.get("loss") is not None]
    return float(np.mean(losses)) if losses else None


def _percent(lines: list[Line], key: str) -> float | None:
    fraction = _fraction(lines, key)
    return None if fraction is None else 100 * fraction


def _fraction(lines: list[Line], key: str) -> float | None:
    """The sum of `key` over the validation images of the lines that have it."""
    counted = [line for line in lines if line.get(key) is not None and line.get("val_images")]
    images = sum(line["val_images"] for line in counted)
    return sum(line[key] for line in counted) / images if images else None


def _mean_loss(workers: list[Worker], epoch: int) -> float | None:
    return _loss_at([worker.epochs[epoch] for worker in workers if epoch in worker.epochs])


def _common_epochs(workers: list[Worker]) -> list[int]:
    return sorted(set.intersection(*(set(worker.epochs) for worker in workers))) if workers else []


def _has_centre(run: Run) -> bool:
    lines = (line for worker in run.workers.values() for line in worker.epochs.values())
    return "elastic" in algorithm(run) or any(line.get("centre_top1_correct") is not None for line in lines)


def _store(worker: Worker) -> str:
    return str(worker.settings().get("kvstore_type") or worker.settings().get("kvstore") or "")


def _expected(workers: dict[int, Worker]) -> int:
    """Number of workers, as the one that started last has it: an earlier run in the folder may have had more."""
    newest = max(workers.values(), key=lambda worker: worker.run.get("started_at") or 0.0)
    return int(newest.settings().get("workers") or max(workers) + 1)


def _numbered(folder: Path, prefix: str) -> Iterator[tuple[int, Path]]:
    for path in sorted(folder.glob(f"{prefix}*.jsonl")):
        number = path.stem.removeprefix(prefix)
        if number.isdigit():
            yield int(number), path


def _lines(path: Path) -> Iterator[Line]:
    """The JSON objects of a file, without the lines that a killed process left half written."""
    for text in path.read_bytes().splitlines():
        try:
            line = msgspec.json.decode(text)
        except msgspec.DecodeError:
            continue
        if isinstance(line, dict):
            yield line


def _write_atomically(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
