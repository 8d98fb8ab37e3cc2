"""Schedules tasks on serial resources: a list schedule, exact for given times."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """Work of `seconds` on a resource that runs one task at a time, after the tasks with the indices `after`."""

    name: str
    resource: str
    seconds: float
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Placed:
    """A task and its start time."""

    task: Task
    start_seconds: float

    @property
    def end_seconds(self) -> float:
        return self.start_seconds + self.task.seconds


def schedule(tasks: Sequence[Task]) -> list[Placed]:
    """Run every task as early as possible: a free resource takes the first of its ready tasks in list order.

    `after` refers only to earlier tasks of the list, so there are no cycles. The result is in list order.
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
    """Return the end time of the last task; 0 if there is none."""
    return max((each.end_seconds for each in placed), default=0.0)


def exposed_seconds(placed: Sequence[Placed], resource: str, behind: str) -> float:
    """Return the seconds in which `resource` works and `behind` does not: the work that the other does not hide."""
    covers = sorted((each.start_seconds, each.end_seconds) for each in placed if each.task.resource == behind)
    exposed = 0.0
    for each in placed:
        if each.task.resource == resource:
            hidden = sum(
                max(0.0, min(each.end_seconds, stop) - max(each.start_seconds, start)) for start, stop in covers
            )
            exposed += each.task.seconds - hidden
    return exposed
