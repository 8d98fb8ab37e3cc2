"""Which gradients are sent together: all of them, the groups of MG-WFBP, or hybridps' buckets.

A layer is identified by its number in forward order. Messages are in the order in which they are sent. A layer without
gradients sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hybridps.memory import ALIGNMENT

Cost = Callable[[float], float]
"""Returns the seconds that a message of this many bytes takes."""


@dataclass(frozen=True)
class Message:
    """Gradients of these layers (in forward order), sent together when the last of them is computed.

    A bucket may hold parts of layers. A message without layers is something else, sent after the previous updates.
    `busy_seconds`: the computation time that the message costs while both are in progress.
    """

    layers: tuple[int, ...]
    seconds: float
    busy_seconds: float = 0.0


def all_in_one(gradient_bytes: Sequence[float], cost: Cost) -> list[Message]:
    """Send one message, at the end of the backward pass."""
    layers = tuple(layer for layer, size in enumerate(gradient_bytes) if size)
    return [Message(layers, cost(sum(gradient_bytes)))] if layers else []


def merge_gradients(
    backward_seconds: Sequence[float], gradient_bytes: Sequence[float], start_up_seconds: float, cost: Cost
) -> list[Message]:
    """Return the groups of MG-WFBP (Shi and others, 2018, arXiv 1811.11141). A message of M bytes takes `cost(M)`.

    The layers are examined from the last to the second. If the gradient of the preceding layer is ready less than one
    start-up after this message could begin, waiting for it costs less than the start-up that merging saves.
    """
    ready, elapsed = [0.0] * len(backward_seconds), 0.0
    for layer in reversed(range(len(backward_seconds))):
        elapsed += backward_seconds[layer]
        ready[layer] = elapsed
    sending = [layer for layer, size in reversed(list(enumerate(gradient_bytes))) if size]
    messages: list[Message] = []
    group: list[int] = []
    free = 0.0
    for number, layer in enumerate(sending):
        group.append(layer)
        begin = max(free, ready[layer])
        if number + 1 < len(sending) and ready[sending[number + 1]] - begin < start_up_seconds:
            continue
        messages.append(Message(tuple(reversed(group)), cost(sum(gradient_bytes[each] for each in group))))
        free = begin + messages[-1].seconds
        group = []
    return messages


def buckets(gradient_bytes: Sequence[float], bucket_bytes: float, cost: Cost) -> list[Message]:
    """Return hybridps' buckets: runs of equal size of the flat buffer, from its end, always in this order."""
    spans, length = {}, 0.0
    for layer, size in enumerate(gradient_bytes):
        if size:
            spans[layer] = (length, length + size)
            length += -(-size // ALIGNMENT) * ALIGNMENT
    starts = [number * bucket_bytes for number in range(int(-(-length // bucket_bytes)))]
    found = []
    for start in reversed(starts):
        stop = min(start + bucket_bytes, length)
        layers = tuple(layer for layer, (first, last) in spans.items() if first < stop and last > start)
        found.append(Message(layers, cost(stop - start)))
    return found
