"""The levels of a group: the vectors of a rank, the ranks of a node, the nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridps.errors import LayoutError
from hybridps.memory import private_memory
from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives.node import Node
from hybridps.tensor_collectives.tensor import GROUP_OPERATION, OPERATIONS, Tensor

CHUNK_BYTES = 4 << 20
"""Between nodes, work is done in chunks of this size: while one lane sends, the others combine."""


class Levels:
    """Memory in which collectives of a group are fastest, and what is known of its nodes.

    `nodes`: the number of each rank's node, in rank order. Every rank of `group` must make its Levels, and
    its tensors, in the same order. Where the ranks of a node cannot share memory, `note` says why, and the
    group works without. `wire`: 'exact', or 'float16' to send sums of float32 and float64 between nodes in half
    precision; they are added in full precision, and all nodes get the same bits.
    """

    def __init__(
        self, group: Group, nodes: Sequence[int], deadline_seconds: float = 600.0, wire: str = "exact"
    ) -> None:
        self.group = group
        self.wire = wire
        self.note = ""
        self._bytes_shared = 0
        self.node: Node | None = None
        self.lane: Group | None = None
        here = [rank for rank, node in enumerate(nodes) if node == nodes[group.rank]]
        self._node_group = group.split(nodes[group.rank])
        sizes = [list(nodes).count(node) for node in sorted(set(nodes))]
        self.lanes = min(sizes)
        self._one_node = len(sizes) == 1
        local = here.index(group.rank)
        # Lane l joins the ranks that are number l on their node: each reduces its part of the node's sum.
        lane = group.split(min(local, self.lanes))
        self._lane_group = lane
        if len(sizes) > 1 and local < self.lanes:
            self.lane = lane
        if max(sizes) > 1:
            self.note = self._share(deadline_seconds)

    def tensor(self, length: int, dtype: str, vectors: int = 1) -> Tensor:
        """A tensor of zeros, in memory that all ranks of the node reach. All ranks of the group call it."""
        kind = np.dtype(dtype)
        if self.node is None:
            return Tensor([private_memory(length * kind.itemsize).view(kind) for _ in range(vectors)])
        rows = self.node.rows(length, kind, vectors)
        mine = rows[self.node.rank * vectors : (self.node.rank + 1) * vectors]
        return Tensor(list(mine), rows, self)

    def allreduce_(self, rows: np.ndarray, op: str, vectors: int, start: int, stop: int) -> None:
        """Combine elements `start:stop` of all rows of all nodes, in place in all of them.

        `rows` are those of a tensor of these Levels. `op`: 'sum', 'mean', 'max' or 'min'.
        """
        if self.node is None:
            raise LayoutError("the ranks of this node share no memory: " + self.note)
        self._bytes_shared += (stop - start) * rows.itemsize * vectors
        divisor = self.group.size * vectors if op == "mean" else 1
        if self._one_node:
            self.node.combine_(rows, op, divisor, start, stop)
            return
        step = CHUNK_BYTES // rows.itemsize
        for begin in range(start, stop, step):
            self._combine_between_nodes_(self.node, rows, op, divisor, begin, min(begin + step, stop))

    @property
    def bytes_moved(self) -> int:
        """Payload bytes that this rank handed to collectives of the group so far; 0 in a group of one."""
        return self.group.bytes_moved + self._bytes_shared

    def close(self) -> None:
        self._node_group.free()
        self._lane_group.free()

    def _combine_between_nodes_(
        self, node: Node, rows: np.ndarray, op: str, divisor: int, start: int, stop: int
    ) -> None:
        node.meet()
        if self.lane is not None:
            first, last = node.part(start, stop, rows.itemsize, self.lanes)
            node.fold_(rows, op, first, last)
            part = rows[0, first:last]
            exact = part.astype(np.float32) if part.dtype == np.float16 else part
            if self.wire == "float16" and exact.dtype.kind == "f":
                _combine_halves_(exact, self.lane, op)
            else:
                self.lane.allreduce_(exact, GROUP_OPERATION[op])
            if divisor > 1:
                np.divide(exact, divisor, out=exact)
            rows[:, first:last] = exact
        node.meet()

    def _share(self, deadline_seconds: float) -> str:
        """Make the node, on all nodes or on none; returns why not."""
        node, why = None, ""
        try:
            node = Node(self._node_group, deadline_seconds)
        except LayoutError as error:
            why = str(error)
        reasons = [text.decode() for text in self.group.allgather_bytes(why.encode())]
        self.node = None if any(reasons) else node
        return next((reason for reason in reasons if reason), "")


def _combine_halves_(part: np.ndarray, lane: Group, op: str) -> None:
    """`part` becomes `op` over the lane's parts, each rounded to float16.

    Every node receives every other one's part: half of the bytes of an exact allreduce for two nodes, as many for
    four.
    """
    half = part.astype(np.float16)
    everyone = np.empty((lane.size, half.size), np.float16)
    lane.allgather(half.view(np.uint8), everyone.reshape(-1).view(np.uint8), [half.nbytes] * lane.size)
    np.copyto(part, everyone[0])
    for other in everyone[1:]:
        OPERATIONS[op](part, other, out=part)
