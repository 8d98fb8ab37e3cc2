"""Puts the times of all processes on one clock: that of the worker with the lowest number.

Recorded times are enough for this. Within a group, no rank leaves a vote before all have entered it, and all leave it
at about the same time. A server begins to handle a leader's message between the departure of the message and the
arrival of the answer. Each such pair of times bounds the difference of two clocks. Because clocks drift, it is
estimated again every few seconds. Workers on the same host share a clock, unless these bounds say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hybridps.tracing.reading import Interval, Trace, TracedStep, TracedWorker

WINDOW_SECONDS = 10.0
"""The difference of two clocks counts as constant for this time. With 20 parts per million, it changes by 0.2 ms."""

_RESOLUTION = 1e-6
"""Times are recorded in whole microseconds."""

Node = tuple[str, int]
"""`worker` or `server`, and its number."""


class Bound(NamedTuple):
    """At a time of clock A, clock B is ahead of it by `low` to `high` seconds, probably by `likely`."""

    when: float
    low: float
    high: float
    likely: float


class Difference(NamedTuple):
    """How far clock B is ahead of clock A, at times of A, interpolated linearly. `uncertainty`: in seconds."""

    times: tuple[float, ...]
    seconds: tuple[float, ...]
    uncertainty: float

    def at(self, when: float) -> float:
        return float(np.interp(when, self.times, self.seconds))


class OneClock(NamedTuple):
    """A trace on one clock. `uncertainty`: of the times of a process, in seconds; the largest that was measured.

    `by_wall_clock`: the workers that no recorded time connects with the first, so that wall clocks were compared.
    """

    trace: Trace
    uncertainty: float
    by_wall_clock: tuple[str, ...]


def on_one_clock(trace: Trace) -> OneClock:
    """Return the same trace with all times in seconds of the clock of the lowest worker."""
    nodes: list[Node] = [("worker", number) for number in sorted(trace.workers)]
    nodes += [("server", number) for number in sorted(trace.servers)]
    if not nodes:
        return OneClock(trace, 0.0, ())
    edges = _edges(trace)
    reached: dict[Node, Callable[[float], float]] = {nodes[0]: lambda when: when}
    uncertainties = {nodes[0]: 0.0}
    waiting = [nodes[0]]
    while waiting:
        node = waiting.pop(0)
        for (first, second), difference in edges.items():
            if node not in (first, second) or (other := second if node == first else first) in reached:
                continue
            sign = -1.0 if node == first else 1.0
            reached[other] = _chain(reached[node], difference, sign)
            uncertainties[other] = uncertainties[node] + difference.uncertainty
            waiting.append(other)
    left = [node for node in nodes if node not in reached]
    for node in left:
        reached[node] = _by_wall_clock(trace, nodes[0], node)
    names = tuple(f"{kind} {number}" for kind, number in left if kind == "worker")
    return OneClock(_shifted(trace, reached), max(uncertainties.values()), names)


def difference(bounds: Iterable[Bound]) -> Difference | None:
    """Return the difference of two clocks that these bounds allow; None without bounds."""
    windows: dict[int, list[Bound]] = {}
    for bound in bounds:
        windows.setdefault(int(bound.when // WINDOW_SECONDS), []).append(bound)
    times, seconds, widths = [], [], []
    for _, within in sorted(windows.items()):
        low, high = max(bound.low for bound in within), min(bound.high for bound in within)
        likely = float(np.median([bound.likely for bound in within]))
        times.append(float(np.mean([bound.when for bound in within])))
        seconds.append(min(max(likely, low), high) if low <= high else (low + high) / 2)
        widths.append(abs(high - low))
    return Difference(tuple(times), tuple(seconds), max(widths)) if times else None


def _shared_clocks(trace: Trace, votes: dict[tuple[Node, Node], list[Bound]]) -> dict[tuple[Node, Node], Difference]:
    """Return no difference for workers on the same host, unless the votes of the two contradict it."""
    firsts: dict[str, int] = {}
    found: dict[tuple[Node, Node], Difference] = {}
    for number, worker in sorted(trace.workers.items()):
        first = firsts.setdefault(worker.process.clock or f"unknown {number}", number)
        nodes: tuple[Node, Node] = ("worker", first), ("worker", number)
        # A leader, with which the others of its group have votes, has the lowest number of its group.
        known = votes.get(nodes, ())
        if first != number and all(each.low <= _RESOLUTION and each.high >= -_RESOLUTION for each in known):
            found[nodes] = Difference((worker.process.base,), (0.0,), _RESOLUTION)
    return found


def _edges(trace: Trace) -> dict[tuple[Node, Node], Difference]:
    bounds: dict[tuple[Node, Node], list[Bound]] = {}
    leaders: dict[int, TracedWorker] = {}
    for worker in sorted(trace.workers.values(), key=lambda each: each.process.group_rank):
        leader = leaders.setdefault(worker.process.group, worker)
        if leader is not worker:
            nodes: tuple[Node, Node] = ("worker", leader.process.worker), ("worker", worker.process.worker)
            bounds[nodes] = list(_of_votes(leader, worker))
    shared = _shared_clocks(trace, bounds)
    handled = {
        (server.number, work.group, work.request): work.time
        for server in trace.servers.values()
        for work in server.work
        if work.kind == "profile"
    }
    for probe in trace.probes:
        group = trace.workers[probe.worker].process.group if probe.worker in trace.workers else -1
        time = handled.get((probe.server, group, probe.request))
        if time is not None:
            bounds.setdefault((("worker", probe.worker), ("server", probe.server)), []).append(_bound(probe.time, time))
    found = {nodes: difference(each) for nodes, each in bounds.items() if nodes not in shared}
    return shared | {nodes: each for nodes, each in found.items() if each is not None}


def _of_votes(first: TracedWorker, second: TracedWorker) -> Iterable[Bound]:
    others = {(step.model, step.number): _votes(step) for step in second.steps}
    for step in first.steps:
        here, there = _votes(step), others.get((step.model, step.number), [])
        if len(here) == len(there):
            for mine, other in zip(here, there, strict=True):
                likely = other.ended - mine.ended
                yield Bound(mine.began, other.began - mine.ended, other.ended - mine.began, likely)


def _votes(step: TracedStep) -> list[Interval]:
    return [span.time for span in step.spans if span.kind == "vote"]


def _bound(asked: Interval, handled: Interval) -> Bound:
    """Return the bound from a message. Only the beginning of its handling counts; the end may follow the answer."""
    low, high = handled.began - asked.ended, handled.began - asked.began
    return Bound(asked.began, low, high, (low + high) / 2)


def _chain(before: Callable[[float], float], difference: Difference, sign: float) -> Callable[[float], float]:
    if sign < 0:  # from B's time to A's; this first estimate of A's time is good enough to look up the difference
        return lambda when: before(when - difference.at(when - difference.seconds[0]))
    return lambda when: before(when + difference.at(when))


def _by_wall_clock(trace: Trace, reference: Node, node: Node) -> Callable[[float], float]:
    """Return the conversion of times for a process that no message connects with the first worker."""
    if node[0] == "server" or reference[0] == "server":
        return lambda when: when
    first, other = trace.workers[reference[1]].process, trace.workers[node[1]].process
    shift = (other.wall - other.base) - (first.wall - first.base)
    return lambda when: when + shift


def _shifted(trace: Trace, to: dict[Node, Callable[[float], float]]) -> Trace:
    shifted = Trace()
    for number, worker in trace.workers.items():
        at = to["worker", number]
        steps = [_shift_step(step, at) for step in worker.steps]
        shifted.workers[number] = replace(worker, steps=steps)
    for number, server in trace.servers.items():
        at = to["server", number]
        work = [each._replace(time=_shift(each.time, at)) for each in server.work]
        shifted.servers[number] = replace(server, work=work)
    return shifted


def _shift_step(step: TracedStep, at: Callable[[float], float]) -> TracedStep:
    return replace(
        step,
        time=_shift(step.time, at),
        began=at(step.began),
        arrived=tuple((key, at(when)) for key, when in step.arrived),
        spans=tuple(span._replace(time=_shift(span.time, at)) for span in step.spans),
        loading=tuple(_shift(each, at) for each in step.loading),
    )


def _shift(time: Interval, at: Callable[[float], float]) -> Interval:
    return Interval(at(time.began), at(time.ended))
