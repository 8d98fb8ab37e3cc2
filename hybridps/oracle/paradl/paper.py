"""The equations of the ParaDL paper (Kahira et al., HPDC 2021), one function for each strategy.

D samples, global batch B, p PEs, per epoch. Memory has a factor 2 for the gradients of activations and weights.
(a, b) is the link at the distance of the PEs that communicate.
"""

from __future__ import annotations

from hybridps.oracle.machines import Link, allgather_seconds, allreduce_seconds
from hybridps.oracle.paradl.costs import CONGESTION, GRADIENTS, LAYERWISE, POINT_TO_POINT, Costs
from hybridps.oracle.paradl.pipeline import largest_of_parts
from hybridps.oracle.paradl.work import Split, Work, halo_items


def serial(work: Work, pes: int, batch: int) -> Costs:
    """D sum(FW + BW) + (D / B) sum WU; 2 d sum(B (x + y) + w)."""
    samples, iterations = _epoch(work, batch)
    return Costs(samples * work.passes_seconds, iterations * work.update_seconds, _memory(work, batch, 1))


def data(work: Work, pes: int, batch: int) -> Costs:
    """(D / p) sum(FW + BW) + (D / B) sum WU; an allreduce of the gradients in each iteration."""
    samples, iterations = _epoch(work, batch)
    gradients = iterations * allreduce_seconds(work.machine.link(pes), pes, work.weight_bytes)
    return Costs(
        samples / pes * work.passes_seconds,
        iterations * work.update_seconds,
        _memory(work, batch / pes, 1),
        {GRADIENTS: gradients},
        replicated_bytes=2 * work.weight_bytes if pes > 1 else 0.0,
    )


def spatial(work: Work, pes: int, batch: int) -> Costs:
    """Compute as data; an allreduce, and halos: 2 (D / B) sum(2 a + B (halo x + halo dL/dy) d b)."""
    _, iterations = _epoch(work, batch)
    link, split = work.machine.link(pes), work.by_space
    return Costs(
        *_split_compute(work, batch, split, pes, 1, update_parts=1),
        _split_memory(work, split, batch, activation_parts=pes),
        {
            GRADIENTS: iterations * allreduce_seconds(link, pes, work.weight_bytes),
            POINT_TO_POINT: iterations * _halo_seconds(work, split, link, batch, pes),
        },
        redundant_seconds=work.network.samples * split.whole_passes_seconds if pes > 1 else 0.0,
        replicated_bytes=2 * work.weight_bytes if pes > 1 else 0.0,
    )


def layer(work: Work, pes: int, batch: int, segments: int) -> Costs:
    """A pipeline of p parts and S segments: D (p + S - 1) / S (max FW_g + max BW_g) + (D / B) max WU_g.

    Communication: 2 D (p + S - 2) / B max(a + (B / S) y_g d b).
    """
    samples, iterations = _epoch(work, batch)
    largest = largest_of_parts(work, pes, batch)
    passes = samples * (pes + segments - 1) / segments * (largest.forward_seconds + largest.backward_seconds)
    link = work.machine.link(pes)
    sent = link.message_seconds(batch / segments * largest.cut_items * work.bytes_per_item)
    return Costs(
        passes,
        iterations * largest.update_seconds,
        largest.memory_bytes,
        {POINT_TO_POINT: 2 * iterations * (pes + segments - 2) * sent if pes > 1 else 0.0},
        idle_seconds=passes - samples / pes * work.passes_seconds,
    )


def weights_split(work: Work, pes: int, batch: int) -> Costs:
    """Filter and channel: after each split layer an allgather forward and an allreduce backward.

    3 (D / B) (p - 1) sum over l < G of (a + B y d b / p).
    """
    _, iterations = _epoch(work, batch)
    split = work.by_weights
    return Costs(
        *_split_compute(work, batch, split, pes, 1, update_parts=pes),
        _split_memory(work, split, batch, weight_parts=pes),
        {LAYERWISE: iterations * _layerwise_seconds(work, split, work.machine.link(pes), batch, pes)},
        redundant_seconds=work.network.samples * split.whole_passes_seconds if pes > 1 else 0.0,
        replicated_bytes=2 * work.bytes_per_item * batch * work.activation_items if pes > 1 else 0.0,
    )


def data_filter(work: Work, pes: int, batch: int) -> Costs:
    """Filter over the p2 PEs of a node, data over the p1 nodes; p2 parts of the gradients are exchanged."""
    _, iterations = _epoch(work, batch)
    split, inside, nodes = work.by_weights, *nodes_of(work, pes)
    link = work.machine.link(inside)
    layerwise = _layerwise_seconds(work, split, link, batch / nodes, inside)
    share = (split.weight_items / inside + split.whole_weight_items) * work.bytes_per_item
    gradients, congestion = _between_nodes(work, pes, nodes, share)
    return Costs(
        *_split_compute(work, batch, split, inside, nodes, update_parts=inside),
        _split_memory(work, split, batch / nodes, weight_parts=inside),
        {
            LAYERWISE: iterations * layerwise,
            GRADIENTS: iterations * gradients,
            CONGESTION: iterations * congestion,
        },
        redundant_seconds=work.network.samples / nodes * split.whole_passes_seconds if inside > 1 else 0.0,
        replicated_bytes=2 * work.bytes_per_item * batch / nodes * work.activation_items if inside > 1 else 0.0,
    )


def data_spatial(work: Work, pes: int, batch: int) -> Costs:
    """Our reconstruction: halos inside a node, an allgather where the split ends and the reverse on the way back,
    an allreduce inside the node, then one between nodes."""
    _, iterations = _epoch(work, batch)
    split, inside, nodes = work.by_space, *nodes_of(work, pes)
    link = work.machine.link(inside)
    halos = _halo_seconds(work, split, link, batch / nodes, inside)
    end = split.positions[-1] if split.positions else -1
    layers = work.network.layers
    gathered = layers[end].output_items if 0 <= end < len(layers) - 1 else 0
    gather = 2 * allgather_seconds(link, inside, batch / nodes * gathered * work.bytes_per_item / inside)
    gradients, congestion = _between_nodes(work, pes, nodes, work.weight_bytes)
    local = allreduce_seconds(link, inside, work.weight_bytes)
    return Costs(
        *_split_compute(work, batch, split, inside, nodes, update_parts=1),
        _split_memory(work, split, batch / nodes, activation_parts=inside),
        {
            POINT_TO_POINT: iterations * halos,
            LAYERWISE: iterations * (gather if gathered else 0.0),
            GRADIENTS: iterations * (local + gradients),
            CONGESTION: iterations * congestion,
        },
        redundant_seconds=work.network.samples / nodes * split.whole_passes_seconds if inside > 1 else 0.0,
        replicated_bytes=2 * work.weight_bytes if pes > 1 else 0.0,
    )


def nodes_of(work: Work, pes: int) -> tuple[int, int]:
    """p2 PEs inside a node and p1 nodes of a hybrid; p must be p1 p2, which `limits` checks."""
    inside = min(pes, work.machine.pes_per_node)
    return inside, -(-pes // inside)


def _epoch(work: Work, batch: float) -> tuple[float, float]:
    """Samples and iterations."""
    return work.network.samples, work.network.samples / batch


def _memory(work: Work, batch: float, weight_parts: int) -> float:
    items = batch * work.activation_items + work.network.weight_items / weight_parts
    return 2 * work.bytes_per_item * items


def _split_compute(
    work: Work, batch: int, split: Split, parts: int, copies: int, update_parts: int
) -> tuple[float, float]:
    """Passes and updates of an epoch: split layers in `parts`, the others as a whole, `copies` batches at a time."""
    samples, iterations = _epoch(work, batch)
    passes = samples / copies * (split.passes_seconds / parts + split.whole_passes_seconds)
    return passes, iterations * (split.update_seconds / update_parts + split.whole_update_seconds)


def _split_memory(work: Work, split: Split, batch: float, *, activation_parts: int = 1, weight_parts: int = 1) -> float:
    activations = split.activation_items / activation_parts + split.whole_activation_items
    weights = split.weight_items / weight_parts + split.whole_weight_items
    return 2 * work.bytes_per_item * (batch * activations + weights)


def _layerwise_seconds(work: Work, split: Split, link: Link, batch: float, parts: int) -> float:
    """3 (p - 1) sum(a + B y d b / p) over the split layers that have weights, without the last layer."""
    last = len(work.network.layers) - 1
    gathered = [index for index in split.positions if index < last and work.network.layers[index].weight_items]
    items = sum(work.network.layers[index].output_items for index in gathered)
    byte_seconds = batch * items * work.bytes_per_item * link.seconds_per_byte / parts
    return 3 * (parts - 1) * (len(gathered) * link.latency_seconds + byte_seconds)


def _halo_seconds(work: Work, split: Split, link: Link, batch: float, parts: int) -> float:
    """2 sum(2 a + B (halo x + halo dL/dy) d b) over the split layers that need their neighbours."""
    halos = [sum(halo_items(work.network.layers[index])) for index in split.positions]
    needed = [items for items in halos if items]
    if parts == 1:
        return 0.0
    byte_seconds = batch * sum(needed) * work.bytes_per_item * link.seconds_per_byte
    return 2 * (2 * len(needed) * link.latency_seconds + byte_seconds)


def _between_nodes(work: Work, pes: int, nodes: int, message_bytes: float) -> tuple[float, float]:
    """Seconds of an allreduce between nodes, and the additional seconds because all PEs of a node share its link."""
    link = work.machine.link(pes)
    alone = allreduce_seconds(link, nodes, message_bytes)
    shared = link._replace(seconds_per_byte=link.seconds_per_byte * (work.machine.contention or 1.0))
    return alone, allreduce_seconds(shared, nodes, message_bytes) - alone
