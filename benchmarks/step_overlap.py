"""How much communication backward hid: as measured, at most possible, and by the oracle's schedule. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

from msgspec.structs import replace

from benchmarks.step_task import TracedBucket, TracedStep
from hybridps.oracle.ssgd.dag import COMMUNICATION, COMPUTE, Iteration, Layer, place
from hybridps.oracle.ssgd.merge import Message
from hybridps.oracle.ssgd.schedule import exposed_seconds

SecondsOf = Callable[[int], float]
"""Returns the seconds in which the links carry a bucket of this many bytes."""


def overlap(steps: Sequence[TracedStep], seconds_of: SecondsOf) -> dict[str, float]:
    """Return milliseconds and ratios, as medians over the steps. docs/benchmarks.md explains them."""
    rows = [_overlap(step, seconds_of) for step in steps]
    return {name: median(row[name] for row in rows) for name in rows[0]}


def _overlap(step: TracedStep, seconds_of: SecondsOf) -> dict[str, float]:
    busy = merged([(bucket.began, bucket.ended) for bucket in step.buckets])
    communication = sum(end - begin for begin, end in busy)
    hidden = sum(max(0.0, min(end, step.last_gradient) - begin) for begin, end in busy)
    could = hideable(step)
    oracle_communication, oracle_hidden = predicted(step, seconds_of)
    return {
        "communication": 1e3 * communication,
        "hidden": 1e3 * hidden,
        "could_be_hidden": 1e3 * could,
        "hidden_part": hidden / could if could else 1.0,
        "oracle_communication": 1e3 * oracle_communication,
        "oracle_hidden": 1e3 * oracle_hidden,
        "hidden_of_oracle": hidden / oracle_hidden if oracle_hidden else 1.0,
    }


def merged(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the union of the spans.

    >>> merged([(0, 2), (1, 3), (5, 6)])
    [(0, 3), (5, 6)]
    """
    found: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def complete_together(steps: Sequence[TracedStep]) -> tuple[TracedStep, ...]:
    """Return the same step of all workers of a group, with each bucket complete when all workers have it.

    A group cannot begin to sum a bucket before then.
    """
    ready = [max(same) for same in zip(*([bucket.ready for bucket in step.buckets] for step in steps), strict=True)]
    return tuple(
        replace(step, buckets=[replace(bucket, ready=when) for bucket, when in zip(step.buckets, ready, strict=True)])
        for step in steps
    )


def hideable(step: TracedStep) -> float:
    """Return the largest number of seconds of communication that backward could hide.

    These are the buckets that are complete before the last gradient, each for the time that it occupied the links, and
    at most the time from the first complete bucket to the last gradient.
    """
    first = min(bucket.ready for bucket in step.buckets)
    ends = [float("-inf"), *(bucket.ended for bucket in step.buckets)]
    taken = sum(
        bucket.ended - max(bucket.began, before)
        for bucket, before in zip(step.buckets, ends, strict=False)
        if bucket.ready < step.last_gradient
    )
    return max(0.0, min(taken, step.last_gradient - first))


def predicted(step: TracedStep, seconds_of: SecondsOf) -> tuple[float, float]:
    """Return the seconds of communication, and those that backward hides, by the oracle's schedule of the same buckets.

    Backward is the measured time between complete buckets, and ends with the last gradient of this worker: another
    worker of its group may complete a bucket later. A message takes the time that the links need for its bytes.
    """
    ready = [min(when, step.last_gradient) for when in ready_in_order(step.buckets)]
    times = [0.0, *(after - before for before, after in pairwise(ready))]
    count = len(times)
    # The first bucket has the last layers, while the oracle's layers are in forward order.
    layers = [Layer(str(number), backward_seconds=seconds) for number, seconds in enumerate(reversed(times))]
    messages = [Message((count - 1 - number,), seconds_of(each.nbytes)) for number, each in enumerate(step.buckets)]
    placed = place(Iteration(layers, messages), "hybridps")
    total = sum(message.seconds for message in messages)
    return total, total - exposed_seconds(placed, COMMUNICATION, behind=COMPUTE)


def ready_in_order(buckets: Sequence[TracedBucket]) -> list[float]:
    """Return when each bucket could be sent: when it and all buckets before it are complete."""
    found: list[float] = []
    for bucket in buckets:
        found.append(max(bucket.ready, found[-1] if found else bucket.ready))
    return found
