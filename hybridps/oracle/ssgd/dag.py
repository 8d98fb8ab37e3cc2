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
    """Seconds between the ends of two iterations, once the input pipeline is full."""
    return end_seconds(place(iteration, variant, 3)) - end_seconds(place(iteration, variant, 2))


def exposed_communication_seconds(iteration: Iteration, variant: str) -> float:
    """Seconds of communication in an iteration that no computation hides."""
    return exposed_seconds(place(iteration, variant), COMMUNICATION, behind=COMPUTE)


def waited_seconds(placed: Sequence[Placed]) -> float:
    """Seconds from the last gradient of the last iteration until its last message is done."""
    last_gradient = max(each.end_seconds for each in placed if each.task.name.startswith(BACKWARD))
    sent = max((each.end_seconds for each in placed if each.task.resource == COMMUNICATION), default=0.0)
    return max(0.0, sent - last_gradient)


def place(iteration: Iteration, variant: str, iterations: int = 1) -> list[Placed]:
    """The schedule of this many iterations."""
    return schedule(tasks(iteration, variant, iterations))


def tasks(iteration: Iteration, variant: str, iterations: int = 1) -> list[Task]:
    """The tasks of this many iterations. Raises OracleError for an unknown variant."""
    if variant not in VARIANTS:
        raise OracleError(f"variant {variant!r} is unknown: use one of {', '.join(VARIANTS)}")
    graph: list[Task] = []
    updates: list[int] = []
    for _ in range(iterations):
        updates = _IterationGraph(graph, iteration, VARIANTS[variant]).append(updates)
    return graph


class _IterationGraph:
    """Appends the tasks of one iteration to a graph; a task is known by its place in the graph."""

    def __init__(self, graph: list[Task], iteration: Iteration, variant: Variant) -> None:
        self._graph = graph
        self._iteration = iteration
        self._variant = variant
        self._backward: dict[int, int] = {}
        self._messages: list[int] = []
        self._messages_of_layer: dict[int, list[int]] = {number: [] for number in range(len(iteration.layers))}

    def append(self, updates: Sequence[int]) -> list[int]:
        """Append the iteration after these updates. Returns its own updates, in forward order of the layers."""
        last = self._backward_pass(self._forward_pass(updates), updates)
        numbers = range(len(self._iteration.layers))
        return [self._update(number, last) for number in numbers]

    def _add(self, name: str, resource: str, seconds: float, *after: int) -> int:
        self._graph.append(Task(name, resource, seconds, after))
        return len(self._graph) - 1

    def _forward_pass(self, updates: Sequence[int]) -> int:
        iteration = self._iteration
        last = self._add("io", INPUT, iteration.io_seconds, *(() if self._variant.io_overlaps else updates))
        last = self._add("host to device", INPUT, iteration.host_to_device_seconds, last)
        for number, layer in enumerate(iteration.layers):
            before = updates[number : number + 1]
            last = self._add(f"forward {layer.name}", COMPUTE, layer.forward_seconds, last, *before)
        return last

    def _backward_pass(self, last: int, updates: Sequence[int]) -> int:
        """Add the backward tasks, and each message at the moment when its variant sends it."""
        waiting = deque(self._iteration.messages)
        for number, layer in reversed(list(enumerate(self._iteration.layers))):
            last = self._add(f"{BACKWARD} {layer.name}", COMPUTE, layer.backward_seconds, last)
            self._backward[number] = last
            while self._variant.wait_free and waiting and set(waiting[0].layers) <= set(self._backward):
                self._send(waiting.popleft(), last, updates)
        for message in waiting:
            self._send(message, last, updates)
        return last

    def _send(self, message: Message, last: int, updates: Sequence[int]) -> None:
        gradients = [self._backward[number] for number in message.layers] if self._variant.wait_free else [last]
        ready = [*(gradients if message.layers else updates), *self._messages[-1:]]
        ends = dict.fromkeys(self._iteration.layers[number].name for number in message.layers[-1:] + message.layers[:1])
        what = " to ".join(ends) or "weights"
        if message.busy_seconds:
            self._add(f"serve {what}", COMPUTE, message.busy_seconds, *ready)
        self._messages.append(self._add(f"communicate {what}", COMMUNICATION, message.seconds, *ready))
        for number in message.layers:
            self._messages_of_layer[number].append(self._messages[-1])

    def _update(self, number: int, last: int) -> int:
        layer = self._iteration.layers[number]
        if self._variant.update_waits_for_all:
            return self._add(f"update {layer.name}", COMPUTE, layer.update_seconds, last, *self._messages[-1:])
        after = self._backward[number], *self._messages_of_layer[number]
        return self._add(f"update {layer.name}", COMPUTE, layer.update_seconds, *after)
