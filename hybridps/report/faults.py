"""What went wrong or changed during a run, line by line."""

from __future__ import annotations

from collections.abc import Iterator

from hybridps.events import Ended, Joined, Launched, Noted, NotFinite, Planned, Restarted, Skipped
from hybridps.report.points import started
from hybridps.report.reading import Rank, Run

MOST = 50
"""The largest number of lines that are shown."""


def faults_of(run: Run) -> list[tuple[float, str]]:
    """Return what happened, with the seconds since the start of the workers; in order of time, each text once."""
    begin = started(run)
    found: dict[str, float] = {}
    for rank in [*([run.launch] if run.launch else []), *run.ranks]:
        for when, said in _lines(rank):
            found.setdefault(said, when - begin)
    return sorted((max(0.0, when), said) for said, when in found.items())[:MOST]


def _lines(rank: Rank) -> Iterator[tuple[float, str]]:
    plan = rank.last(Planned)
    group = f"group {plan.group}" if plan else "a group"
    skipped = [when for event, when in zip(rank.events, rank.times, strict=True) if isinstance(event, Skipped)]
    if skipped and plan and plan.group_rank == 0:
        yield skipped[0], f"{group} leaves exchanges out because a server is away: {len(skipped)} in total"
    for event, when in zip(rank.events, rank.times, strict=True):
        match event:
            case Restarted(group=number, life=life, status=status):
                yield when, f"group {number} ended with status {status} and is restarted (life {life})"
            case Joined(joined=joined, groups=groups, workers=workers):
                yield when, f"groups {joined} have joined: {groups} groups, {workers} workers"
            case Ended(status=status) if status:
                yield when, f"the job ended with status {status}"
            case NotFinite(key=key, step=step, worker=worker):
                yield when, f"worker {worker} had NaN or Inf in the gradient of {key!r}, step {step}"
            case Noted(message=message):
                yield when, message
            case Launched(command=command):
                yield when, f"started: {' '.join(command)}"
