"""An iteration of synchronous SGD as a graph of tasks (Shi and others, 2018, arXiv 1805.03812).

io -> host to device -> forward 1..L -> backward L..1; the backward of a layer -> its message; messages -> update.
Reading, computing and communicating are three serial resources. Where a message keeps cores busy that compute, it also
takes time of the second (`serve`).

| variant | the next batch is read | a message begins | an update begins |
|---|---|---|---|
| `naive` | after the update | after the backward pass | after all messages |
| `io_overlapped` | meanwhile | after the backward pass | after all messages |
| `wait_free` | meanwhile | when its layers' backward is done | after all messages |
| `hybridps` | meanwhile | when its layers' backward is done | after the messages with that layer |

Merged gradients (MG-WFBP) are `wait_free` with merged messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from hybridps.errors import OracleError
from hybridps.oracle.merge import Message
from hybridps.oracle.schedule import Placed, Task, end_seconds, exposed_seconds, schedule

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
    """What one iteration has to do. Layers in forward order; messages in the order in which they are sent."""

    layers: Sequence[Layer]
    messages: Sequence[Message]
    io_seconds: float = 0.0
    host_to_device_seconds: float = 0.0


@dataclass(frozen=True)
class Variant:
    """What may happen at the same time."""

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
    """The time from one iteration's end to the next one's, when the pipeline of reading is full."""
    return end_seconds(place(iteration, variant, 3)) - end_seconds(place(iteration, variant, 2))


def exposed_communication_seconds(iteration: Iteration, variant: str) -> float:
    """The communication of an iteration that no computation hides."""
    return exposed_seconds(place(iteration, variant), COMMUNICATION, behind=COMPUTE)


def waited_seconds(placed: Sequence[Placed]) -> float:
    """From the last gradient of the last iteration until its last message is done."""
    last_gradient = max(each.end_seconds for each in placed if each.task.name.startswith(BACKWARD))
    sent = max((each.end_seconds for each in placed if each.task.resource == COMMUNICATION), default=0.0)
    return max(0.0, sent - last_gradient)


def place(iteration: Iteration, variant: str, iterations: int = 1) -> list[Placed]:
    """When each task of so many iterations runs."""
    return schedule(tasks(iteration, variant, iterations))


def tasks(iteration: Iteration, variant: str, iterations: int = 1) -> list[Task]:
    """The graph of so many iterations. Raises OracleError for an unknown variant."""
    if variant not in VARIANTS:
        raise OracleError(f"variant {variant!r} is unknown: use one of {', '.join(VARIANTS)}")
    graph: list[Task] = []
    updates: list[int] = []
    for _ in range(iterations):
        updates = _add_iteration(graph, iteration, VARIANTS[variant], updates)
    return graph


def _add_iteration(graph: list[Task], iteration: Iteration, variant: Variant, updates: Sequence[int]) -> list[int]:
    """Append one iteration; `updates` and the answer are the places of the updates, in forward order of the layers."""

    def add(name: str, resource: str, seconds: float, *after: int) -> int:
        graph.append(Task(name, resource, seconds, after))
        return len(graph) - 1

    layers = iteration.layers
    numbers = range(len(layers))
    done = add("io", INPUT, iteration.io_seconds, *(() if variant.io_overlaps else updates))
    done = add("host to device", INPUT, iteration.host_to_device_seconds, done)
    for number in numbers:
        before = updates[number : number + 1]
        done = add(f"forward {layers[number].name}", COMPUTE, layers[number].forward_seconds, done, *before)
    backward: dict[int, int] = {}
    sent: list[int] = []
    sent_with: dict[int, list[int]] = {number: [] for number in numbers}

    def send(message: Message) -> None:
        gradients = [backward[number] for number in message.layers] if variant.wait_free else [done]
        ready = [*(gradients if message.layers else updates), *sent[-1:]]
        ends = dict.fromkeys(layers[number].name for number in message.layers[-1:] + message.layers[:1])
        what = " to ".join(ends) or "weights"
        if message.busy_seconds:
            add(f"serve {what}", COMPUTE, message.busy_seconds, *ready)
        sent.append(add(f"communicate {what}", COMMUNICATION, message.seconds, *ready))
        for number in message.layers:
            sent_with[number].append(sent[-1])

    waiting = deque(iteration.messages)
    for number in reversed(numbers):
        done = backward[number] = add(
            f"{BACKWARD} {layers[number].name}", COMPUTE, layers[number].backward_seconds, done
        )
        while variant.wait_free and waiting and set(waiting[0].layers) <= set(backward):
            send(waiting.popleft())
    for message in waiting:
        send(message)
    return [
        add(
            f"update {layers[number].name}",
            COMPUTE,
            layers[number].update_seconds,
            done if variant.update_waits_for_all else backward[number],
            *(sent[-1:] if variant.update_waits_for_all else sent_with[number]),
        )
        for number in numbers
    ]
