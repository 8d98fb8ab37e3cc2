"""A Gluon training step without a store, with MXNet's own stores and with hybridps. See docs/benchmarks.md.

python -m benchmarks.step --network resnet50_v1 --image-size 64 --batch-size 4 --json step.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from importlib import util
from pathlib import Path
from statistics import mean, median
from typing import Annotated

import numpy as np
import typer

from benchmarks.cases import one_of
from benchmarks.disturbance import Disturbance
from benchmarks.results import Result, describe_hardware, installed_versions
from benchmarks.step_contenders import CONTENDERS, USUAL, Contender, start
from benchmarks.step_overlap import complete_together, overlap
from benchmarks.step_task import Round, Timed, Told
from benchmarks.world import end_when_signalled
from hybridps.errors import HybridPSError
from hybridps.links import Links, bits_per_second, limited_links

UPDATES = ("server", "worker")
ALONE, PEER = "compute", "dist_sync"

TOLERANCE = 0.1
"""The relative tolerance of the weights' norms: small networks amplify rounding, while a missing sum would halve
them."""

DRAWS = 1000
"""The number of times that the bootstrap draws as many rounds as there are."""

Way = tuple[str, str]
"""A contender, and who updates."""

Measured = dict[Way, list[Round]]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def step(
    network: Annotated[
        str, typer.Option(help="A name of Gluon's model zoo: resnet50_v1, alexnet, ...")
    ] = "resnet50_v1",
    image_size: Annotated[int, typer.Option(min=1, help="Height and width of the images.")] = 64,
    batch_size: Annotated[int, typer.Option(min=1, help="Images of a worker in a step.")] = 4,
    workers: Annotated[int, typer.Option(min=1, help="Workers, the ranks of a job.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="Steps that are timed together.")] = 10,
    untimed: Annotated[int, typer.Option(min=1, help="Untimed steps before these.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the result is their median.")] = 15,
    contenders: Annotated[str, typer.Option(help=f"Contenders to measure: {', '.join(CONTENDERS)}.")] = ",".join(USUAL),
    update: Annotated[str, typer.Option(help="Who updates: the store, the Trainer.")] = ",".join(UPDATES),
    link: Annotated[str, typer.Option(help="Put each worker on a node behind a link of this rate, e.g. 1gbit.")] = "",
    json_path: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the results here.")] = None,
) -> None:
    """Measure a training step side by side, alternating, and print medians in milliseconds."""
    try:
        rate = bits_per_second(link) if link else 0.0
        updates = one_of(update, UPDATES)
        chosen = [CONTENDERS[name] for name in one_of(contenders, tuple(CONTENDERS))]
        if util.find_spec("mxnet") is None:
            raise RuntimeError("MXNet is not installed: pip install 'hybridps[mxnet]'")
        told = Told(network, image_size, batch_size, workers, untimed, steps)
        ways = [(each, by) for each in chosen for by in each.updates if by in updates or not each.kvstore]
        with limited_links(workers + 1, link) if link else nullcontext() as links:
            measured = measure_all(ways, told, rounds, links)
        check_same(measured)
    except (ValueError, RuntimeError, OSError, HybridPSError) as error:
        print(f"benchmarks.step: {error}", file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, ValueError) else 1) from None
    results = make_results(told, measured, rate)
    show(results)
    if json_path:
        json_path.write_text(json.dumps(results, indent=1) + "\n")


def measure_all(ways: Sequence[tuple[Contender, str]], told: Told, rounds: int, links: Links | None) -> Measured:
    """Return the rounds of each way. They take turns: A B C A B C ..."""
    measured: Measured = {(contender.name, by): [] for contender, by in ways}
    with ExitStack() as stack:
        running = {}
        for contender, by in ways:
            running[contender.name, by] = start(contender, told, by == "server", stack, links)
            print(f"{contender.name}, {by}: started", file=sys.stderr, flush=True)
        for number in range(rounds):
            for way, each in running.items():
                disturbance = Disturbance()
                measured[way].append(Round(each.time_steps(), disturbance.share()))
            print(f"round {number + 1} of {rounds}: done", file=sys.stderr, flush=True)
    return measured


def make_results(told: Told, measured: Measured, rate: float = 0.0) -> list[Result]:
    """Return one object for each contender and update. `rate`: bits per second of the links, if there are any."""
    rounds = {way: [milliseconds(one.timed, told.steps) for one in each] for way, each in measured.items()}
    beyond = beyond_compute(rounds)
    extras = {"versions": installed_versions(), "hardware": describe_hardware()}
    return [
        {"network": told.network, "image_size": told.image_size, "batch_size": told.batch_size}
        | {"workers": told.workers, "contender": name, "update": by, "milliseconds": median(each)}
        | {"beyond_compute": median(beyond[name, by]) if (name, by) in beyond else None}
        | dict(zip(("of_dist_sync", "of_dist_sync_error"), of_peer(beyond, (name, by)), strict=True))
        | {"fastest": min(each), "rounds": each, "steps": told.steps}
        | {"disturbance": [one.disturbance for one in measured[name, by]]}
        | {"worker_cpu": median(cpu_milliseconds(one.timed, told.steps) for one in measured[name, by])}
        | {"parameter_bytes": measured[name, by][0].timed[0].parameter_bytes, "link_rate": rate or None}
        | {"overlap": make_overlap(name, measured[name, by], told.workers, rate)}
        | extras
        for (name, by), each in rounds.items()
    ]


def milliseconds(timed: Sequence[Timed], steps: int) -> float:
    """Return the milliseconds of one step, from when the first worker began until the last one was done."""
    return 1e3 * (max(each.ended for each in timed) - min(each.began for each in timed)) / steps


def cpu_milliseconds(timed: Sequence[Timed], steps: int) -> float:
    """Return the mean CPU time of a worker in one step, in milliseconds."""
    return 1e3 * mean(each.cpu_seconds for each in timed) / steps


def make_overlap(name: str, rounds: Sequence[Round], workers: int, rate: float) -> dict[str, float] | None:
    """Return the overlap in all steps of all workers; None if they were not traced."""
    by_step = [same for one in rounds for same in zip(*(each.traced for each in one.timed), strict=True)]
    # In a group each node sends 2 (p - 1) / p of the bytes. The server's link carries those of all workers.
    times = 2 * (workers - 1) / workers
    if name.startswith("hybridps_servers"):
        times = workers
    else:
        by_step = [complete_together(same) for same in by_step]
    traced = [step for same in by_step for step in same]
    return overlap(traced, lambda nbytes: times * nbytes * 8 / rate) if traced else None


def beyond_compute(rounds: Mapping[Way, Sequence[float]]) -> dict[Way, list[float]]:
    """Return the milliseconds beyond those of `compute` in the same round, if that was measured.

    A host that is faster in some rounds than in others changes both times.

    >>> beyond_compute({("compute", "worker"): [5.0, 7.0], ("dist_sync", "server"): [8.0, 10.0]})
    {('dist_sync', 'server'): [3.0, 3.0]}
    """
    alone = rounds.get((ALONE, "worker"))
    if alone is None:
        return {}
    others = {way: each for way, each in rounds.items() if way[0] != ALONE}
    return {way: [taken - own for taken, own in zip(each, alone, strict=True)] for way, each in others.items()}


def of_peer(beyond: Mapping[Way, Sequence[float]], way: Way) -> tuple[float | None, float | None]:
    """Return a contender's median time beyond compute, relative to that of dist_sync with the same update, and the
    standard error of this ratio.

    The error is that of a bootstrap (Efron, 1979) over the rounds; None for a single round. Both are None without both
    contenders, or if dist_sync was not slower than compute.

    >>> of_peer({("dist_sync", "server"): [4.0], ("hybridps_group", "server"): [1.0]}, ("hybridps_group", "server"))
    (0.25, None)
    """
    peer = beyond.get((PEER, way[1]))
    if peer is None or way not in beyond or median(peer) <= 0:
        return None, None
    ratio, rounds = median(beyond[way]) / median(peer), len(peer)
    if rounds == 1:
        return ratio, None
    drawn = np.random.default_rng(0).integers(rounds, size=(DRAWS, rounds))
    own, others = (np.median(np.array(each)[drawn], axis=1) for each in (beyond[way], peer))
    return ratio, float(np.std(own[others > 0] / others[others > 0]))


def check_same(measured: Measured) -> None:
    """Raise RuntimeError if the contenders with a store have trained to different weights."""
    norms = {way: each[0].timed[0].last_norm for way, each in measured.items() if CONTENDERS[way[0]].kvstore}
    least, most = min(norms, key=norms.__getitem__, default=None), max(norms, key=norms.__getitem__, default=None)
    if least and most and norms[most] - norms[least] > TOLERANCE * norms[most]:
        raise RuntimeError(f"{least} and {most} trained to different weights, of norms {norms[least]}, {norms[most]}")


def show(results: Sequence[Result]) -> None:
    """Print a table."""
    rows = [
        ["contender", "update", "ms a step", "fastest", "beyond compute", "of dist_sync's", "+-", "CPU of a worker"]
    ]
    for result in results:
        names = ("milliseconds", "fastest", "beyond_compute", "of_dist_sync", "of_dist_sync_error", "worker_cpu")
        numbers = ["-" if result[name] is None else f"{result[name]:.3g}" for name in names]
        rows.append([result["contender"], result["update"], *numbers])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    disturbance = mean(share for result in results for share in result["disturbance"])
    print(f"other processes used {100 * disturbance:.0f} % of the cores", file=sys.stderr)
    for result in results:
        if found := result["overlap"]:
            print(
                f"{result['contender']}, {result['update']}: {found['communication']:.0f} ms of communication, "
                f"{found['hidden']:.0f} under backward, where {found['could_be_hidden']:.0f} could be and "
                f"{found['oracle_hidden']:.0f} are by the oracle's schedule"
            )


if __name__ == "__main__":
    end_when_signalled()
    app()
