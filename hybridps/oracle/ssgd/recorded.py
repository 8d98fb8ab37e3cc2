"""The layers of a run that hybridps has traced: the same columns as those of a measured trace."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from hybridps.errors import OracleError
from hybridps.oracle.machines import Line, fit_cost
from hybridps.oracle.ssgd.trace import TracedLayer

START_UP = 3
"""Steps at the beginning that do not count, if there are more."""

Event = Mapping[str, Any]
"""Of the Chrome trace that `hybridps trace` writes."""


def read_chrome_trace(path: Path) -> list[Event]:
    """Return the events of a file that `hybridps trace` has written. Raises OracleError."""
    try:
        found = json.loads(path.read_text())["traceEvents"]
        return [event for event in found if isinstance(event, dict)]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise OracleError(f"{path} is not a trace of `hybridps trace`: {error}") from None


def recorded_layers(events: Iterable[Event], where: str) -> list[TracedLayer]:
    """Return the layers of the first worker in forward order, with the medians over its steps.

    The time of a gradient is that since the gradient before it. That of the first one cannot be told from the forward
    pass, and is 0: a replay begins there. The time of an allreduce follows from those of the buckets, on a line of
    their bytes. Raises OracleError if there is no step with gradients; `where` names the trace in it.
    """
    steps = _steps_of_first_worker(events)
    if not steps:
        raise OracleError(
            f"{where} has no step with gradients: trace a run of synchronous SGD, with `hybridps run --trace`"
        )
    line = _line_of_buckets(steps)
    times: dict[str, list[float]] = {}
    places: dict[str, list[int]] = {}
    nbytes: dict[str, int] = {}
    for step in steps:
        for place, event in enumerate(sorted(_of(step, "gradient"), key=lambda event: event["ts"] + event["dur"])):
            times.setdefault(event["name"], []).append(1e-6 * event["dur"])
            places.setdefault(event["name"], []).append(place)
            nbytes[event["name"]] = event["args"]["bytes"]
    last_first = sorted(times, key=lambda name: -median(places[name]))
    return [
        TracedLayer(
            name, median(times[name]), gradient_bytes=nbytes[name], allreduce_seconds=max(0.0, line(nbytes[name]))
        )
        for name in last_first
    ]


def _steps_of_first_worker(events: Iterable[Event]) -> list[list[Event]]:
    """Return the slices of each step of the first worker that has gradients, without the steps of the start-up."""
    slices = [event for event in events if event.get("ph") == "X" and "step" in event.get("args", {})]
    worker = min((event["pid"] for event in slices if event["cat"] == "gradient"), default=None)
    steps: dict[tuple[int, int], list[Event]] = {}
    for event in slices:
        if event["pid"] == worker:
            steps.setdefault((event["args"].get("model", 0), event["args"]["step"]), []).append(event)
    whole = {step: each for step, each in steps.items() if _of(each, "gradient")}
    late = [each for (_, number), each in whole.items() if number >= START_UP]
    return late or list(whole.values())


def _of(step: Sequence[Event], kind: str) -> list[Event]:
    return [event for event in step if event["cat"] == kind]


def _line_of_buckets(steps: Sequence[Sequence[Event]]) -> Line:
    """Fit the time that the communication thread takes for a bucket as a line over its bytes."""
    sizes, seconds = [], []
    for step in steps:
        for reduced, exchanged in zip(_of(step, "allreduce"), _of(step, "exchange"), strict=False):
            sizes.append(float(reduced["args"]["bytes"]))
            seconds.append(1e-6 * (reduced["dur"] + exchanged["dur"]))
    if len(set(sizes)) > 1:
        return fit_cost(sizes, seconds)
    return Line(0.0, sum(seconds) / sum(sizes) if sum(sizes) else 0.0)
