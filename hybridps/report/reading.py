"""Reads a run folder: what the ranks, the launcher and the training script wrote there.

This package writes `hybridps-<rank>.jsonl` and `hybridps-launcher.jsonl` (see `hybridps.events`). Without a launcher,
`report_progress` writes `hybridps-progress-<worker>.jsonl`. A script may write more about its training: the example
writes `train-<worker>.jsonl` (events `run`, `epoch`, `end`). A restarted worker appends to its file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hybridps.errors import HybridPSError
from hybridps.events import (
    AlgorithmChosen,
    Closed,
    Communicated,
    Configured,
    Ended,
    Evaluated,
    Event,
    Exchanged,
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
from hybridps.live import WorkerStatus, read_live
from hybridps.live.folder import LIVE
from hybridps.report.training_file import Worker, lines_of, read_worker

Known = (
    Configured
    | AlgorithmChosen
    | Planned
    | Communicated
    | Exchanged
    | Skipped
    | Closed
    | Failed
    | Launched
    | Restarted
    | Joined
    | Evaluated
    | Ended
    | Noted
    | NotFinite
    | Recovered
    | Slowed
    | Waited
)
KnownT = TypeVar("KnownT", bound=Event)

_DIGITS = 6
"""The largest number of digits in the number of a worker."""


@dataclass(frozen=True)
class Rank:
    """The events that one rank, or the launcher, wrote in its last launch. A rank that was restarted has several lives,
    each of which begins with a `Configured` event.
    """

    events: list[Known]
    times: list[float] = field(default_factory=list)
    """The time of each event, in seconds since 1970."""
    status: WorkerStatus | None = None
    """What the rank last said of itself in its last life; None if that is not known."""

    def last(self, kind: type[KnownT]) -> KnownT | None:
        """Return the last event of this kind in the last life."""
        return next((event for event, _ in reversed(self.last_life) if isinstance(event, kind)), None)

    @property
    def last_life(self) -> list[tuple[Known, float]]:
        """The events of the last life, each with its time."""
        begins = [place for place, event in enumerate(self.events) if isinstance(event, Configured)]
        return [*zip(self.events, self.times, strict=True)][begins[-1] if begins else 0 :]


@dataclass(frozen=True)
class Run:
    """The contents of a run folder."""

    workers: dict[int, Worker]
    """The workers that wrote a training file, by number."""
    ranks: list[Rank]
    numbers: Sequence[int]
    """The numbers that its workers have in the job."""
    launch: Rank | None = None
    """The events that the launcher wrote; None without a launcher."""
    reports: list[Rank] = field(default_factory=list)
    """The events in the workers' own progress files, which they write without a launcher."""
    earlier: list[Run] = field(default_factory=list)
    """The earlier launches in the folder, oldest first, without training files; none without a launcher."""

    @property
    def expected(self) -> int:
        """The number of workers."""
        return len(self.numbers)

    def last(self, kind: type[KnownT]) -> list[KnownT]:
        """Return the last event of this kind of each rank that has one."""
        return [event for rank in self.ranks if (event := rank.last(kind))]

    def algorithm(self) -> str:
        """Return the name of the algorithm that began, or else that of the settings or of the KVStore's type."""
        known = [*self.ranks, *([self.launch] if self.launch else [])]
        named: list[Any] = [event.algorithm for event in self.last(AlgorithmChosen)]
        named += [event.settings.get("algorithm") for rank in known if (event := rank.last(Configured))]
        told = [worker.settings() for worker in self.workers.values()]
        named += [settings.get("kvstore_type") or settings.get("kvstore") for settings in told]
        return str(next(filter(None, named), "unknown")).removeprefix("dist_hybridps_")

    def has_centre(self) -> bool:
        """Return whether the run trained a centre, as Elastic SGD does."""
        lines = (line for worker in self.workers.values() for line in worker.epochs.values())
        return "elastic" in self.algorithm() or any(line.get("centre_top1_correct") is not None for line in lines)

    def finished(self) -> list[int]:
        """Return the workers that finished, by their training files or else by their events."""
        if self.workers:
            return [number for number, worker in sorted(self.workers.items()) if worker.end]
        end = self.launch.last(Ended) if self.launch else None
        without_events = not any(rank.last(Planned) for rank in self.ranks)
        return list(self.numbers) if without_events and end and end.status == 0 else sorted(self.closed())

    def closed(self) -> set[int]:
        """Return the workers that ended in good order, by their events."""
        return {plan.worker for rank in self.ranks if (plan := rank.last(Planned)) and rank.last(Closed)}

    def lost(self) -> list[int]:
        return sorted((set(self.numbers) | set(self.workers)) - set(self.finished()))


def read_run(folder: Path) -> Run:
    """Read the files of all workers, ranks and the launcher. Raises HybridPSError if no process wrote anything."""
    if not folder.is_dir():
        raise HybridPSError(f"there is no folder {folder}: give the one of `hybridps run --run FOLDER`")
    workers = {number: read_worker(number, path) for number, path in _numbered(folder, "train-")}
    workers = {number: worker for number, worker in workers.items() if worker.run or worker.epochs}
    of_ranks = [read_launches(path) for _, path in _numbered(folder, "hybridps-")]
    ranks = [launches[-1] for launches in of_ranks if launches]
    launches = read_launches(path) if (path := folder / "hybridps-launcher.jsonl").is_file() else []
    launch = _last_launch(launches, ranks)
    if launch is not None:
        ranks = [rank for rank in ranks if is_of(rank, launch)]  # the others belong to an earlier run
    reports = [read_rank(path) for _, path in _numbered(folder, "hybridps-progress-")]
    if not (workers or launch or any(rank.events for rank in [*ranks, *reports])):
        raise HybridPSError(
            f"{folder} has no train-<worker>.jsonl and no hybridps-<worker>.jsonl with a line in it: is it the folder "
            "of a run?"
        )
    numbers = _numbers(workers, ranks, launch)
    workers = {number: worker for number, worker in workers.items() if number in numbers}
    ranks = [rank for rank in ranks if not (plan := rank.last(Planned)) or plan.worker in numbers]
    ranks = _with_status(ranks, folder)
    start = began(launch) if launch is not None else max(map(began, ranks), default=0.0)
    reports = [each for each in reports if each.times and each.times[-1] >= start]  # else of an earlier run
    earlier = [_earlier(each, of_ranks) for each in launches[:-1]] if launch is not None else []
    return Run(workers, ranks, numbers, launch, reports, earlier)


def began(rank: Rank) -> float:
    """Return when a rank was last configured, in seconds since 1970; 0 if it never was."""
    configured = rank.last(Configured)
    return configured.started_at if configured else 0.0


def launch_of(rank: Rank) -> str | None:
    """Return the id of the launch that a rank belongs to; None without a launcher."""
    configured = rank.last(Configured)
    return configured.settings.get("launch") if configured else None


def is_of(rank: Rank, launch: Rank) -> bool:
    """Return whether a rank belongs to a launch: by its id, or else by the clocks of their hosts."""
    theirs, own = launch_of(launch), launch_of(rank)
    return theirs == own if theirs and own else began(rank) >= began(launch)


def read_rank(path: Path) -> Rank:
    """Read the last launch in one event file."""
    launches = read_launches(path)
    return launches[-1] if launches else Rank([])


def read_launches(path: Path) -> list[Rank]:
    """Read one event file: the launches in it, oldest first. Events that are not `Known` are skipped."""
    launches: list[Rank] = []
    start, launch = 0.0, None
    for line in lines_of(path):
        with suppress(msgspec.ValidationError):
            event = msgspec.convert(line, Known)
            seconds = msgspec.convert(line.get("seconds") or 0.0, float)
            if isinstance(event, Configured):
                if not launch or launch != event.settings.get("launch"):
                    launches.append(Rank([]))
                start, launch = event.started_at - seconds, event.settings.get("launch")
            launches = launches or [Rank([])]
            launches[-1].events.append(event)
            launches[-1].times.append(start + seconds)
    return launches


def _with_status(ranks: list[Rank], folder: Path) -> list[Rank]:
    """Return the ranks with what they last said of themselves: events come too seldom for the last steps of a rank that
    was killed.
    """
    said = {number: seen.status for number, seen in read_live(folder / LIVE).workers.items()}
    found = []
    for rank in ranks:
        plan = rank.last(Planned)
        status = said.get(plan.worker) if plan else None
        is_of_life = status is not None and status.started_at >= began(rank)
        found.append(replace(rank, status=status) if is_of_life else rank)
    return found


def _last_launch(launches: list[Rank], ranks: list[Rank]) -> Rank | None:
    """Return the last of the launcher's launches; None if there are none, or if ranks have run without it since."""
    if not launches:
        return None
    launch = launches[-1]
    ended = launch.times[-1] if launch.last(Ended) else float("inf")
    # A rank with an id was started by a launcher, which wrote to this file.
    alone = (rank for rank in ranks if not (launch_of(launch) and launch_of(rank)))
    return None if any(began(rank) > ended for rank in alone) else launch


def _earlier(launch: Rank, of_ranks: list[list[Rank]]) -> Run:
    """Return an earlier launch. Ranks belong to it by its id."""
    name = launch_of(launch)
    ranks = [rank for launches in of_ranks for rank in launches if name is not None and launch_of(rank) == name]
    return Run({}, ranks, _numbers({}, ranks, launch), launch)


def _numbers(workers: dict[int, Worker], ranks: list[Rank], launch: Rank | None) -> Sequence[int]:
    """Return the numbers of the workers, by those that started last: an earlier run in the folder may have had more."""
    launched = launch.last(Launched) if launch else None
    if launched is not None:
        return launched.numbers or range(launched.workers)
    if workers:
        newest = max(workers.values(), key=lambda worker: worker.run.get("started_at") or 0.0)
        return range(int(newest.settings().get("workers") or max(workers) + 1))
    plans = [(began(rank), plan.workers) for rank in ranks if (plan := rank.last(Planned))]
    return range(max(plans, default=(0.0, 1))[1])


def _numbered(folder: Path, prefix: str) -> Iterator[tuple[int, Path]]:
    for path in sorted(folder.glob(f"{prefix}*.jsonl")):
        number = path.stem.removeprefix(prefix)
        if number.isdecimal() and len(number) <= _DIGITS and path.is_file():
            yield int(number), path
