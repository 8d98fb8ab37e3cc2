"""The equations of the ParaDL paper (Kahira et al., HPDC 2021), one function for each strategy.

They are for an epoch of D samples with global batch B on p PEs. Memory has a factor 2 for the gradients of activations
and weights. (a, b) is the link at the distance of the PEs that communicate. Hybrids split each sample over the p2 PEs
of a node, and have a copy of the network on each of p1 nodes.
"""

from __future__ import annotations

from hybridps.oracle.machines import Link
from hybridps.oracle.paradl.costs import CONGESTION, GRADIENTS, LAYERWISE, POINT_TO_POINT, Costs
from hybridps.oracle.paradl.pipeline import largest_of_parts
from hybridps.oracle.paradl.work import Split, Work, halo_items


def serial(work: Work, pes: int, batch: int) -> Costs:
    """D sum(FW + BW) + (D / B) sum WU; 2 d sum(B (x + y) + w)."""
    return data(work, 1, batch)


def data(work: Work, pes: int, batch: int) -> Costs:
    """(D / p) sum(FW + BW) + (D / B) sum WU; an allreduce of the gradients in each iteration."""
    iterations = work.iterations(batch)
    return Costs(
        work.samples(pes) * work.passes_seconds,
        iterations * work.update_seconds,
        work.memory_bytes(batch / pes * work.activation_items, work.weight_items),
        {GRADIENTS: iterations * work.machine.link(pes).allreduce_seconds(pes, work.weight_bytes)},
        replicated_bytes=2 * work.weight_bytes if pes > 1 else 0.0,
    )


def spatial(work: Work, pes: int, batch: int) -> Costs:
    """Compute as in `data`; an allreduce, and halos: 2 (D / B) sum(2 a + B (halo x + halo dL/dy) d b)."""
    return _split_by_space(work, pes, pes, batch)


def data_spatial(work: Work, pes: int, batch: int) -> Costs:
    """Halos inside a node, an allgather at the end of the split and its reverse on the way back, an allreduce inside
    the node, then one between nodes. This is our reconstruction.
    """
    end = work.by_space.positions[-1] if work.by_space.positions else -1
    layers = work.network.layers
    gathered = layers[end].output_items if 0 <= end < len(layers) - 1 else 0
    return _split_by_space(work, pes, nodes_of(work, pes)[0], batch, gathered)


def layer(work: Work, pes: int, batch: int, segments: int) -> Costs:
    """A pipeline of p parts and S segments: D (p + S - 1) / S (max FW_g + max BW_g) + (D / B) max WU_g.

    Communication: 2 D (p + S - 2) / B max(a + (B / S) y_g d b).
    """
    iterations = work.iterations(batch)
    largest = largest_of_parts(work, pes, batch)
    pass_seconds = largest.forward_seconds + largest.backward_seconds
    passes = work.network.samples * (pes + segments - 1) / segments * pass_seconds
    sent = work.machine.link(pes).message_seconds(batch / segments * largest.cut_items * work.bytes_per_item)
    return Costs(
        passes,
        iterations * largest.update_seconds,
        largest.memory_bytes,
        {POINT_TO_POINT: 2 * iterations * (pes + segments - 2) * sent if pes > 1 else 0.0},
        idle_seconds=passes - work.samples(pes) * work.passes_seconds,
    )


def weights_split(work: Work, pes: int, batch: int) -> Costs:
    """Filter and channel: after each split layer, an allgather forward and an allreduce backward.

    3 (D / B) (p - 1) sum over l < G of (a + B y d b / p).
    """
    return _split_by_weights(work, pes, pes, batch)


def data_filter(work: Work, pes: int, batch: int) -> Costs:
    """Filter inside a node, and data between nodes. Each PE exchanges the gradients of its part of the weights."""
    return _split_by_weights(work, pes, nodes_of(work, pes)[0], batch)


def nodes_of(work: Work, pes: int) -> tuple[int, int]:
    """Return the p2 PEs inside a node and the p1 nodes of a hybrid. p must be p1 p2, which `stops` checks."""
    inside = min(pes, work.machine.pes_per_node)
    return inside, -(-pes // inside)


def between_nodes(work: Work, pes: int, nodes: int, message_bytes: float, flows: float) -> tuple[float, float]:
    """Return the seconds of an allreduce between nodes, and the additional seconds because `flows` share the link.

    The `contention` of the machine, if given, replaces `flows`.
    """
    link = work.machine.link(pes)
    alone = link.allreduce_seconds(nodes, message_bytes)
    return alone, link.shared(work.machine.contention or flows).allreduce_seconds(nodes, message_bytes) - alone


def _split_by_weights(work: Work, pes: int, inside: int, batch: int) -> Costs:
    """Return the costs if layers are split by weights over the `inside` PEs of a node, which may be all PEs."""
    nodes, iterations, split = -(-pes // inside), work.iterations(batch), work.by_weights
    micro, weights = batch / nodes, split.sum(work.weights, inside)
    gradients, congestion = between_nodes(work, pes, nodes, weights * work.bytes_per_item, flows=1)
    layerwise = _layerwise_seconds(work, split, work.machine.link(inside), micro, inside)
    return Costs(
        iterations * micro * split.sum(work.times.passes_seconds, inside),
        iterations * split.sum(work.times.update_seconds, inside),
        work.memory_bytes(micro * work.activation_items, weights),
        {LAYERWISE: iterations * layerwise, GRADIENTS: iterations * gradients, CONGESTION: iterations * congestion},
        redundant_seconds=iterations * micro * split.whole(work.times.passes_seconds) if inside > 1 else 0.0,
        replicated_bytes=work.memory_bytes(micro * work.activation_items, 0) if inside > 1 else 0.0,
    )


def _split_by_space(work: Work, pes: int, inside: int, batch: int, gathered_items: int = 0) -> Costs:
    """Do the same for a split by space. At the end of the split, `gathered_items` of each sample are gathered."""
    nodes, iterations, split = -(-pes // inside), work.iterations(batch), work.by_space
    micro, link = batch / nodes, work.machine.link(inside)
    halos = _halo_seconds(work, split, link, micro) if inside > 1 else 0.0
    at_end = micro * gathered_items * work.bytes_per_item
    gather = 2 * link.allgather_seconds(inside, at_end / inside) if gathered_items else 0.0
    gradients, congestion = between_nodes(work, pes, nodes, work.weight_bytes, flows=1)
    gradients += link.allreduce_seconds(inside, work.weight_bytes)
    return Costs(
        work.samples(nodes) * split.sum(work.times.passes_seconds, inside),
        iterations * work.update_seconds,
        work.memory_bytes(micro * split.sum(work.activations, inside), work.weight_items),
        {
            POINT_TO_POINT: iterations * halos,
            LAYERWISE: iterations * gather,
            GRADIENTS: iterations * gradients,
            CONGESTION: iterations * congestion,
        },
        redundant_seconds=work.samples(nodes) * split.whole(work.times.passes_seconds) if inside > 1 else 0.0,
        replicated_bytes=2 * work.weight_bytes if pes > 1 else 0.0,
    )


def _layerwise_seconds(work: Work, split: Split, link: Link, batch: float, parts: int) -> float:
    """Return 3 (p - 1) sum(a + B y d b / p) over the split layers that are gathered, except the last layer."""
    layers = work.network.layers
    gathered = [layers[index] for index in split.positions if index < len(layers) - 1 and work.is_gathered[index]]
    byte_seconds = batch * sum(each.output_items for each in gathered) * work.bytes_per_item * link.seconds_per_byte
    return 3 * (parts - 1) * (len(gathered) * link.latency_seconds + byte_seconds / parts)


def _halo_seconds(work: Work, split: Split, link: Link, batch: float) -> float:
    """Return 2 sum(2 a + B (halo x + halo dL/dy) d b) over the split layers that need their neighbours."""
    halos = [sum(halo_items(work.network.layers[index])) for index in split.positions]
    needed = [items for items in halos if items]
    byte_seconds = batch * sum(needed) * work.bytes_per_item * link.seconds_per_byte
    return 2 * (2 * len(needed) * link.latency_seconds + byte_seconds)
