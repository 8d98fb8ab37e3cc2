"""The conventions of the program that the ParaDL authors published, where they differ from their paper.

The program counts whole iterations. It has one time for the network, without separate updates, which it divides by its
own count of operations. Its totals of x and y leave out ReLU and BatchNorm, and its weights have no bias. It uses the
links of ABCI, whatever the platform file says, and splits only the layers of the mask. The tests compare these
functions with the program's output for some cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import ceil, prod

import msgspec
import numpy as np

from hybridps.oracle.machines import ABCI, Link, Machine
from hybridps.oracle.networks import Layer
from hybridps.oracle.paradl import paper
from hybridps.oracle.paradl.costs import CONGESTION, GRADIENTS, LAYERWISE, POINT_TO_POINT, Costs
from hybridps.oracle.paradl.work import Times, Work, halo_items, times_of

ABCI_LEAF_PES = 68
PLX_SWITCH_SECONDS = 110e-9
IB_SWITCH_SECONDS = 90e-9


class PublishedWork(Work):
    """The counts of the program. Its `mask` is never None."""

    @cached_property
    def times(self) -> Times:
        """The network's time per sample, divided by `operations`."""
        counts = np.array([operations(layer) for layer in self.network.layers], float)
        total = self.network.seconds_per_sample
        if total is None:
            timed = times_of(self.network, self.machine).passes_seconds.sum()
            total = timed if self.network.is_timed else counts.sum() / self.machine.speed_flops
        none = np.zeros(len(counts))
        return Times(counts / counts.sum() * total, none, none)

    @cached_property
    def activation_items(self) -> float:
        counted = [layer.kind not in ("RELU", "BNORM") for layer in self.network.layers]
        return float(self.activations[counted].sum())

    @cached_property
    def weights(self) -> np.ndarray:
        return np.array([layer.matrix_items for layer in self.network.layers], float)

    @property
    def is_gathered(self) -> np.ndarray:
        return np.ones(len(self.network.layers), bool)

    def iterations(self, batch: int) -> float:
        return ceil(self.network.samples / batch)

    def samples(self, copies: int) -> float:
        return ceil(self.network.samples / copies)


def as_published(work: Work) -> PublishedWork:
    """Return the work as the program counts it. Without a mask it splits the convolutions, like the published masks."""
    mask = work.mask or tuple(layer.kind == "CONV" for layer in work.network.layers)
    return PublishedWork(work.network, _with_links_of_abci(work.machine), mask, work.bytes_per_item)


def weights_split(work: Work, pes: int, batch: int) -> Costs:
    """Filter and channel. For the memory, the program divides the split weights by p twice; so does this function."""
    weights = work.by_weights.sum(work.weights, pes) / pes
    costs = paper.weights_split(work, pes, batch)
    return replace(costs, memory_bytes=work.memory_bytes(batch * work.activation_items, weights))


def data_filter(work: Work, pes: int, batch: int) -> Costs:
    """Filter in a node, and data between nodes: whole gradients, over links that 2 p2 flows share."""
    inside, nodes = paper.nodes_of(work, pes)
    alone, congestion = paper.between_nodes(work, pes, nodes, work.weight_bytes, flows=2 * inside)
    costs, iterations = paper.data_filter(work, pes, batch), work.iterations(batch)
    gradients = {GRADIENTS: iterations * alone, CONGESTION: iterations * congestion}
    return replace(costs, communication_seconds={**costs.communication_seconds, **gradients})


def spatial(work: Work, pes: int, batch: int) -> Costs:
    """Spatial. Messages pass through the host's memory. Halos have one row, for as many samples as memory holds."""
    layers, split, seconds = work.network.layers, work.by_space, work.times.passes_seconds
    link = _without_direct_access(work.machine, pes)
    activations = _activation_items(layers, np.where(split.mask, pes, 1).tolist())
    fitting = (work.machine.memory_bytes / work.bytes_per_item / 2 - work.weight_items) / activations
    rows = [
        (layer.kernel[0] - 1) // 2 * size * fitting * work.bytes_per_item
        for layer in _with_halos(work)
        for size in (layer.output[1], layer.input[1])
    ]
    at_end = batch * layers[_end(work)].output_items * work.bytes_per_item
    gradients = link.allreduce_seconds(pes, work.weight_bytes)
    return Costs(
        work.network.samples * split.sum(seconds, pes),
        0.0,
        work.memory_bytes(batch * activations, work.weight_items),
        {
            POINT_TO_POINT: work.iterations(batch) * sum(2 * link.message_seconds(row) for row in rows),
            LAYERWISE: work.iterations(batch) * 2 * (pes - 1) * link.message_seconds(at_end / pes),
            GRADIENTS: work.network.samples / batch * gradients,
        },
        redundant_seconds=work.network.samples * split.whole(seconds),
        replicated_bytes=2 * work.weight_bytes,
    )


def data_spatial(work: Work, pes: int, batch: int) -> Costs:
    """Spatial in a node through the host's memory, and data between nodes. Layers after the split are not counted."""
    iterations, (inside, nodes) = work.iterations(batch), paper.nodes_of(work, pes)
    micro, end = batch / nodes, _end(work)
    parts = np.where(work.by_space.mask, inside, 1)[: end + 1]
    activations = _activation_items(work.network.layers[: end + 1], parts.tolist())
    link = _staging(work.machine)
    halos = [micro * halo_items(layer)[0] * work.bytes_per_item for layer in _with_halos(work)]
    halo = sum(4 * link.shared(2 * inside).message_seconds(nbytes) for nbytes in halos)
    at_end = micro * work.network.layers[end].output_items * work.bytes_per_item
    gather = 2 * (inside - 1) * link.shared(2).message_seconds(at_end / inside)
    local = work.machine.link(inside).allreduce_seconds(inside, work.weight_bytes)
    alone, congestion = paper.between_nodes(work, pes, nodes, work.weight_bytes, flows=2 * inside)
    return Costs(
        work.samples(nodes) * float((work.times.passes_seconds[: end + 1] / parts).sum()),
        0.0,
        work.memory_bytes(micro * activations, work.weight_items),
        {
            POINT_TO_POINT: iterations * halo,
            LAYERWISE: iterations * gather,
            GRADIENTS: iterations * (local + alone),
            CONGESTION: iterations * congestion,
        },
        replicated_bytes=2 * work.weight_bytes,
    )


def operations(layer: Layer) -> int:
    """Return the program's count for one sample: twice the forward pass, and one for each weight.

    It counts a convolution as 2 C F K K Wy Hy, pooling as C F K K Wy Hy, and a fully connected layer as C F K K.
    """
    if layer.kind in ("MPOOL", "APOOL"):
        forward = layer.input[0] * prod(layer.kernel) * layer.output_items
    elif layer.kind == "FC":
        forward = layer.matrix_items
    else:
        forward = layer.forward_flops if layer.kind in ("CONV", "BNORM", "RELU", "ADD") else 0
    return 2 * forward + layer.matrix_items


def _with_links_of_abci(machine: Machine) -> Machine:
    """Return the machine with the links of ABCI, unless it has several levels of its own."""
    if len(machine.levels) > 1:
        return machine
    return msgspec.structs.replace(machine, levels=ABCI.levels, staging=ABCI.staging)


def _staging(machine: Machine) -> Link:
    """Return the link within a node through the host's memory."""
    return machine.link_of(machine.staging or machine.levels[0])


def _without_direct_access(machine: Machine, pes: int) -> Link:
    """Return the link for accelerators that reach each other only through their hosts."""
    link = machine.link(pes)
    if pes <= machine.pes_per_node:
        return _staging(machine)
    if pes > ABCI_LEAF_PES:
        return link
    latency = 4 * (1e-6 * machine.latency_plx_us + PLX_SWITCH_SECONDS) + IB_SWITCH_SECONDS
    return link._replace(latency_seconds=latency)


def _activation_items(layers: Sequence[Layer], parts: Sequence[int]) -> int:
    """Return the items of inputs and outputs of one part of each layer."""
    return sum(
        ceil(layer.input_items / count) + ceil(layer.output_items / count)
        for layer, count in zip(layers, parts, strict=True)
    )


def _with_halos(work: Work) -> list[Layer]:
    """Return the split layers that need their neighbours."""
    split = [work.network.layers[index] for index in work.by_space.positions]
    return [layer for layer in split if layer.kernel and layer.kernel[0] > 1]


def _end(work: Work) -> int:
    """Return the position of the last split layer."""
    return max(work.by_space.positions, default=0)
