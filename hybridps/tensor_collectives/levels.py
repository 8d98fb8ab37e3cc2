"""The levels of a group: the vectors of a rank, the ranks of a node, the nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from hybridps.codecs import codec_of
from hybridps.errors import LayoutError
from hybridps.memory import private_memory
from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives import kernels
from hybridps.tensor_collectives.between_nodes import PATIENCE_SECONDS, Lane, Steps, Talk
from hybridps.tensor_collectives.choice import Choice, Choices, Chooser
from hybridps.tensor_collectives.node import Node
from hybridps.tensor_collectives.tensor import TENSOR_DTYPES, Rows, Tensor
from hybridps.tensor_collectives.topology import Topology


class Levels:
    """The nodes of a group, and memory in which the collectives of the group are fastest.

    `nodes`: the number of each rank's node, in rank order. Every rank of `group` must make its Levels, and its tensors,
    in the same order. Where the ranks of a node cannot share memory, `note` gives the reason, and the group works
    without. `wire`: the codec for sums of float32 and float64 between nodes, 'exact' or 'float16'. Sums are added in
    full precision, and all nodes get the same bits. `chooser`: which algorithm for which size (default: the built-in
    table). `on_choice` is called with each choice when it is used for the first time.
    """

    def __init__(
        self,
        group: Group,
        nodes: Sequence[int],
        deadline_seconds: float = 600.0,
        wire: str = "exact",
        chooser: Chooser | None = None,
        on_choice: Callable[[Choice], None] = lambda choice: None,
    ) -> None:
        self.group = group
        self.note = ""
        self.deadline_seconds = deadline_seconds
        self.topology = topology = Topology.of(nodes, group.rank)
        self.one_node = topology.one_node
        self._bytes_moved = 0
        self._choices = Choices(chooser or Chooser(group.size, len(topology.members)), on_choice)
        # A conversation of its own: tensors are made while another thread uses the group.
        self._agreement = group.split(0)
        self._node_group = group.split(topology.node)
        lane = group.split(topology.lanes if topology.lane is None else topology.lane)
        self.lane = Lane(lane, group.rank, topology.peers, deadline_seconds, codec_of(wire), self._moved)
        self._node = self._share(deadline_seconds)

    def tensor(self, length: int, dtype: str, vectors: int = 1) -> Tensor:
        """A tensor of zeros, in memory that all ranks of the node can access. All ranks of the group call it.

        dtype: one of `TENSOR_DTYPES`. `length` and `dtype` must be equal on all ranks (else LayoutError on all); the
        number of vectors may differ. Without shared memory the tensor is private, and `note` says why.
        """
        kind = _dtype(dtype)
        if length < 0 or vectors < 1:
            raise LayoutError(f"a tensor of {vectors} vectors of {length} elements cannot be made")
        counts = self._agree_on(length, kind, vectors)
        array = None if self._node is None else self._rows(self._node, length, kind, counts)
        if array is None:
            return Tensor([private_memory(length * kind.itemsize).view(kind) for _ in range(vectors)])
        here = [counts[rank] for rank in self._neighbours]
        rows = Rows(array.view(kernels.BITS_OF.get(kind.name, kind)), here, sum(counts), self)
        self.node.prepare(rows)
        first, last = rows.of_rank(self.node.rank)
        return Tensor([row[:length] for row in array[first:last]], rows)

    def vote(self, value: int) -> tuple[int, int]:
        """The smallest and the largest `value` over all ranks of the group, the same on every rank.

        `value`: an int64. All ranks call it, in the same order as the collectives. It sleeps after a short spin, so
        that it may wait for a rank that computes for seconds. Raises DeadlineError that names a missing rank.
        """
        if self.group.size == 1:
            return value, value
        self._choices.check_open()
        if self._node is None:
            votes = [int(vote) for vote in self.group.allgather_bytes(b"%d" % value)]
            return min(votes), max(votes)
        try:
            low, high = self._node.vote(value, value)
            if self.one_node:
                return low, high
            if self._node.rank == 0:
                low, high = self.lane.vote(low, high)
            return self._node.vote(low, high, patience_seconds=2 * PATIENCE_SECONDS)
        except BaseException:
            self.give_up()
            raise

    def choose(self, nbytes: int) -> Choice:
        """The algorithm for so many bytes of each vector. Raises GroupError after `give_up`."""
        return self._choices[nbytes]

    def choose_by(self, chooser: Chooser) -> None:
        """Use another table from now on. All ranks of the group call it."""
        self._choices.choose_by(chooser)

    @property
    def chooser(self) -> Chooser:
        return self._choices.chooser

    @property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each node."""
        return self.topology.members

    @property
    def node(self) -> Node:
        """Raises LayoutError where the ranks of a node share no memory."""
        if self._node is None:
            raise LayoutError("the ranks of this node share no memory: " + self.note)
        return self._node

    def count(self, nbytes: int) -> None:
        """Add payload that this rank hands to a collective in shared memory to `bytes_moved`."""
        if self.group.size > 1:
            self._bytes_moved += nbytes

    def run(
        self,
        choice: Choice,
        op: str | None,
        rows: Rows,
        span: tuple[int, int],
        steps_of: Callable[[Talk, int, int], Steps],
        blocks: int = 1,
    ) -> None:
        """Do `steps_of(talk, begin, end)` for each chunk of the elements in `span`, several chunks at a time.

        All ranks of a lane call it with the same `span`; for a rank without a lane the span is empty. The ranks of a
        node meet before the first chunk and after the last. `op`: how `rows.exact` is combined; None if the rows only
        travel. `blocks`: so many blocks of `end - begin` elements together form a chunk. Raises DeadlineError that
        names a missing rank.
        """
        try:
            self.node.meet()
            self.lane.run(choice, op, rows, *span, steps_of, blocks)
            self.node.meet(patience_seconds=2 * PATIENCE_SECONDS)
        except BaseException:
            self.give_up()
            raise

    def combine_(self, rows: Rows, op: str, divisor: int, start: int, stop: int, of_rank: int | None = None) -> None:
        """As `Node.combine_`, on the only node."""
        try:
            self.node.combine_(rows, op, divisor, start, stop, of_rank)
        except BaseException:
            self.give_up()
            raise

    def give_up(self) -> None:
        """Refuse every later operation: it is unknown how far the other ranks got with the last one."""
        self._choices.close()
        if self._node is not None:
            self._node.give_up()

    def part(self, start: int, stop: int, itemsize: int) -> tuple[int, int]:
        """The part of elements `start:stop` that this rank's lane carries; empty without a lane."""
        return self.node.part(start, stop, itemsize, self.topology.lanes)

    @property
    def bytes_moved(self) -> int:
        """Payload bytes that this rank handed to collectives of the group so far; 0 in a group of one."""
        return self.group.bytes_moved + self._bytes_moved

    def close(self) -> None:
        self._agreement.free()
        self._node_group.free()
        self.lane.close()

    @property
    def _neighbours(self) -> tuple[int, ...]:
        """The ranks of this rank's node."""
        return self.topology.members[self.topology.node]

    def _moved(self) -> None:
        self.node.moved()

    def _agree_on(self, length: int, kind: np.dtype, vectors: int) -> list[int]:
        """The number of vectors of each rank. Raises LayoutError, on all ranks, if lengths or dtypes differ."""
        own = msgspec.json.encode((length, kind.name, vectors))
        heard = [msgspec.json.decode(told, type=tuple[int, str, int]) for told in self._agreement.allgather_bytes(own)]
        for rank, other in enumerate(heard):
            if other[:2] != heard[0][:2]:
                raise LayoutError(
                    f"rank {rank} makes a tensor of {other[0]} elements of {other[1]}, rank 0 one of {heard[0][0]} of "
                    f"{heard[0][1]}: they must be alike"
                )
        return [other[2] for other in heard]

    def _rows(self, node: Node, length: int, kind: np.dtype, counts: Sequence[int]) -> np.ndarray | None:
        """Memory for the vectors, on all nodes or on none."""
        array, reason = None, ""
        try:
            array = node.rows(length, kind, [counts[rank] for rank in self._neighbours])
        except LayoutError as error:
            reason = str(error)
        return None if self._agreed_reason(reason) else array

    def _share(self, deadline_seconds: float) -> Node | None:
        """Make the node, on all nodes or on none; `note` then gives the reason."""
        node, reason = None, ""
        try:
            # The memory of a single worker is shared too: its servers may work in it. Between nodes huge pages are
            # worth more.
            node = Node(self._node_group, self._neighbours, deadline_seconds, alone=self.group.size == 1)
        except LayoutError as error:
            reason = str(error)
        return None if self._agreed_reason(reason) else node

    def _agreed_reason(self, own: str) -> str:
        """The first reason of a rank not to share memory, also kept in `note`; empty if no rank has one."""
        reasons = [text.decode() for text in self._agreement.allgather_bytes(own.encode())]
        found = next((reason for reason in reasons if reason), "")
        self.note = self.note or found
        return found


def _dtype(name: str) -> np.dtype:
    if name not in TENSOR_DTYPES:
        raise LayoutError(f"a tensor of dtype {name!r} cannot be reduced: use one of {', '.join(TENSOR_DTYPES)}")
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)
