"""The input pipeline of examples/imagenet beside MXNet's ImageRecordIter and the network. See docs/benchmarks.md.

python -m benchmarks.loader --data imagenet --network resnet18_v1 --image-size 128 --json loader.json
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from benchmarks.disturbance import Disturbance
from benchmarks.results import describe_hardware, installed_versions

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

NETWORK = "network"
PEER = "ImageRecordIter"
OURS = ("folder", "RecordIO")
FIELDS = ("images_per_second", "images_per_cpu_second")

Round = tuple[float, float, float]
"""The two numbers of FIELDS, and the share of the cores that other processes used."""


@app.command()
def loader(
    data: Annotated[Path, typer.Option(help="A folder with train/<class>/<image>.")],
    network: Annotated[str, typer.Option(help="A name of Gluon's model zoo.")] = "resnet18_v1",
    image_size: Annotated[int, typer.Option(min=8, help="Height and width of the images.")] = 224,
    batch_size: Annotated[int, typer.Option(min=1, help="Images of a step.")] = 32,
    threads: Annotated[int, typer.Option(min=1, help="Threads that read images, for each reader.")] = 2,
    images: Annotated[int, typer.Option(min=1, help="Images read in a round.")] = 1024,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the network in a round.")] = 40,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the result is their median.")] = 5,
    json_path: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the results here.")] = None,
) -> None:
    """Measure images per second, alternating: each reader alone, the network alone, the network with each reader."""
    try:
        from benchmarks.loader_contenders import Contenders, DataError

        with tempfile.TemporaryDirectory() as folder:
            contenders = Contenders(data, Path(folder), network, image_size, batch_size, threads)
            ways = {name: contenders.reading(name, images) for name in (*OURS, PEER)}
            ways[NETWORK] = contenders.training(None, steps)
            ways |= {f"{NETWORK} + {name}": contenders.training(name, steps) for name in (*OURS, PEER)}
            measured = measure(ways, rounds)
    except (ImportError, OSError, DataError) as error:
        print(f"benchmarks.loader: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    results = make_results(measured)
    show(results)
    if json_path:
        told = {"network": network, "image_size": image_size, "batch_size": batch_size, "threads": threads}
        extras = {"versions": installed_versions(), "hardware": describe_hardware()}
        json_path.write_text(json.dumps([result | told | extras for result in results], indent=1) + "\n")


def measure(ways: dict[str, Any], rounds: int) -> dict[str, list[Round]]:
    """Return the rounds of each way. They take turns: A B C A B C ..."""
    measured: dict[str, list[Round]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for number in range(rounds):
        for name, way in ways.items():
            disturbance = Disturbance()
            rate = way()
            measured[name].append((*rate, disturbance.share()))
        print(f"round {number + 1} of {rounds}: done", file=sys.stderr, flush=True)
    return measured


def make_results(measured: dict[str, list[Round]]) -> list[dict[str, Any]]:
    """Return one object for each way. Ratios are to ImageRecordIter alone or to the network alone, round by round."""
    results = []
    for name, rounds in measured.items():
        base = measured[NETWORK if name.startswith(NETWORK) else PEER]
        result: dict[str, Any] = {"way": name}
        for column, field in enumerate(FIELDS):
            pairs = [(own[column], other[column]) for own, other in zip(rounds, base, strict=True)]
            result[field] = median(own for own, _ in pairs)
            result[f"{field}_ratio"] = median(own / other for own, other in pairs)
            result[f"{field}_rounds"] = [own for own, _ in pairs]
        results.append(result | {"disturbance": [each[-1] for each in rounds]})
    return results


def show(results: Sequence[dict[str, Any]]) -> None:
    print(f"{'':28}{'images/s':>10}{'ratio':>8}{'images/CPU s':>14}{'ratio':>8}  to")
    for result in results:
        base = f"{NETWORK} alone" if result["way"].startswith(NETWORK) else f"{PEER} alone"
        cells = [
            f"{result[field]:{width}.0f}{result[f'{field}_ratio']:8.2f}"
            for field, width in zip(FIELDS, (10, 14), strict=True)
        ]
        print(f"{result['way']:28}{''.join(cells)}  {base}")


if __name__ == "__main__":
    app()
