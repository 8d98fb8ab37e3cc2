"""Counts of the ParaDL authors' program: operations, sums over the layers, and the layers that are split."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from hybridps.oracle.machines import Machine
from hybridps.oracle.networks import Layer, Network
from hybridps.oracle.paradl.work import Work


@dataclass(frozen=True)
class Totals:
    """The program's sums: seconds per sample, items per sample, weights; and of the split layers alone."""

    seconds: float
    activation_items: int
    weight_items: int
    split_seconds: float
    split_weight_items: int
    gathered_items: int
    gathered_layers: int


def operations(layer: Layer) -> int:
    """The program's count for one sample: twice the forward pass, and one for each weight.

    It counts a convolution as 2 C F K K Wy Hy, pooling as C F K K Wy Hy, and a fully connected layer as C F K K.
    """
    places = prod(layer.output[1:])
    if layer.kind == "CONV":
        forward = 2 * layer.matrix_items * places
    elif layer.kind in ("MPOOL", "APOOL"):
        forward = layer.input[0] * layer.output[0] * prod(layer.kernel) * places
    elif layer.kind == "FC":
        forward = layer.matrix_items
    elif layer.kind == "BNORM":
        forward = 4 * layer.input_items
    else:
        forward = layer.output_items if layer.kind in ("RELU", "ADD") else 0
    return 2 * forward + layer.matrix_items


@lru_cache(maxsize=64)
def totals_of(network: Network, machine: Machine, mask: tuple[bool, ...] | None) -> Totals:
    work = Work(network, machine, mask)
    split, seconds = mask_of(network, mask), layer_seconds(work)
    counted = [layer for layer in network.layers if layer.kind not in ("RELU", "BNORM")]
    gathered = [layer for layer, chosen in zip(network.layers[:-1], split, strict=False) if chosen]
    chosen_layers = [layer for layer, chosen in zip(network.layers, split, strict=True) if chosen]
    return Totals(
        sum(seconds),
        sum(layer.input_items + layer.output_items for layer in counted),
        sum(layer.matrix_items for layer in network.layers),
        sum(second for second, chosen in zip(seconds, split, strict=True) if chosen),
        sum(layer.matrix_items for layer in chosen_layers),
        sum(layer.output_items for layer in gathered),
        len(gathered),
    )


def layer_seconds(work: Work) -> list[float]:
    """The network's time per sample, shared out by `operations`."""
    counts = [operations(layer) for layer in work.network.layers]
    total = work.network.seconds_per_sample
    if total is None:
        timed = any(layer.forward_seconds is not None for layer in work.network.layers)
        total = work.passes_seconds if timed else sum(counts) / work.machine.speed_flops
    return [count / sum(counts) * total for count in counts]


def mask_of(network: Network, mask: tuple[bool, ...] | None) -> tuple[bool, ...]:
    """The mask, or else the convolutions, which the published masks choose."""
    return mask or tuple(layer.kind == "CONV" for layer in network.layers)
