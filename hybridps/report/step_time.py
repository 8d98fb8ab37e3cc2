"""Where the time of a run's steps goes: from its trace, or else from the sums in the events of its workers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hybridps.events import Communicated, Configured, Planned
from hybridps.quantities import duration
from hybridps.report.reading import Rank, Run
from hybridps.tracing import WORDS, Diagnosis, OneClock, diagnose, on_one_clock, read_trace

EXPOSED, REST = "communication", "rest"
"""The parts that are known without a trace."""

PART_WORDS = WORDS | {EXPOSED: "communication and waiting after backward", REST: "computing, loading and the rest"}


class StepTime(NamedTuple):
    """Seconds of a step: means over the steps, and over the workers except for `by_worker`."""

    parts: dict[str, float]
    """Seconds by names of `PART_WORDS`. They add up to the step."""
    by_worker: dict[int, dict[str, float]]
    sentences: list[str]
    clock: OneClock | None = None
    """The trace, if there is one."""
    diagnosis: Diagnosis | None = None

    @property
    def whole(self) -> float:
        return sum(self.parts.values())


def step_time(run: Run, folder: Path) -> StepTime | None:
    """Return what is known of a run's steps; None if its workers have done too few of them."""
    clock = on_one_clock(read_trace(folder, launch_id(run)))
    diagnosis = diagnose(clock)
    if diagnosis is not None:
        by_worker = {worker: _filled(parts._asdict()) for worker, parts in diagnosis.by_worker.items()}
        said = [*diagnosis.sentences, _of_clocks(clock)]
        return StepTime(_filled(diagnosis.parts._asdict()), by_worker, said, clock, diagnosis)
    by_worker = {plan.worker: parts for rank in run.ranks if (plan := rank.last(Planned)) and (parts := _parts(rank))}
    if not by_worker:
        return None
    parts = {name: sum(each[name] for each in by_worker.values()) / len(by_worker) for name in (REST, EXPOSED)}
    whole = sum(parts.values())
    said = [f"a step takes {duration(whole)}, of which {100 * parts[EXPOSED] / whole:.0f} % is {PART_WORDS[EXPOSED]}"]
    said += ["start the run with `--trace` to see who waits for whom"]
    return StepTime(parts, dict(sorted(by_worker.items())), said)


def figures_of(time: StepTime | None) -> dict[str, Any]:
    """Return the figures of `summary.json` about the time of steps."""
    if time is None:
        return {}
    slow = None if time.diagnosis is None else time.diagnosis.slow
    found = [{"worker": each.worker, "percent": round(100 * each.share, 1), "cause": each.cause} for each in slow or []]
    return {
        "step_ms": round(1e3 * time.whole, 4),
        "step_parts_ms": {name: round(1e3 * seconds, 4) for name, seconds in time.parts.items()},
        "slow_workers": None if slow is None else found,
        "findings": time.sentences,
    }


def _parts(rank: Rank) -> dict[str, float]:
    """Return the parts of one worker's step, between its first and last events with sums; empty with fewer than two."""
    known = [(event, when) for event, when in rank.last_life if isinstance(event, Communicated)]
    if len(known) < 2 or known[-1][0].steps <= known[0][0].steps:
        return {}
    (first, began), (last, ended) = known[0], known[-1]
    if ended <= began:  # lines without their times
        return {}
    steps = last.steps - first.steps
    whole, exposed = (ended - began) / steps, (last.exposed_seconds - first.exposed_seconds) / steps
    return {REST: max(0.0, whole - exposed), EXPOSED: min(whole, max(0.0, exposed))}


def _of_clocks(clock: OneClock) -> str:
    said = f"times of different processes agree to within {duration(clock.uncertainty, 2)}"
    by_wall = f"; {', '.join(clock.by_wall_clock)} by their hosts' clocks" if clock.by_wall_clock else ""
    return said + by_wall


def _filled(parts: Mapping[str, float]) -> dict[str, float]:
    return {name: float(seconds) for name, seconds in parts.items()}


def launch_id(run: Run) -> str | None:
    """Return the id of the launch, if there was one. Other files in the folder may be of earlier launches."""
    known = [*([run.launch] if run.launch else []), *run.ranks]
    ids = (event.settings.get("launch") for rank in known if (event := rank.last(Configured)))
    return next(filter(None, ids), None)
