"""Training under a schedule of faults: which faults it survives, and what they cost. See docs/benchmarks.md.

python -m benchmarks.chaos --groups 3 --minutes 10 --faults-per-hour 125 --json chaos.json
python -m benchmarks.chaos --light 32 --minutes 5 --faults-per-hour 12000
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.chaos import launched, light, training
from benchmarks.chaos.chains import DivergedError
from benchmarks.chaos.outcomes import lines_of
from benchmarks.results import describe_hardware, installed_versions
from benchmarks.world import end_when_signalled
from hybridps.errors import ServerError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def chaos(
    groups: Annotated[int, typer.Option(min=2, help="Groups of two workers each.")] = 3,
    light_groups: Annotated[
        int | None, typer.Option("--light", min=8, metavar="N", help="Use N light groups in one process instead.")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.05, help="Minutes under faults.")] = 10.0,
    faults_per_hour: Annotated[float, typer.Option(min=0.0, help="Mean number of faults per hour.")] = 125.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the times, kinds and victims of faults.")] = 0,
    kinds: Annotated[str | None, typer.Option(help="Kinds of faults, separated by commas. Default: all.")] = None,
    algorithm: Annotated[str, typer.Option(help=f"One of {', '.join(launched.ALGORITHMS)}.")] = "elastic",
    compare: Annotated[bool, typer.Option(help="Also train undisturbed, for as long.")] = True,
    json_path: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the results here.")] = None,
) -> None:
    """Train under faults, and without them; or, with --light, exchange with many light groups."""
    known = training.KINDS if light_groups is None else light.KINDS
    chosen = [word.strip() for word in kinds.split(",")] if kinds else list(known)
    for word, names in [*((word, known) for word in chosen), (algorithm, tuple(launched.ALGORITHMS))]:
        if word not in names:
            raise typer.BadParameter(f"{word!r} is unknown: use {', '.join(names)}")
    asked = (60 * minutes, round(faults_per_hour * minutes / 60), seed, chosen)
    try:
        if light_groups is None:
            found = training.run_training(groups, *asked, algorithm, compare)
        else:
            found = light.run_light(light_groups, *asked)
    except (training.JobEndedError, light.LightError, ServerError, DivergedError) as error:
        print(f"benchmarks.chaos: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    show(found)
    told = {"seed": seed, "minutes": minutes, "faults_per_hour": faults_per_hour}
    if json_path is not None:
        rest = {"versions": installed_versions(), "hardware": describe_hardware()}
        json_path.write_text(json.dumps(told | found | rest, indent=1))


def show(found: dict[str, Any]) -> None:
    """Print the results."""
    print(f"{found['survived']} of {found['injected']} faults survived in {found['seconds']:.0f} s")
    for line in lines_of(found["kinds"]):
        print(f"  {line}")
    if "throughput" in found:
        print(
            f"throughput {100 * found['throughput']:.1f} % of the undisturbed one, "
            f"{100 * found['throughput_outside']:.1f} % outside of the restarts"
        )
    elif "exchanges" in found:
        print(f"{found['exchanges']} exchanges of {found['groups']} groups")
    for name, text in (found["checks"] | found.get("compared", {})).items():
        print(f"{name}: {text}")


if __name__ == "__main__":
    end_when_signalled()
    app()
