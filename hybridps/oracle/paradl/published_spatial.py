"""Spatial and data+spatial in the conventions of the ParaDL authors' program: through the hosts of the accelerators."""

from __future__ import annotations

from math import ceil, prod

from hybridps.oracle.machines import MICROSECOND, Link, Machine, allreduce_seconds
from hybridps.oracle.paradl.costs import CONGESTION, GRADIENTS, LAYERWISE, POINT_TO_POINT, Costs
from hybridps.oracle.paradl.paper import nodes_of
from hybridps.oracle.paradl.published import abci, between_nodes_seconds, iterations_of, memory_bytes, shared
from hybridps.oracle.paradl.published_counts import layer_seconds, mask_of, totals_of
from hybridps.oracle.paradl.work import Work

ABCI_LEAF_PES = 68
PLX_SWITCH_SECONDS = 110e-9
IB_SWITCH_SECONDS = 90e-9


def spatial(work: Work, pes: int, batch: int) -> Costs:
    """Messages go through the host's memory; halos are for as many samples as memory would hold, one row each."""
    totals, layers = totals_of(work.network, work.machine, work.mask), work.network.layers
    mask = mask_of(work.network, work.mask)
    end = max((index for index, split in enumerate(mask) if split), default=0)
    link = _without_direct_access(abci(work.machine), pes)
    activations = sum(
        ceil(layer.input_items / parts) + ceil(layer.output_items / parts)
        for layer, parts in zip(layers, (pes if split else 1 for split in mask), strict=True)
    )
    fitting = (work.machine.memory_bytes / work.bytes_per_item / 2 - totals.weight_items) / activations
    rows = [
        (layer.kernel[0] - 1) // 2 * size * fitting * work.bytes_per_item
        for layer, split in zip(layers, mask, strict=True)
        if split and layer.kernel and layer.kernel[0] > 1
        for size in (layer.output[1], layer.input[1])
    ]
    at_end = batch * layers[end].output_items * work.bytes_per_item
    whole = totals.seconds - totals.split_seconds
    gradients = allreduce_seconds(link, pes, totals.weight_items * work.bytes_per_item)
    return Costs(
        work.network.samples * (totals.split_seconds / pes + whole),
        0.0,
        memory_bytes(work, batch, activations, totals.weight_items),
        {
            POINT_TO_POINT: iterations_of(work, batch) * sum(2 * link.message_seconds(row) for row in rows),
            LAYERWISE: iterations_of(work, batch) * 2 * (pes - 1) * link.message_seconds(at_end / pes),
            GRADIENTS: work.network.samples / batch * gradients,
        },
        redundant_seconds=work.network.samples * whole,
        replicated_bytes=2 * work.bytes_per_item * totals.weight_items,
    )


def data_spatial(work: Work, pes: int, batch: int) -> Costs:
    """Spatial in a node through the host's memory, data between nodes. Layers behind the split count for nothing."""
    iterations, (inside, nodes) = iterations_of(work, batch), nodes_of(work, pes)
    micro = batch / nodes
    layers, mask, seconds = work.network.layers, mask_of(work.network, work.mask), layer_seconds(work)
    end = max((index for index, split in enumerate(mask) if split), default=0)
    parts = [inside if split else 1 for split in mask[: end + 1]]
    passes = sum(second / part for second, part in zip(seconds, parts, strict=False))
    activations = sum(
        ceil(layer.input_items / part) + ceil(layer.output_items / part)
        for layer, part in zip(layers, parts, strict=False)
    )
    links = abci(work.machine)
    staging = links.link_of(links.staging or links.levels[0])
    halo = _halo_seconds(work, mask, shared(staging, 2 * inside), micro)
    at_end = micro * layers[end].output_items * work.bytes_per_item
    gather = 2 * (inside - 1) * shared(staging, 2).message_seconds(at_end / inside)
    totals = totals_of(work.network, work.machine, work.mask)
    local = allreduce_seconds(links.link(inside), inside, totals.weight_items * work.bytes_per_item)
    alone, congestion = between_nodes_seconds(work, links, totals, pes, nodes, 2 * inside)
    return Costs(
        ceil(work.network.samples / nodes) * passes,
        0.0,
        memory_bytes(work, micro, activations, totals.weight_items),
        {
            POINT_TO_POINT: iterations * halo,
            LAYERWISE: iterations * gather,
            GRADIENTS: iterations * (local + alone),
            CONGESTION: iterations * congestion,
        },
        replicated_bytes=2 * work.bytes_per_item * totals.weight_items,
    )


def _without_direct_access(machine: Machine, pes: int) -> Link:
    """The link where accelerators reach each other through their hosts only."""
    link = machine.link(pes)
    if pes <= machine.pes_per_node:
        return machine.link_of(machine.staging or machine.levels[0])
    if pes > ABCI_LEAF_PES:
        return link
    return Link(
        4 * (machine.latency_plx_us * MICROSECOND + PLX_SWITCH_SECONDS) + IB_SWITCH_SECONDS, link.seconds_per_byte
    )


def _halo_seconds(work: Work, mask: tuple[bool, ...], link: Link, micro: float) -> float:
    """Both halos have the size of the input's; a kernel of even size is cut down by one."""
    halos = [
        (layer.kernel[0] - 1) // 2 * layer.input[0] * prod(layer.input[2:]) * micro * work.bytes_per_item
        for layer, split in zip(work.network.layers, mask, strict=True)
        if split and layer.kernel and layer.kernel[0] > 1
    ]
    return sum(4 * link.message_seconds(halo) for halo in halos)
