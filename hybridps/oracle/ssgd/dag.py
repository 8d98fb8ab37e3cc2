"""An iteration of synchronous SGD as a graph of tasks (Shi and others, 2018, arXiv 1805.03812).

io -> host to device -> forward 1..L -> backward L..1; the backward of a layer -> its message; messages -> update.
Reading, computing and communicating are three serial resources. A message that keeps computing cores busy also takes
time of the second one (`serve`).

docs/oracle.md has the table of the variants. Merged gradients (MG-WFBP) are `wait_free` with merged messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from hybridps.errors import OracleError
from hybridps.oracle.ssgd.merge import Message
from hybridps.oracle.ssgd.schedule import Placed, Task, end_seconds, exposed_seconds, schedule

INPUT, COMPUTE, COMMUNICATION = "input", "compute", "communication"
BACKWARD = "backward"


@dataclass(frozen=True)
class Layer:
    """A layer's times in one iteration, and the bytes of its gradient."""

    name: str
    backward_seconds: float
    forward_seconds: float = 0.0
    update_seconds: float = 0.0
    gradient_bytes: float = 0.0


@dataclass(frozen=True)
class Iteration:
    """The work of one iteration. Layers are in forward order, messages in the order in which they are sent."""

    layers: Sequence[Layer]
    messages: Sequence[Message]
    io_seconds: float = 0.0
    host_to_device_seconds: float = 0.0


@dataclass(frozen=True)
class Variant:
    """Which tasks may overlap."""

    io_overlaps: bool
    wait_free: bool
    update_waits_for_all: bool = True


VARIANTS = {
    "naive": Variant(io_overlaps=False, wait_free=False),
    "io_overlapped": Variant(io_overlaps=True, wait_free=False),
    "wait_free": Variant(io_overlaps=True, wait_free=True),
    "hybridps": Variant(io_overlaps=True, wait_free=True, update_waits_for_all=False),
}


def iteration_seconds(iteration: Iteration, variant: str) -> float:
    """Return the seconds between the ends of two iterations, once the input pipeline is full."""
    return end_seconds(place(iteration, variant, 3)) - end_seconds(place(iteration, variant, 2))


def exposed_communication_seconds(iteration: Iteration, variant: str) -> float:
    """Return the seconds of communication in an iteration that no computation hides."""
    return exposed_seconds(place(iteration, variant), COMMUNICATION, behind=COMPUTE)


def waited_seconds(placed: Sequence[Placed]) -> float:
    """Return the seconds from the last gradient of the last iteration until its last message has been sent."""
    last_gradient = max(each.end_seconds for each in placed if each.task.name.startswith(BACKWARD))
    sent = max((each.end_seconds for each in placed if each.task.resource == COMMUNICATION), default=0.0)
    return max(0.0, sent - last_gradient)


def place(iteration: Iteration, variant: str, iterations: int = 1) -> list[Placed]:
    """Return the schedule of `iterations` iterations. Raises OracleError for an unknown variant."""
    if variant not in VARIANTS:
        raise OracleError(f"variant {variant!r} is unknown: use one of {', '.join(VARIANTS)}")
    graph: list[Task] = []
    updates: list[int] = []
    for _ in range(iterations):
        updates = _append(graph, iteration, VARIANTS[variant], updates)
    return schedule(graph)


def _append(graph: list[Task], iteration: Iteration, variant: Variant, updates: Sequence[int]) -> list[int]:
    """Append the tasks of one iteration, which run after `updates`. Returns its own updates, in forward order.

    A task is identified by its place in the graph.
    """
    layers = list(enumerate(iteration.layers))
    backward: dict[int, int] = {}
    sent: list[int] = []
    sent_with: dict[int, list[int]] = {number: [] for number, _ in layers}

    def add(name: str, resource: str, seconds: float, *after: int) -> int:
        graph.append(Task(name, resource, seconds, after))
        return len(graph) - 1

    def send(message: Message, last: int) -> None:
        gradients = [backward[number] for number in message.layers] if variant.wait_free else [last]
        ready = [*(gradients if message.layers else updates), *sent[-1:]]
        ends = dict.fromkeys(iteration.layers[number].name for number in message.layers[-1:] + message.layers[:1])
        what = " to ".join(ends) or "weights"
        if message.busy_seconds:
            add(f"serve {what}", COMPUTE, message.busy_seconds, *ready)
        sent.append(add(f"communicate {what}", COMMUNICATION, message.seconds, *ready))
        for number in message.layers:
            sent_with[number].append(sent[-1])

    last = add("io", INPUT, iteration.io_seconds, *(() if variant.io_overlaps else updates))
    last = add("host to device", INPUT, iteration.host_to_device_seconds, last)
    for number, layer in layers:
        last = add(f"forward {layer.name}", COMPUTE, layer.forward_seconds, last, *updates[number : number + 1])
    waiting = deque(iteration.messages)
    for number, layer in reversed(layers):
        backward[number] = last = add(f"{BACKWARD} {layer.name}", COMPUTE, layer.backward_seconds, last)
        while variant.wait_free and waiting and set(waiting[0].layers) <= set(backward):
            send(waiting.popleft(), last)
    for message in waiting:
        send(message, last)
    return [
        add(
            f"update {layer.name}",
            COMPUTE,
            layer.update_seconds,
            *([last, *sent[-1:]] if variant.update_waits_for_all else [backward[number], *sent_with[number]]),
        )
        for number, layer in layers
    ]
