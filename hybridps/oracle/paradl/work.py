"""A network on a machine: times, items, and the layers that a strategy splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from hybridps.errors import OracleError
from hybridps.oracle.machines import Machine
from hybridps.oracle.networks import Layer, Network

UPDATE_FLOPS = 2
"""The operations of plain SGD for each trainable item."""


@dataclass(frozen=True)
class Times:
    """The seconds of each layer: forward and backward for one sample, update for one iteration."""

    forward_seconds: np.ndarray
    backward_seconds: np.ndarray
    update_seconds: np.ndarray

    @cached_property
    def passes_seconds(self) -> np.ndarray:
        return self.forward_seconds + self.backward_seconds


def times_of(network: Network, machine: Machine) -> Times:
    """Return the times of the network, or else times derived from its operations and the speed of the machine.

    A time of the whole network is divided by operations, and includes the updates. Backward takes twice the operations
    of forward, because it computes the gradients of the input and of the weights.
    """
    flops = np.array([layer.forward_flops for layer in network.layers], float)
    if network.seconds_per_sample is not None:
        share = flops / flops.sum() * network.seconds_per_sample
        return Times(share / 3, share * 2 / 3, np.zeros(len(flops)))
    items = np.array([layer.weight_items for layer in network.layers], float)
    forward = _or_else([layer.forward_seconds for layer in network.layers], flops / machine.speed_flops)
    backward = _or_else([layer.backward_seconds for layer in network.layers], 2 * forward)
    estimated = np.zeros(len(flops)) if network.is_timed else UPDATE_FLOPS * items / machine.speed_flops
    return Times(forward, backward, _or_else([layer.update_seconds for layer in network.layers], estimated))


@dataclass(frozen=True)
class Split:
    """The layers that a strategy splits, and the positions of those that therefore exchange something."""

    mask: np.ndarray
    positions: tuple[int, ...]

    def sum(self, values: np.ndarray, parts: int) -> float:
        """Return the sum over the layers for one of `parts` PEs: its part of the split layers, and the whole others."""
        return float(values[self.mask].sum() / parts) + self.whole(values)

    def whole(self, values: np.ndarray) -> float:
        """Return the sum over the layers that every PE computes as a whole."""
        return float(values[~self.mask].sum())


@dataclass(frozen=True)
class Work:
    """A network on a machine. `mask` marks the layers that a strategy splits; None leaves that to the strategy."""

    network: Network
    machine: Machine
    mask: tuple[bool, ...] | None = None
    bytes_per_item: int = 4

    @cached_property
    def times(self) -> Times:
        return times_of(self.network, self.machine)

    @cached_property
    def activations(self) -> np.ndarray:
        """The items of each layer's input and output for one sample: x + y."""
        return np.array([layer.input_items + layer.output_items for layer in self.network.layers], float)

    @cached_property
    def weights(self) -> np.ndarray:
        """The trainable items of each layer: w."""
        return np.array([layer.weight_items for layer in self.network.layers], float)

    @cached_property
    def passes_seconds(self) -> float:
        """The seconds of forward and backward for one sample."""
        return float(self.times.passes_seconds.sum())

    @cached_property
    def update_seconds(self) -> float:
        """The seconds of one update of all layers."""
        return float(self.times.update_seconds.sum())

    @cached_property
    def activation_items(self) -> float:
        return float(self.activations.sum())

    @cached_property
    def weight_items(self) -> float:
        return float(self.weights.sum())

    @property
    def weight_bytes(self) -> float:
        return self.weight_items * self.bytes_per_item

    @cached_property
    def by_weights(self) -> Split:
        """The split for filter and channel: the layers of the mask; without a mask, compute is split everywhere."""
        return self._split(self.mask or (True,) * len(self.network.layers))

    @cached_property
    def by_space(self) -> Split:
        """The split for spatial: the layers of the mask, or those before the first that reads its whole input."""
        return self._split(self.mask or (True,) * len(self.network.layers), self.mask or _local(self.network.layers))

    @property
    def is_gathered(self) -> np.ndarray:
        """For each layer, whether its output is gathered when it is split by weights. Others pass on only a part."""
        return self.weights > 0

    def iterations(self, batch: int) -> float:
        """Return the number of iterations in an epoch."""
        return self.network.samples / batch

    def samples(self, copies: int) -> float:
        """Return the number of samples in an epoch for one of `copies` of the network."""
        return self.network.samples / copies

    def memory_bytes(self, activation_items: float, weight_items: float) -> float:
        """Return the memory of these items and of as many gradients."""
        return 2 * self.bytes_per_item * (activation_items + weight_items)

    def _split(self, mask: Sequence[bool], exchanging: Sequence[bool] | None = None) -> Split:
        if len(mask) != len(self.network.layers):
            raise OracleError(
                f"the mask has {len(mask)} layers, and {self.network.name} has {len(self.network.layers)}"
            )
        return Split(np.array(mask, bool), tuple(map(int, np.flatnonzero(exchanging or mask))))


def halo_items(layer: Layer) -> tuple[int, int]:
    """Return the items of input and of output gradient that a part needs from a neighbour in width, per sample."""
    if not layer.kernel or layer.kernel[0] < 2:
        return 0, 0
    columns = (layer.kernel[0] - 1) // 2
    return columns * layer.input[0] * prod(layer.input[2:]), columns * layer.output[0] * prod(layer.output[2:])


def _local(layers: Sequence[Layer]) -> tuple[bool, ...]:
    """Return True for each layer before the first one that reads its whole input at once."""
    whole = [
        layer.kind == "FC" or (layer.kernel != () and layer.kernel == layer.input[1:] and layer.kind != "BNORM")
        for layer in layers
    ]
    first = whole.index(True) if True in whole else len(layers)
    return tuple(index < first for index in range(len(layers)))


def _or_else(given: Sequence[float | None], otherwise: np.ndarray) -> np.ndarray:
    return np.array([other if value is None else value for value, other in zip(given, otherwise, strict=True)], float)
