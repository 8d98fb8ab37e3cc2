"""Groups that are slower than the other groups of a job. Ranks themselves only compare with their own group."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median

from hybridps.events import Recovered, Slowed
from hybridps.live import Live, WorkerStatus
from hybridps.live.reading import rate
from hybridps.live.slow import LOOKS, LOOKS_IF_CROWDED, REASONS, Changes, Measured, Reason, Slow, SlowWorkers
from hybridps.quantities import duration

EXCHANGES = 32
"""The number of exchanges of a group of which the fastest is compared. The server and other processes delay single
exchanges many times over, and a slow link delays all of them."""

News = tuple[str, Slowed | Recovered]
"""A message, and the event with the same content."""


class SlowGroups:
    """Compares the groups at each look: their workers' own part of a step, and the fastest of their last exchanges.

    A group is judged once for each time that its workers measure their pace, which may be less often than it is looked
    at.
    """

    def __init__(self, factor: float) -> None:
        self.news: deque[News] = deque()
        """What has changed. Another thread takes it from the left."""
        self.named: dict[int, Slow] = {}
        """The groups that are slow now."""
        self._factor = factor
        self._numbers: list[int] = []
        self._steps = self._exchanges = SlowWorkers(factor, 0)
        self._took: list[deque[float]] = []
        """For each group, the durations in seconds of the exchanges that were seen: at most one in a look."""

    def look(self, before: Live, now: Live) -> None:
        """Compare the groups. If their numbers have changed, the comparison begins anew."""
        groups = now.groups
        if [*groups] != self._numbers:
            self._numbers = [*groups]
            is_crowded = any(status.is_crowded for workers in groups.values() for status in workers)
            looks = LOOKS_IF_CROWDED if is_crowded else LOOKS
            self._steps, self._exchanges = (SlowWorkers(self._factor, len(groups), looks) for _ in range(2))
            self._took = [deque(maxlen=EXCHANGES) for _ in groups]
            self.named.clear()
        measured = [_measured(before, workers) for workers in groups.values()]
        anew = [place for place, workers in enumerate(groups.values()) if _is_paced_anew(before, workers[0])]
        exchanges = [_exchanging(before, *group) for group in zip(groups.values(), self._took, strict=True)]
        self._tell(groups, self._steps.look(measured, anew), "part of a step")
        self._tell(groups, self._exchanges.look(exchanges), "fastest exchange", "link")

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _tell(
        self, groups: Mapping[int, list[WorkerStatus]], changes: Changes, what: str, reason: Reason | None = None
    ) -> None:
        for place, found in changes.slow.items():
            number, workers = self._numbers[place], groups[self._numbers[place]]
            slow = found if reason is None else found._replace(reason=reason)
            self.named[number] = slow
            text = (
                f"group {number} ({_names(workers)}) is slow: its {what} takes {duration(slow.own_seconds)}, and "
                f"that of the other groups {duration(slow.others_seconds)}; {REASONS[slow.reason]}"
            )
            leader = workers[0]
            times = slow.own_seconds, slow.others_seconds
            self.news.append((text, Slowed(leader.worker, leader.steps, *times, slow.reason, number)))
        for place in changes.recovered:
            number, leader = self._numbers[place], groups[self._numbers[place]][0]
            self.named.pop(number, None)
            text = f"group {number} keeps up with the other groups again"
            self.news.append((text, Recovered(leader.worker, leader.steps)))


def _measured(before: Live, workers: list[WorkerStatus]) -> Measured:
    """Return the median worker of a group; with an own time of nan if it has not measured its pace yet."""
    paced = [status for status in workers if status.own_seconds is not None]
    if not paced:
        return Measured(math.nan, math.nan, math.nan, math.nan)

    def of(values: list[float | None]) -> float:
        known = [value for value in values if value is not None]
        return median(known) if known else math.nan

    return Measured(
        of([status.step_seconds for status in paced]),
        of([status.own_seconds for status in paced]),
        of([status.program_seconds for status in paced]),
        of([_in_a_step("cpu_seconds", _then(before, status), status) for status in paced]),
        of([_in_a_step("delayed_seconds", _then(before, status), status) for status in paced]),
        mean_own_seconds=of([status.mean_own_seconds for status in paced]),
    )


def _in_a_step(total: str, then: WorkerStatus | None, now: WorkerStatus) -> float | None:
    """Return how much a total has grown per step since the last look."""
    if then is None or then.steps == now.steps or rate(then, now, total) is None:
        return None
    return (getattr(now, total) - getattr(then, total)) / (now.steps - then.steps)


def _exchanging(before: Live, workers: list[WorkerStatus], seen: deque[float]) -> Measured:
    """Return a group's fastest exchange as its own time; nan if too few were `seen`, or none since the last look."""
    leader = workers[0]
    then, took = _then(before, leader), leader.exchange_seconds
    fastest = math.nan
    if then is not None and took is not None and then.exchanges < leader.exchanges:
        seen.append(took)
        if len(seen) == EXCHANGES:
            fastest = min(seen)
    return Measured(leader.step_seconds or 0.0, fastest, math.nan, math.nan)


def _is_paced_anew(before: Live, status: WorkerStatus) -> bool:
    then = _then(before, status)
    return then is not None and then.paces != status.paces


def _then(before: Live, status: WorkerStatus) -> WorkerStatus | None:
    seen = before.workers.get(status.worker)
    return None if seen is None else seen.status


def _names(workers: list[WorkerStatus]) -> str:
    numbers = [str(status.worker) for status in workers]
    first, rest = numbers[:4], len(numbers) - 4
    last = f"{rest} more" if rest > 0 else first.pop()
    named = f"{', '.join(first)} and {last}" if first else last
    return f"worker{'s' * (len(workers) > 1)} {named} on {workers[0].host}"
