"""What went wrong or changed during a run, line by line."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from hybridps.events import (
    Ended,
    Failed,
    Joined,
    Launched,
    Noted,
    NotFinite,
    Planned,
    Recovered,
    Restarted,
    Skipped,
    Slowed,
    Waited,
)
from hybridps.live.slow import REASONS
from hybridps.quantities import counted, duration
from hybridps.report.points import start_of
from hybridps.report.reading import Rank, Run

MOST = 50
"""The largest number of lines that are shown."""

Fault = tuple[float, str]
"""Seconds since the start of the run (`start_of`), and what happened; less than 0 before it."""


def faults_of(run: Run) -> list[Fault]:
    """Return what happened, in order of time. A text that several ranks have is there once, at its earliest time.

    Of more than `MOST` lines, the first and the last ones are returned, with a line between them that says how many are
    left out.
    """
    begin = start_of(run).when
    found: dict[str, float] = {}
    for rank in [*([run.launch] if run.launch else []), *run.ranks]:
        for when, said in _lines(rank):
            found[said] = min(when - begin, found.get(said, when - begin))
    faults = sorted((when, said) for said, when in found.items())
    if len(faults) <= MOST:
        return faults
    first, last = faults[: MOST // 2], faults[-(MOST // 2 - 1) :]
    left_out = len(faults) - len(first) - len(last)
    return [*first, (first[-1][0], f"{left_out} more lines, which are in the files of the run folder"), *last]


def why_it_failed(run: Run) -> list[str]:
    """Return the longest wait of a worker for others, and the first error; empty if no worker reports an error."""
    waits: list[Fault] = []
    errors: list[Fault] = []
    for rank in run.ranks:
        group, who = _names(rank)
        for event, when in zip(rank.events, rank.times, strict=True):
            if isinstance(event, Waited):
                waits.append((event.waited_seconds, _waited(event, who)))
            elif isinstance(event, Failed):
                errors.append((when, _failed(event, group, who)))
    return [said for _, said in [*([max(waits)] if waits else []), min(errors)]] if errors else []


def _lines(rank: Rank) -> Iterator[Fault]:
    plan, (group, who) = rank.last(Planned), _names(rank)
    skipped = [when for event, when in zip(rank.events, rank.times, strict=True) if isinstance(event, Skipped)]
    if skipped and plan and plan.group_rank == 0:
        yield skipped[0], f"{group} leaves exchanges out because a server is away: {len(skipped)} in total"
    joined: set[int] = set()
    for event, when in zip(rank.events, rank.times, strict=True):
        match event:
            case Restarted(group=number, life=life, status=0):
                yield when, f"group {number} is restarted together with the others (life {life})"
            case Restarted(group=number, life=life, status=status):
                yield when, f"group {number} ended with status {status} and is restarted (life {life})"
            case Joined():
                for said in _changes(joined, event):
                    yield when, said
                joined = set(event.joined)
            case Ended(status=status) if status:
                yield when, f"the job ended with status {status}{_signal(status)}"
            case Waited():
                yield when, _waited(event, who)
            case Failed():
                yield when, _failed(event, group, who)
            case NotFinite(key=key, step=step, worker=worker):
                yield when, f"worker {worker} had NaN or Inf in the gradient of {key!r}, step {step}"
            case Slowed():
                slow = f"worker {event.worker}" if event.group is None else f"group {event.group}"
                yield (
                    when,
                    (
                        f"{slow} is slow from step {event.steps} on: its part of a step takes "
                        f"{duration(event.own_seconds)}, and that of the others {duration(event.others_seconds)}; "
                        f"{REASONS.get(event.reason, event.reason)}"
                    ),
                )
            case Recovered(worker=worker, steps=steps):
                yield when, f"worker {worker} keeps up with the others again, from step {steps} on"
            case Noted(message=message):
                yield when, message
            case Launched(command=command):
                yield when, f"started: {' '.join(command)}"


def _signal(status: int) -> str:
    """Return the signal of a status above 128, in brackets; empty if there is none."""
    try:
        return f" ({signal.Signals(status - 128).name})"
    except ValueError:
        return ""


def _names(rank: Rank) -> tuple[str, str]:
    """Return the group and the worker in words."""
    plan = rank.last(Planned)
    return (f"group {plan.group}", f"worker {plan.worker}") if plan else ("a group", "a worker")


def _waited(event: Waited, who: str) -> str:
    return f"{who} has waited {event.waited_seconds:.0f} s in {event.what}"


def _failed(event: Failed, group: str, who: str) -> str:
    return f"{f'all workers of {group}' if event.everywhere else who} failed: {event.error}"


def _changes(before: set[int], now: Joined) -> list[str]:
    """Return a line for each group that has joined the job or left it."""
    has, joined = f"{counted(now.groups, 'group')}, {counted(now.workers, 'worker')}", set(now.joined)
    return [f"group {group} has joined: {has}" for group in sorted(joined - before)] + [
        f"group {group} has left: {has}" for group in sorted(before - joined)
    ]
