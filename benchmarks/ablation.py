"""What each part of the server's data path is worth: one thing is changed at a time. See docs/benchmarks.md.

python -m benchmarks.ablation --workers 2 --json ablation.json --plot ablation.png
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from benchmarks.cases import resnet50_tensors
from benchmarks.clusters import serving
from benchmarks.exchanges import Exchanges, Measured, make_cases
from benchmarks.push_pull import make_results
from benchmarks.results import Result, size_text
from benchmarks.world import end_when_signalled, start_workers
from hybridps.config import Settings
from hybridps.errors import HybridPSError

CHUNKS = tuple(1 << power for power in range(16, 25, 2))
THREADS = (1, 2, 4)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Variant(NamedTuple):
    """A server that differs from the usual one in one thing."""

    part: str
    name: str
    transport: str = "shm"
    fused: bool = True
    settings: Settings = Settings()


def variants() -> list[Variant]:
    """Return all variants, the usual server first."""
    found = [Variant("", "as it is")]
    found += [Variant("chunk", size_text(size), settings=Settings(chunk_bytes=size)) for size in CHUNKS]
    found += [Variant("threads", f"{count} threads", settings=Settings(server_threads=count)) for count in THREADS]
    found += [Variant("rule", "NumPy, not fused", fused=False)]
    return found + [Variant("transport", name, transport=name) for name in ("ipc", "tcp")]


@app.command()
def ablation(
    workers: Annotated[int, typer.Option(min=1, help="Workers, each a group of its own.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the result is their median.")] = 7,
    json_path: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the results here.")] = None,
    plot_path: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw them here (PNG).")] = None,
) -> None:
    """Exchange ResNet-50's gradients with momentum SGD at one server, alternating between its variants."""
    chosen = variants()
    try:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            ways = tuple(
                stack.enter_context(serving(v.name, v.transport, 1, folder, v.settings, v.fused)) for v in chosen
            )
            cases = make_cases(("resnet50",), resnet50_tensors())
            task = Exchanges(folder, cases, workers, workers, ways, "momentum", rounds)
            start_workers(task)
            (result,) = make_results(task, 1, Settings(), Measured.read(folder))
    except (RuntimeError, HybridPSError) as error:
        print(f"benchmarks.ablation: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    for variant in chosen:
        taken, cpu = (1e3 * result[kind][variant.name] for kind in ("seconds", "server_cpu_seconds"))
        print(f"{variant.part:9} {variant.name:16} {taken:7.1f} ms   servers' CPU {cpu:7.1f} ms")
    if json_path:
        json_path.write_text(json.dumps([result], indent=1) + "\n")
    if plot_path:
        plot(result, chosen, plot_path)


def plot(result: Result, chosen: Sequence[Variant], path: Path) -> None:
    """Draw the results, with a panel for each part that was changed. Raises ImportError without matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    parts = list(dict.fromkeys(variant.part for variant in chosen if variant.part))
    counts = [sum(variant.part == part for variant in chosen) for part in parts]
    figure = Figure(figsize=(12, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(parts), sharey=True, width_ratios=counts)
    for axis, part in zip(axes, parts, strict=True):
        _bars(axis, part, result, [variant.name for variant in chosen if variant.part == part], chosen[0].name)
    axes[0].set_ylabel("median time of an exchange, ms")
    axes[0].legend(fontsize=8)
    figure.suptitle(
        f"ResNet-50's gradients, {result['workers']} workers, momentum SGD at one server, "
        f"{result['hardware']['cores']} cores"
    )
    figure.savefig(path, dpi=130)


def _bars(axis: Any, part: str, result: Result, names: Sequence[str], usual: str) -> None:
    bars = axis.bar(names, [1e3 * result["seconds"][name] for name in names], color="#5aa0d8")
    axis.bar_label(bars, fmt="%.0f")
    axis.axhline(1e3 * result["seconds"][usual], color="#c1272d", linestyle="--", label=usual)
    axis.set_title(part)
    axis.tick_params(axis="x", rotation=45)
    axis.margins(y=0.12)


if __name__ == "__main__":
    end_when_signalled()
    app()
