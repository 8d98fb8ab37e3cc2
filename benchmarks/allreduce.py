"""Allreduce side by side: hybridps, the MPI library, PyTorch's gloo, Horovod and Intel MPI. See docs/benchmarks.md.

python -m benchmarks.allreduce --ranks 2 --json allreduce.json --plot allreduce.png
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.cases import CASES, FLAT_SIZES, make_cases, one_of, parse_sizes
from benchmarks.plot import plot as draw
from benchmarks.results import Result, describe_hardware, make_results, table
from benchmarks.task import PEERS, WIRES, Task
from benchmarks.world import end_when_signalled, run_ranks
from hybridps.errors import HybridPSError
from hybridps.links import INTERFACE, Links, bits_per_second, limited_links, missing
from hybridps.tensor_collectives import part_sizes

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def allreduce(
    ranks: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes that the ranks are spread over, with limited links.")] = 1,
    vectors: Annotated[int, typer.Option(min=1, help="Vectors of each rank, one for each of its devices.")] = 1,
    cases: Annotated[str, typer.Option(help="What is reduced: flat, resnet50.")] = "flat,resnet50",
    sizes: Annotated[str, typer.Option(help="Sizes of flat in bytes: 4K,1M,102400000. Default: 4K to 102.4 MB.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the result is their median.")] = 15,
    peers: Annotated[str, typer.Option(help=f"Peers, where installed: {', '.join(PEERS)}; or none.")] = ",".join(PEERS),
    intel_mpi: Annotated[str, typer.Option(metavar="PREFIX", help="Environment that has Intel MPI.")] = "",
    rate: Annotated[str, typer.Option(help="Rate of the link of each node, with --nodes.")] = "1gbit",
    wire: Annotated[str, typer.Option(help="What hybridps sends between nodes: float16. Default: float32.")] = "",
    json_path: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the results here.")] = None,
    plot_path: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw them here (PNG).")] = None,
) -> None:
    """Measure allreduce side by side, alternating, and print medians in milliseconds.

    The number in brackets is the time relative to that of hybridps.
    """
    try:
        bits_per_second(rate)
        chosen = make_cases(one_of(cases, CASES), parse_sizes(sizes) or FLAT_SIZES)
        chosen_peers = () if peers == "none" else one_of(peers, PEERS)
        one_of(wire, WIRES)
        with tempfile.TemporaryDirectory() as folder, _nodes(nodes, ranks, rate) as links:
            task = Task(
                folder=folder,
                cases=tuple(chosen),
                vectors=vectors,
                node_of_rank=node_of_rank(ranks, nodes),
                rounds=rounds,
                peers=chosen_peers,
                wire=wire,
                interface=INTERFACE if links else "lo",
                intel_mpi=os.path.abspath(intel_mpi) if intel_mpi else "",
            )
            results = make_results(task, run_ranks(task, links), links, describe_hardware())
    except (ValueError, RuntimeError, HybridPSError) as error:
        print(f"benchmarks.allreduce: {error}", file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, ValueError) else 1) from None
    _show(results)
    if json_path:
        json_path.write_text(json.dumps(results, indent=1) + "\n")
    if plot_path:
        draw(results, plot_path)


def node_of_rank(ranks: int, nodes: int) -> tuple[int, ...]:
    """Return the node of each rank: consecutive ranks, as equally as possible. Raises ValueError for too many nodes.

    >>> node_of_rank(5, 2)
    (0, 0, 0, 1, 1)
    """
    if nodes > ranks:
        raise ValueError(f"{ranks} ranks cannot be on {nodes} nodes: use at least as many ranks")
    return tuple(node for node, size in enumerate(part_sizes(ranks, nodes)) for _ in range(size))


@contextmanager
def _nodes(nodes: int, ranks: int, rate: str) -> Iterator[Links | None]:
    """Open limited links for several nodes; None for one node, or if this host cannot make them."""
    node_of_rank(ranks, nodes)
    if nodes == 1:
        yield None
        return
    if reason := missing():
        print(f"benchmarks.allreduce: no limited links, all {nodes} nodes are this host: {reason}", file=sys.stderr)
        yield None
        return
    with limited_links(nodes, rate) as links:
        yield links


def _show(results: Sequence[Result]) -> None:
    heading, *rows = table(results)
    for name, reason in results[0]["absent"].items():
        print(f"{name} is absent: {reason}", file=sys.stderr)
    console = Console()
    if not console.is_terminal:
        widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
        for row in (heading, *rows):
            print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
        return
    shown = Table(title="milliseconds (times hybridps)")
    for name in heading:
        shown.add_column(name, justify="right", overflow="fold")
    for row in rows:
        shown.add_row(*row)
    console.print(shown)


if __name__ == "__main__":
    end_when_signalled()
    app()
