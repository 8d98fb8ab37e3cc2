"""What the trace of a run shows, in words and figures: where a step's time goes, and which worker others wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Literal, NamedTuple

from hybridps.quantities import duration, rounded
from hybridps.tracing.clocks import OneClock
from hybridps.tracing.parts import WORDS, Parts, hidden_seconds, mean_parts, pace_of, parts_of
from hybridps.tracing.reading import Trace, TracedStep

START_UP = 3
"""The number of first steps that do not count, if there are more: they set up memory and buckets."""

SLOWER = 0.1
"""A worker is reported if it takes longer than the others by this share."""

LEAST_SECONDS = 1e-4
"""Shorter times are not mentioned."""

LEAST_SHARE = 0.02
"""Nor are differences that are a smaller share of a step."""

TELLING_SHARE = 0.1
"""In a single step, the worker that is last is compared with the others if its excess is this share of the step."""

StepId = tuple[int, int]
"""The numbers of the model and of the step."""


class Slow(NamedTuple):
    """A worker that takes longer than the median of the others until its last gradient."""

    worker: int
    share: float
    """How much longer it takes, as a share of the others' time."""
    seconds: float
    others_seconds: float
    last_in: float
    """The share of steps in which it is last."""
    stalls: bool
    """Whether it takes longer in some steps only: the times are means then, and medians otherwise."""
    cause: Literal["loading", "program", "compute"]
    """Where most of the difference is."""


_CAUSES = {
    "loading": "loads data for long, and takes {} until its last gradient",
    "program": "spends time on other code of its program, and takes {} until its last gradient",
    "compute": "computes {}",
}


class Diagnosis(NamedTuple):
    """What all steps that count show. Seconds are means per step, over the workers."""

    steps: int
    step_seconds: float
    parts: Parts
    by_worker: dict[int, Parts]
    hidden: float
    """The time of communication under backward."""
    slow: list[Slow]
    sentences: list[str]
    typical: StepId
    slowest: StepId


Table = Mapping[StepId, Mapping[int, TracedStep]]
"""Traced steps, by step and worker."""


def diagnose(clock: OneClock) -> Diagnosis | None:
    """Return what a trace shows; None if it has no step of all workers."""
    table = steps_of(clock.trace)
    if not table:
        return None
    has_servers = clock.trace.has_servers
    every = {step: {worker: parts_of(each, has_servers) for worker, each in row.items()} for step, row in table.items()}
    by_worker = {worker: mean_parts([row[worker] for row in every.values()]) for worker in clock.trace.workers}
    parts = mean_parts(list(by_worker.values()))
    hidden = [hidden_seconds(each) for row in table.values() for each in row.values()]
    length = {step: max(part.whole for part in row.values()) for step, row in every.items()}
    middle = median(length.values())
    typical, slowest = (
        min(length, key=lambda step: abs(length[step] - middle)),
        max(length, key=lambda step: length[step]),
    )
    slow = slow_workers(every, table)
    said = [_shares(parts), *map(_slow_in_words, slow)]
    said += _groups_in_words(clock.trace, table)
    said += [f"step {typical[1]}, a typical one of {_ms(length[typical])}: {path(clock.trace, table, typical)}"]
    if length[slowest] > (1 + SLOWER) * middle:
        said += [f"step {slowest[1]}, the longest with {_ms(length[slowest])}: {path(clock.trace, table, slowest)}"]
    if len(by_worker) == 2:
        said = [each.replace("the others", "the other") for each in said]
    return Diagnosis(len(table), parts.whole, parts, by_worker, sum(hidden) / len(hidden), slow, said, typical, slowest)


def steps_of(trace: Trace) -> dict[StepId, dict[int, TracedStep]]:
    """Return the steps that all workers have recorded, without those of the start-up."""
    table: dict[StepId, dict[int, TracedStep]] = {}
    for number, worker in trace.workers.items():
        for step in worker.steps:
            table.setdefault((step.model, step.number), {})[number] = step
    whole = {step: row for step, row in table.items() if len(row) == len(trace.workers)}
    return {step: row for step, row in whole.items() if step[1] >= START_UP} or whole


def slow_workers(every: Mapping[StepId, Mapping[int, Parts]], table: Table) -> list[Slow]:
    """Return the workers that take longer than the others by `SLOWER`, slowest first.

    That is so in the median of the steps, or in their mean without the worst one.
    """
    paces = {
        step: {worker: pace_of(parts, table[step][worker]) for worker, parts in row.items()}
        for step, row in every.items()
    }
    workers = sorted(next(iter(paces.values())))
    found = [slow for worker in workers if len(workers) > 1 and (slow := _slow(worker, paces, table))]
    return sorted(found, key=lambda slow: -slow.share)


def _slow(worker: int, every: Mapping[StepId, Mapping[int, Parts]], table: Table) -> Slow | None:
    pairs = sorted(((row[worker], _others(row, worker)) for row in every.values()), key=_excess)
    for average, some in ((median, pairs), (fmean, pairs[:-1])):
        others, excess = average([other.own for _, other in some] or [0.0]), average([*map(_excess, some)] or [0.0])
        whole = average([part.whole for part, _ in some] or [0.0])
        if excess > max(SLOWER * others, LEAST_SECONDS, LEAST_SHARE * whole) and others > 0:
            break
    else:
        return None
    last = fmean(row[worker].own >= max(each.own for each in row.values()) for row in every.values())
    late = {number: average([_late(row[number]) for row in table.values()]) for number in next(iter(every.values()))}
    if average([part.loading - other.loading for part, other in some]) > excess / 2:
        cause: Literal["loading", "program", "compute"] = "loading"
    elif late[worker] - median(each for number, each in late.items() if number != worker) > excess / 2:
        cause = "program"
    else:
        cause = "compute"
    return Slow(worker, excess / others, others + excess, others, last, average is fmean, cause)


def _excess(pair: tuple[Parts, Parts]) -> float:
    return pair[0].own - pair[1].own


def _late(step: TracedStep) -> float:
    """Return the seconds until the program began a step, without loading; 0 if it computes before it begins a step."""
    until = step.time.began - step.began - sum(each.within(step.began, step.time.began) for each in step.loading)
    return 0.0 if step.computes_before else max(0.0, until)


def path(trace: Trace, table: Table, step: StepId) -> str:
    """Return the critical path of a step in words.

    It says which worker takes the longest until its last gradient, why, and what follows. If groups do not train in
    step, only the workers count that take as long as the longest one.
    """
    row = table[step]
    parts = {worker: _pace_in_step(parts_of(each, trace.has_servers), each) for worker, each in row.items()}
    longest = max(each.whole for each in parts.values())
    until_the_end = [worker for worker, each in parts.items() if (1 + SLOWER) * each.whole > longest]
    last = max(until_the_end, key=lambda worker: parts[worker].own)
    mine, others = parts[last], _others(parts, last)
    program = _late(row[last]) - median(_late(each) for worker, each in row.items() if worker != last or len(row) == 1)
    first, named = _last_in_words(last, mine, others if len(row) > 1 else None, program)
    said = [first]
    least = max(LEAST_SECONDS, 0.01 * mine.whole)
    if mine.allreduce > least and named != "allreduce":
        said.append(f"{_ms(mine.allreduce)} of its allreduce are not hidden")
    if mine.exchange > least and named != "exchange":
        rounds = _rounds_within(trace, row[last])
        computing = f", which compute for {_ms(rounds)} of that" if rounds > LEAST_SECONDS else ""
        said.append(f"it waits for the servers for {_ms(mine.exchange)}{computing}")
    if mine.averaging > LEAST_SECONDS and named != "averaging":
        said.append(f"averaging weights takes {_ms(mine.averaging)}")
    return "; ".join(said)


def _pace_in_step(parts: Parts, step: TracedStep) -> Parts:
    """Return `pace_of` a step, with no more computing than the step has time for."""
    return parts._replace(compute=min(pace_of(parts, step).compute, parts.compute + parts.other))


def _last_in_words(worker: int, mine: Parts, others: Parts | None, program: float) -> tuple[str, str | None]:
    """Return what the worker does that is last, and the part of the step that is named as its largest, if one is.

    `program`: how much longer its program takes to begin the step.
    """
    who = f"worker {worker}"
    loads = f", of which it loads data for {_ms(mine.loading)}" if mine.loading > 0.05 * mine.own else ""
    more = mine.own / others.own - 1 if others is not None and others.own > 0 else -1.0
    if others is None or more < -0.05:
        return f"{who} computes for {_ms(mine.own)}{loads}", None
    if more < 0.05 or mine.own - others.own < max(LEAST_SECONDS, LEAST_SHARE * mine.whole):
        return f"all workers take about as long until their last gradient ({_ms(mine.own)})", None
    if mine.own - others.own < TELLING_SHARE * mine.whole:
        return _largest_in_words(who, mine)
    if mine.loading - others.loading > (mine.own - others.own) / 2:
        return f"{who} loads data for {_ms(mine.loading)}, the others for {_ms(others.loading)}", None
    times = f"({_ms(mine.own)}{loads}; the others {_ms(others.own)})"
    if program > (mine.own - others.own) / 2:
        return f"{who} spends time on other code of its program {times}", None
    return f"{who} computes {_longer(more)} {times}", None


def _largest_in_words(who: str, parts: Parts) -> tuple[str, str]:
    """Return which part of a step takes longest, of those that have a name: in words, and the part.

    >>> _largest_in_words("worker 0", Parts(0.008, 0, 0, 0, 0.001, 0.004, 0))
    ('computing takes longest (8 ms of worker 0)', 'compute')
    """
    named = parts._replace(other=0.0)._asdict()
    name = max(named, key=lambda each: named[each])
    return f"{WORDS[name]} takes longest ({_ms(named[name])} of {who})", name


def _longer(share: float) -> str:
    """Return in words how much longer a worker takes, as a share of the others' time.

    >>> _longer(0.41), _longer(3.2)
    ('41 % longer than the others', '4.2 times as long as the others')
    """
    if share < 1:
        return f"{100 * share:.0f} % longer than the others"
    return f"{rounded(1 + share, 2)} times as long as the others"


def _others(row: Mapping[int, Parts], worker: int) -> Parts:
    """Return the median of each part over the other workers."""
    others = [parts for number, parts in row.items() if number != worker] or [row[worker]]
    return Parts(*(median(column) for column in zip(*others, strict=True)))


def _shares(parts: Parts) -> str:
    worth = [(name, seconds) for name, seconds in parts._asdict().items() if seconds > 0.005 * parts.whole]
    said = ", ".join(f"{100 * seconds / parts.whole:.0f} % {WORDS[name]}" for name, seconds in worth)
    return f"a step takes {_ms(parts.whole)}: {said}"


def _slow_in_words(slow: Slow) -> str:
    what = _CAUSES[slow.cause].format(_longer(slow.share))
    stalls = " on average, because it stalls in some steps" if slow.stalls else ""
    return (
        f"worker {slow.worker} {what} ({_ms(slow.seconds)}; the others {_ms(slow.others_seconds)}){stalls}, and is the "
        f"last in {100 * slow.last_in:.0f} % of the steps"
    )


def _groups_in_words(trace: Trace, table: Table) -> list[str]:
    """Return a sentence about the group that the others wait for at the servers, if there is one."""
    group_of = {number: worker.process.group for number, worker in trace.workers.items()}
    groups = sorted(set(group_of.values()))
    waits = {group: _mean_exchange(table, [w for w, of in group_of.items() if of == group]) for group in groups}
    if len(groups) < 2 or not trace.servers:
        return []
    least = min(waits, key=lambda group: waits[group])
    others = median(wait for group, wait in waits.items() if group != least)
    if others - waits[least] < max(LEAST_SECONDS, 0.5 * others):
        return []
    who = f"group {groups[1 - groups.index(least)]} waits" if len(groups) == 2 else "the others wait"
    return [f"{who} for group {least} at the servers: {_ms(others)} a step; group {least} waits {_ms(waits[least])}"]


def _mean_exchange(table: Table, workers: Sequence[int]) -> float:
    every = [parts_of(row[worker]).exchange for row in table.values() for worker in workers]
    return sum(every) / len(every)


def _rounds_within(trace: Trace, step: TracedStep) -> float:
    """Return the seconds after the last gradient in which any thread of a server computes a round."""
    begin, end = step.last_gradient, step.time.ended
    times = sorted(
        (max(begin, work.time.began), min(end, work.time.ended))
        for server in trace.servers.values()
        for work in server.work
        if work.kind == "round" and work.time.within(begin, end) > 0
    )
    seconds, done = 0.0, begin
    for began, ended in times:
        seconds += max(0.0, ended - max(began, done))
        done = max(done, ended)
    return seconds


def _ms(seconds: float) -> str:
    return duration(seconds, 3 if seconds >= 0.1 else 2)
