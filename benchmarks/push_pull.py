"""Push and pull side by side: hybridps over shared memory, ipc and tcp, and MXNet's KVStore. See docs/benchmarks.md.

python -m benchmarks.push_pull --workers 2 --servers 1 --peer mxnet --json push_pull.json
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec
import typer

from benchmarks.cases import one_of, parse_sizes, resnet50_tensors
from benchmarks.clusters import mxnet_serving, serving
from benchmarks.exchanges import CASES, OURS, PEERS, RULES, Exchanges, Measured, make_cases
from benchmarks.results import Result, describe_hardware, size_text
from benchmarks.world import end_when_signalled, start_workers
from hybridps.config import Settings
from hybridps.errors import HybridPSError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def push_pull(
    workers: Annotated[int, typer.Option(min=1, help="Workers.")] = 2,
    groups: Annotated[int, typer.Option(help="Groups of workers of hybridps. Default: each worker is one.")] = 0,
    servers: Annotated[int, typer.Option(min=1, help="Servers.")] = 1,
    cases: Annotated[str, typer.Option(help="What is exchanged.")] = ",".join(CASES),
    rule: Annotated[str, typer.Option(help="What the servers do: momentum or sum.")] = RULES[0],
    contenders: Annotated[str, typer.Option(help="Transports of hybridps to measure.")] = ",".join(OURS),
    peer: Annotated[str, typer.Option(help="mxnet: its own KVStore, dist_sync and dist_async. Default: none.")] = "",
    chunk: Annotated[str, typer.Option(help="Bytes of a chunk. Default: that of hybridps.")] = "",
    bucket: Annotated[str, typer.Option(help="Bytes exchanged at once, as by the KVStore. Default: all.")] = "",
    threads: Annotated[int, typer.Option(help="Threads of a server. Default: that of hybridps.")] = 0,
    restarts: Annotated[int, typer.Option(min=0, help="As in `hybridps serve`: tables then outlive a server.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the result is their median.")] = 9,
    json_path: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the results here.")] = None,
) -> None:
    """Measure exchanges of all keys side by side, alternating, and print medians in milliseconds."""
    try:
        given = Settings(server_threads=threads or None)
        if chunk:
            given = msgspec.structs.replace(given, chunk_bytes=parse_sizes(chunk)[0])
        bucket_bytes = parse_sizes(bucket)[0] if bucket else 0
        if bucket_bytes % given.usual_chunk_bytes:
            whole = given.usual_chunk_bytes
            raise ValueError(f"buckets of {bucket_bytes} bytes are no chunks of {whole}: use a multiple")
        if (groups or workers) > workers:
            raise ValueError(f"{workers} workers cannot be in {groups} groups: use at least as many workers")
        chosen = make_cases(one_of(cases, CASES), resnet50_tensors())
        (rule,) = one_of(rule, RULES)
        ours = one_of(contenders, OURS)
        theirs = (PEERS if rule == "momentum" else PEERS[:1]) if one_of(peer, ("mxnet",)) else ()
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            ways = [serving(name, name[-3:], servers, folder, given, restarts=restarts) for name in ours]
            ways += [mxnet_serving(name, case.name, servers, workers) for name in theirs for case in chosen]
            running = tuple(stack.enter_context(way) for way in ways)
            task = Exchanges(folder, chosen, workers, groups or workers, running, rule, rounds, bucket_bytes)
            start_workers(task)
            results = make_results(task, servers, given, Measured.read(folder))
    except (ValueError, RuntimeError, HybridPSError) as error:
        print(f"benchmarks.push_pull: {error}", file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, ValueError) else 1) from None
    show(results)
    if json_path:
        json_path.write_text(json.dumps(results, indent=1) + "\n")


def make_results(task: Exchanges, servers: int, settings: Settings, measured: Measured) -> list[Result]:
    """Return one object for each case of the task."""
    shared = {"workers": task.workers, "groups": task.groups, "servers": servers, "rule": task.rule}
    extras = {
        "chunk_bytes": settings.usual_chunk_bytes,
        "bucket_bytes": task.bucket_bytes,
        "server_threads": settings.server_threads,
        "rounds": task.rounds,
        "versions": measured.versions,
        "hardware": describe_hardware(),
    }
    results = []
    for case, rounds, cpu in zip(task.cases, measured.seconds, measured.server_seconds, strict=True):
        seconds = {name: median(times) for name, times in rounds.items()}
        results.append(
            {"case": case.name, "bytes": case.nbytes, **shared, "seconds": seconds}
            | {"exchanges_per_second": {name: 1 / taken for name, taken in seconds.items()}}
            | {"group_exchanges_per_second": {name: task.groups / taken for name, taken in seconds.items()}}
            | {"bytes_per_second_per_worker": {name: case.nbytes / taken for name, taken in seconds.items()}}
            | {"server_cpu_seconds": {name: median(times) for name, times in cpu.items()}}
            | {"ratios": ratios(seconds), "fastest": {name: min(times) for name, times in rounds.items()}}
            | extras
        )
    return results


def ratios(seconds: dict[str, float]) -> dict[str, dict[str, float]]:
    """Return how many times as long as each way of hybridps MXNet's stores take.

    >>> ratios({"hybridps_shm": 2.0, "mxnet_dist_sync": 5.0})
    {'mxnet_dist_sync': {'hybridps_shm': 2.5}}
    """
    return {
        peer: {name: seconds[peer] / taken for name, taken in seconds.items() if name in OURS}
        for peer in seconds
        if peer in PEERS
    }


def show(results: Sequence[Result]) -> None:
    """Print milliseconds, and the servers' CPU time in brackets."""
    names = list(results[0]["seconds"])
    rows = [["case", "size", *names]]
    for result in results:
        pairs = [(1e3 * result["seconds"][name], 1e3 * result["server_cpu_seconds"][name]) for name in names]
        rows.append([result["case"], size_text(result["bytes"]), *(f"{ms:.3g} ({cpu:.3g})" for ms, cpu in pairs)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    for result in results:
        for peer, of in result["ratios"].items():
            print(f"{result['case']}: {peer} / " + ", ".join(f"{name} {ratio:.1f}" for name, ratio in of.items()))


if __name__ == "__main__":
    end_when_signalled()
    app()
