"""A network on a machine: times, items, and the layers that a strategy splits, each summed once."""

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
"""Operations of plain SGD for each trainable item."""


@dataclass(frozen=True)
class Times:
    """Seconds of each layer: forward and backward for one sample, update for one iteration."""

    forward_seconds: np.ndarray
    backward_seconds: np.ndarray
    update_seconds: np.ndarray


def times_of(network: Network, machine: Machine) -> Times:
    """The times of the network, or else times derived from its operations and the speed of the machine.

    A time of the whole network is divided by operations, and includes the updates. Backward takes twice the
    operations of forward: it makes the gradients of the input and of the weights.
    """
    flops = np.array([layer.forward_flops for layer in network.layers], float)
    items = np.array([layer.weight_items for layer in network.layers], float)
    if network.seconds_per_sample is not None:
        share = flops / flops.sum() * network.seconds_per_sample
        return Times(share / 3, share * 2 / 3, np.zeros(len(flops)))
    forward = _or_else([layer.forward_seconds for layer in network.layers], flops / machine.speed_flops)
    backward = _or_else([layer.backward_seconds for layer in network.layers], 2 * forward)
    measured = any(layer.forward_seconds is not None for layer in network.layers)
    estimated = np.zeros(len(flops)) if measured else UPDATE_FLOPS * items / machine.speed_flops
    return Times(forward, backward, _or_else([layer.update_seconds for layer in network.layers], estimated))


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
    def passes_seconds(self) -> float:
        """Forward and backward of one sample."""
        return float((self.times.forward_seconds + self.times.backward_seconds).sum())

    @cached_property
    def update_seconds(self) -> float:
        """Update of all layers, once."""
        return float(self.times.update_seconds.sum())

    @cached_property
    def activation_items(self) -> int:
        """Inputs and outputs of all layers for one sample: sum of x + y."""
        return sum(layer.input_items + layer.output_items for layer in self.network.layers)

    @cached_property
    def weight_bytes(self) -> float:
        return self.network.weight_items * self.bytes_per_item

    @cached_property
    def by_weights(self) -> Split:
        """For filter and channel: the layers of the mask; without one, compute is split everywhere."""
        layers = self.network.layers
        return self._split(self.mask or (True,) * len(layers))

    @cached_property
    def by_space(self) -> Split:
        """For spatial: the layers of the mask; without one, those before the first one that reads its whole input."""
        return self._split(self.mask or (True,) * len(self.network.layers), self.mask or _local(self.network.layers))

    def _split(self, mask: Sequence[bool], exchanging: Sequence[bool] | None = None) -> Split:
        if len(mask) != len(self.network.layers):
            raise OracleError(
                f"the mask has {len(mask)} layers, and {self.network.name} has {len(self.network.layers)}"
            )
        split = np.array(mask, bool)
        passes = self.times.forward_seconds + self.times.backward_seconds
        items = np.array([layer.weight_items for layer in self.network.layers], float)
        activations = np.array([layer.input_items + layer.output_items for layer in self.network.layers], float)
        updates = self.times.update_seconds
        positions = tuple(int(index) for index in np.flatnonzero(np.array(exchanging or mask, bool)))
        return Split(
            positions,
            *(float(values[split].sum()) for values in (passes, updates, items, activations)),
            *(float(values[~split].sum()) for values in (passes, updates, items, activations)),
        )


@dataclass(frozen=True)
class Split:
    """Sums over the layers that are split, and over those that every PE computes as a whole."""

    positions: tuple[int, ...]
    """The layers that exchange something because they are split."""
    passes_seconds: float
    update_seconds: float
    weight_items: float
    activation_items: float
    whole_passes_seconds: float
    whole_update_seconds: float
    whole_weight_items: float
    whole_activation_items: float


def halo_items(layer: Layer) -> tuple[int, int]:
    """Items of input and of output gradient that a part of the width needs from a neighbour, for one sample."""
    if not layer.kernel or layer.kernel[0] < 2:
        return 0, 0
    columns = (layer.kernel[0] - 1) // 2
    return columns * layer.input[0] * prod(layer.input[2:]), columns * layer.output[0] * prod(layer.output[2:])


def _local(layers: Sequence[Layer]) -> tuple[bool, ...]:
    """True up to the first layer that reads its whole input at once."""
    whole = [
        layer.kind == "FC" or (layer.kernel != () and layer.kernel == layer.input[1:] and layer.kind != "BNORM")
        for layer in layers
    ]
    first = whole.index(True) if True in whole else len(layers)
    return tuple(index < first for index in range(len(layers)))


def _or_else(given: Sequence[float | None], otherwise: np.ndarray) -> np.ndarray:
    return np.array([other if value is None else value for value, other in zip(given, otherwise, strict=True)], float)
