"""Everything that the report of one run is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridps.report.faults import faults_of, why_it_failed
from hybridps.report.points import Start, start_of, traffic_of
from hybridps.report.reading import Run, read_run
from hybridps.report.step_time import StepTime, figures_of, step_time
from hybridps.report.summary import summarise
from hybridps.report.traffic import GroupTraffic


@dataclass(frozen=True)
class RunReport:
    """A run, and what is known of it."""

    name: str
    folder: Path
    run: Run
    summary: dict[str, Any]
    """The figures of `summary.json`."""
    traffic: list[GroupTraffic]
    time: StepTime | None
    faults: list[tuple[float, str]]
    failure: list[str]
    """Why it failed, in sentences; empty if no worker has reported an error."""
    start: Start
    """The moment from which all of its seconds count."""


def read_report(folder: Path) -> RunReport:
    """Read a run folder. Raises HybridPSError if no process wrote anything there."""
    run = read_run(folder)
    time = step_time(run, folder)
    name = folder.resolve().name
    summary, failure = summarise(run) | figures_of(time), why_it_failed(run)
    if failure:
        summary["findings"] = [*failure, *summary.get("findings", ())]
    return RunReport(name, folder, run, summary, traffic_of(run), time, faults_of(run), failure, start_of(run))


def since(reports: Sequence[RunReport]) -> str:
    """Return from which moment the seconds of these runs count, for a label."""
    moments = dict.fromkeys(report.start.moment for report in reports)
    return f"seconds since {' or '.join(moments)}"
