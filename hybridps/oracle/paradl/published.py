"""The conventions of the program that the ParaDL authors published, where they differ from their paper.

Whole iterations; one time for the network, without updates apart, shared out by its own count of operations; totals of
x and y without ReLU and BatchNorm; weights without bias; the links of ABCI, whatever the platform file says. Only the
layers of the mask are split. What the program prints for some cases is what the tests hold this against.
"""

from __future__ import annotations

from math import ceil

import msgspec

from hybridps.oracle.machines import ABCI, Link, Machine, allreduce_seconds
from hybridps.oracle.paradl.costs import CONGESTION, GRADIENTS, LAYERWISE, Costs
from hybridps.oracle.paradl.paper import nodes_of
from hybridps.oracle.paradl.published_counts import Totals, totals_of
from hybridps.oracle.paradl.work import Work


def serial(work: Work, pes: int, batch: int) -> Costs:
    totals = totals_of(work.network, work.machine, work.mask)
    memory = memory_bytes(work, batch, totals.activation_items, totals.weight_items)
    return Costs(work.network.samples * totals.seconds, 0.0, memory)


def data(work: Work, pes: int, batch: int) -> Costs:
    totals = totals_of(work.network, work.machine, work.mask)
    weight_bytes = totals.weight_items * work.bytes_per_item
    gradients = allreduce_seconds(abci(work.machine).link(pes), pes, weight_bytes)
    return Costs(
        ceil(work.network.samples / pes) * totals.seconds,
        0.0,
        memory_bytes(work, batch / pes, totals.activation_items, totals.weight_items),
        {GRADIENTS: iterations_of(work, batch) * gradients},
        replicated_bytes=2 * weight_bytes,
    )


def weights_split(work: Work, pes: int, batch: int) -> Costs:
    """Filter and channel. The program divides the split weights by p twice for the memory, and so does this."""
    totals = totals_of(work.network, work.machine, work.mask)
    iterations = iterations_of(work, batch)
    whole = totals.seconds - totals.split_seconds
    weights = (totals.split_weight_items / pes + totals.weight_items - totals.split_weight_items) / pes
    return Costs(
        iterations * batch * (totals.split_seconds / pes + whole),
        0.0,
        memory_bytes(work, batch, totals.activation_items, weights),
        {LAYERWISE: iterations * _layerwise_seconds(work, totals, abci(work.machine).link(pes), batch, pes)},
        redundant_seconds=iterations * batch * whole,
        replicated_bytes=2 * work.bytes_per_item * batch * totals.activation_items,
    )


def data_filter(work: Work, pes: int, batch: int) -> Costs:
    """Filter in a node, data between nodes: whole gradients, over links that 2 p2 flows share."""
    totals = totals_of(work.network, work.machine, work.mask)
    iterations, (inside, nodes) = iterations_of(work, batch), nodes_of(work, pes)
    micro = batch / nodes
    whole = totals.seconds - totals.split_seconds
    weights = totals.split_weight_items / inside + totals.weight_items - totals.split_weight_items
    links = abci(work.machine)
    alone, congestion = between_nodes_seconds(work, links, totals, pes, nodes, 2 * inside)
    return Costs(
        iterations * micro * (totals.split_seconds / inside + whole),
        0.0,
        memory_bytes(work, micro, totals.activation_items, weights),
        {
            LAYERWISE: iterations * _layerwise_seconds(work, totals, links.link(inside), micro, inside),
            GRADIENTS: iterations * alone,
            CONGESTION: iterations * congestion,
        },
        redundant_seconds=iterations * micro * whole,
        replicated_bytes=2 * work.bytes_per_item * micro * totals.activation_items,
    )


def abci(machine: Machine) -> Machine:
    """The machine with the links of ABCI, unless it has several levels of its own."""
    if len(machine.levels) > 1:
        return machine
    return msgspec.structs.replace(machine, levels=ABCI.levels, staging=ABCI.staging)


def iterations_of(work: Work, batch: int) -> int:
    return ceil(work.network.samples / batch)


def memory_bytes(work: Work, batch: float, activation_items: float, weight_items: float) -> float:
    return 2 * work.bytes_per_item * (batch * activation_items + weight_items)


def _layerwise_seconds(work: Work, totals: Totals, link: Link, batch: float, parts: int) -> float:
    byte_seconds = batch * totals.gathered_items * work.bytes_per_item * link.seconds_per_byte / parts
    return 3 * (parts - 1) * (link.latency_seconds * totals.gathered_layers + byte_seconds)


def between_nodes_seconds(
    work: Work, links: Machine, totals: Totals, pes: int, nodes: int, flows: int
) -> tuple[float, float]:
    """Seconds of an allreduce between nodes, and the additional seconds because `flows` share the link."""
    message = totals.weight_items * work.bytes_per_item
    link = links.link(pes)
    alone = allreduce_seconds(link, nodes, message)
    return alone, allreduce_seconds(shared(link, work.machine.contention or flows), nodes, message) - alone


def shared(link: Link, flows: float) -> Link:
    return link._replace(seconds_per_byte=link.seconds_per_byte * flows)
