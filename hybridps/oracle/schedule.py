"""Tasks on serial resources, and when each runs: a list schedule, exact for given times."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """Work of `seconds` on a resource that does one thing at a time, once the tasks at the places `after` are done."""

    name: str
    resource: str
    seconds: float
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Placed:
    """A task, and when it begins."""

    task: Task
    start_seconds: float

    @property
    def end_seconds(self) -> float:
        return self.start_seconds + self.task.seconds


def schedule(tasks: Sequence[Task]) -> list[Placed]:
    """Run every task as soon as it can: a free resource takes the first of its ready tasks in the order of the list.

    `after` names earlier places of the list only, so that there are no cycles. The answer is in the list's order.
    """
    missing = [len(set(task.after)) for task in tasks]
    followers: list[list[int]] = [[] for _ in tasks]
    for place, task in enumerate(tasks):
        for earlier in set(task.after):
            followers[earlier].append(place)
    ready: dict[str, list[int]] = {task.resource: [] for task in tasks}
    for place, count in enumerate(missing):
        if count == 0:
            heapq.heappush(ready[tasks[place].resource], place)
    starts = [0.0] * len(tasks)
    running: list[tuple[float, int]] = []
    busy: set[str] = set()
    now = 0.0
    while True:
        for resource, waiting in ready.items():
            if waiting and resource not in busy:
                place = heapq.heappop(waiting)
                busy.add(resource)
                starts[place] = now
                heapq.heappush(running, (now + tasks[place].seconds, place))
        if not running:
            return [Placed(task, start) for task, start in zip(tasks, starts, strict=True)]
        now = running[0][0]
        while running and running[0][0] == now:
            place = heapq.heappop(running)[1]
            busy.discard(tasks[place].resource)
            for follower in followers[place]:
                missing[follower] -= 1
                if missing[follower] == 0:
                    heapq.heappush(ready[tasks[follower].resource], follower)


def end_seconds(placed: Iterable[Placed]) -> float:
    """When the last task ends; 0 if there is none."""
    return max((each.end_seconds for each in placed), default=0.0)


def exposed_seconds(placed: Sequence[Placed], resource: str, behind: str) -> float:
    """How long `resource` works while `behind` does not: what of the one is not hidden by the other."""
    covers = sorted((each.start_seconds, each.end_seconds) for each in placed if each.task.resource == behind)
    exposed = 0.0
    for each in placed:
        if each.task.resource == resource:
            hidden = sum(
                max(0.0, min(each.end_seconds, stop) - max(each.start_seconds, start)) for start, stop in covers
            )
            exposed += each.task.seconds - hidden
    return exposed
