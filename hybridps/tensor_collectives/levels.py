"""The levels of a group: the vectors of a rank, the ranks of a node, the nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from hybridps.codecs import codec_of
from hybridps.errors import GroupError, LayoutError
from hybridps.memory import private_memory
from hybridps.mpi_groups.group import Group, allgather
from hybridps.tensor_collectives import kernels
from hybridps.tensor_collectives.between_nodes import PATIENCE_SECONDS, Lane, Steps, StepsOf, Talk
from hybridps.tensor_collectives.choice import Choice, Chooser
from hybridps.tensor_collectives.node import Node
from hybridps.tensor_collectives.node.barrier import prepare_for
from hybridps.tensor_collectives.node.node import Reduction, part_of
from hybridps.tensor_collectives.tensor import EXACT, Rows, Tensor, check_dtype
from hybridps.tensor_collectives.topology import Topology

Made = TypeVar("Made")


class Levels:
    """The nodes of a group, and memory in which the collectives of the group are fastest.

    `nodes`: the number of each rank's node, in rank order. Every rank of `group` must make its Levels, and its tensors,
    in the same order. If the ranks of a node cannot share memory, the group works without it, and `note` gives the
    reason. `wire`: the codec for sums of float32 and float64 between nodes: 'exact', 'float16' or 'bfloat16'. Sums are
    computed in full precision, and all nodes get the same bits. `chooser`: chooses the algorithm for each size
    (default: the built-in table). `on_choice` is called with each choice when it is first used.
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
        self.chooser = chooser or Chooser(group.size, len(topology.members))
        self.chosen: dict[int, Choice] = {}
        """The choices for the sizes in use, in bytes; each size is looked up once. A new dict replaces it when the
        choices have changed, and after `give_up`."""
        self._on_choice = on_choice
        self._given_up = False
        # Tensors use a communicator of their own, because they are made while another thread uses the group.
        self._agreement = group.split(0)
        self._node_group = group.split(topology.node)
        lane = group.split(min(topology.local, topology.lanes))
        self.lane = Lane(lane, group.rank, topology.peers, deadline_seconds, codec_of(wire), lambda: self.node.moved())
        self.neighbours = topology.members[topology.node]
        """The ranks of this rank's node, itself included."""
        # A single worker shares its memory too, because servers may work in it. Between nodes, huge pages gain more.
        self._node = self._agreed(
            lambda: Node(self._node_group, self.neighbours, deadline_seconds, alone=group.size == 1)
        )

    def tensor(self, length: int, dtype: str, vectors: int = 1) -> Tensor:
        """Make a tensor of zeros, in memory that all ranks of the node can access. All ranks of the group call this.

        `dtype`: one of `EXACT`. `length` and `dtype` must be equal on all ranks; otherwise LayoutError is raised on all
        of them. The number of vectors may differ. Without shared memory the tensor is private, and `note` says why.
        """
        check_dtype(dtype)
        if dtype == "bfloat16":
            import ml_dtypes  # noqa: F401  (NumPy then knows the name)
        kind = np.dtype(dtype)
        if length < 0 or vectors < 1:
            raise LayoutError(f"a tensor of {vectors} vectors of {length} elements cannot be made")
        counts = self._agree_on(length, kind, vectors)
        here = [counts[rank] for rank in self.neighbours]
        array = None if self._node is None else self._agreed(lambda: self.node.rows(length, kind, here))
        if array is None:
            return Tensor([private_memory(length * kind.itemsize).view(kind) for _ in range(vectors)])
        bits = array.view(kernels.BITS_OF.get(dtype, kind))
        rows = Rows(bits, np.dtype(EXACT[dtype]), here, sum(counts), self)
        prepare_for(rows.array, rows.scratch)
        first, last = rows.of_rank(self.node.rank)
        return Tensor([row[:length] for row in array[first:last]], rows)

    @property
    def shares_memory(self) -> bool:
        """Whether the ranks of a node share memory. The memory for a single tensor may be refused nevertheless."""
        return self._node is not None

    def shared(self, length: int, dtype: str, count: int) -> np.ndarray | None:
        """Make `count` flat arrays of zeros that all ranks of a node share. All ranks give the same arguments.

        Returns None if the ranks cannot share memory; `note` says why.
        """
        if self._node is None:
            return None
        counts = [count if rank == 0 else 0 for rank in range(self.node.size)]
        array = self._agreed(lambda: self.node.rows(length, np.dtype(dtype), counts))
        return None if array is None else array[:, :length]

    def vote(self, value: int) -> tuple[int, int]:
        """Return the smallest and the largest `value` over all ranks of the group, the same on every rank.

        `value`: an int64. All ranks call this, in the same order as the collectives. It sleeps after a short spin, so
        that it may wait for a rank that computes for seconds. Raises DeadlineError that names a missing rank.
        """
        if self.group.size == 1:
            return value, value
        self._check_open()
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

    @property
    def awaited(self) -> int | None:
        """The rank of this node that another thread is waiting for in a vote or collective; None if it is not known."""
        return None if self._node is None else self._node.awaited

    def choose(self, nbytes: int) -> Choice:
        """Return the algorithm for `nbytes` of each vector. Raises GroupError after `give_up`."""
        choice = self.chosen.get(nbytes)
        if choice is None:
            self._check_open()
            choice = self.chooser.of(nbytes)
            if choice not in self.chosen.values():
                self._on_choice(choice)
            self.chosen[nbytes] = choice
        return choice

    def choose_by(self, chooser: Chooser) -> None:
        """Use another table from now on. All ranks of the group call this."""
        self.chooser = chooser
        self.chosen = {}

    @property
    def node(self) -> Node:
        """The node of this rank. Raises LayoutError if its ranks share no memory."""
        if self._node is None:
            raise LayoutError("the ranks of this node share no memory: " + self.note)
        return self._node

    def count(self, nbytes: int) -> None:
        """Add payload that this rank hands to a collective in shared memory to `bytes_moved`."""
        self._bytes_moved += nbytes

    def combine_(
        self,
        rows: Rows,
        choice: Choice,
        op: str,
        start: int,
        stop: int,
        targets: tuple[int, int],
        between: Callable[[Talk, np.ndarray], Steps],
        divisor: float = 1.0,
    ) -> None:
        """Replace elements `start:stop` of some rows of this node by `op` over all vectors, divided by `divisor`.

        `targets`: the first of these rows, and the last + 1. `between`: the operation that combines a chunk over the
        ranks of a lane.
        """
        nbytes = (stop - start) * rows.nbytes_of_element
        if self.one_node:
            self.combine_here_(self.reduction(rows, op, start, stop, targets, divisor), nbytes)
            return
        self.count(nbytes)
        array, code = rows.array, kernels.CODE[op]
        divisor *= rows.total if op == "mean" else 1
        row = rows.row if targets[0] == 0 < targets[1] else None

        def steps_of(talk: Talk, begin: int, end: int) -> Steps:
            total = row[begin:end] if row is not None else talk.scratch.view(rows.exact)[: end - begin]
            kernels.fold(array, code, begin, end, total)
            left = talk.divided_(total, divisor)
            yield from between(talk, total)
            kernels.spread(total, left, array, begin, end, *targets)

        # Each lane has its own part, so that the ranks of a node need not meet between chunks.
        self.run(choice, op, rows, self.part(start, stop, rows.itemsize), steps_of)

    def reduction(
        self, rows: Rows, op: str, start: int, stop: int, targets: tuple[int, int], divisor: float
    ) -> Reduction:
        """Return what `combine_here_` repeats, in a group on one node; its arguments are those of `combine_`."""
        divisor *= rows.total if op == "mean" else 1
        return self.node.reduction(rows, kernels.CODE[op], start, stop, targets, divisor)

    def combine_here_(self, reduction: Reduction, nbytes: int) -> None:
        """Combine rows in a group on one node. After an error, all operations are refused.

        `nbytes`: the payload of this rank. A small allreduce takes a microsecond, and every call in it counts.
        """
        self._bytes_moved += nbytes
        try:
            self._node.combine_(reduction)  # type: ignore[union-attr]
        except BaseException:
            self.give_up()
            raise

    def run(
        self, choice: Choice, op: str | None, rows: Rows, span: tuple[int, int], steps_of: StepsOf, blocks: int = 1
    ) -> None:
        """Run `steps_of(talk, begin, end)` for each chunk of the elements in `span`, several chunks at a time.

        All ranks of a lane call this with the same `span`, which is empty for a rank without a lane. The ranks of a
        node meet before the first chunk and after the last. `op`: the operation that combines `rows.exact`; None if
        rows are only sent. `blocks`: the number of blocks of `end - begin` elements that form a chunk. Raises
        DeadlineError that names a missing rank.
        """
        try:
            self.node.meet()
            self.lane.run(choice, op, rows, *span, steps_of, blocks)
            self.node.meet(patience_seconds=2 * PATIENCE_SECONDS)
        except BaseException:
            self.give_up()
            raise

    def give_up(self) -> None:
        """Refuse every later operation. It is unknown how far the other ranks got with the last one."""
        self._given_up = True
        self.chosen = {}
        if self._node is not None:
            self._node.give_up()

    def part(self, start: int, stop: int, itemsize: int) -> tuple[int, int]:
        """Return the part of elements `start:stop` that this rank's lane carries; empty without a lane."""
        return part_of(self.topology.local, self.topology.lanes, start, stop, itemsize)

    @property
    def bytes_moved(self) -> int:
        """The payload bytes that this rank has handed to collectives of the group so far; 0 in a group of one."""
        return self.group.bytes_moved + self._bytes_moved if self.group.size > 1 else 0

    def close(self) -> None:
        if self._node is not None:
            self._node.leave()
        self._agreement.free()
        self._node_group.free()
        self.lane.close()

    def _check_open(self) -> None:
        if self._given_up:
            raise GroupError("a collective of these Levels was given up, and others may have gone on: make new ones")

    def _agree_on(self, length: int, kind: np.dtype, vectors: int) -> list[int]:
        """Return the number of vectors of each rank. Raises LayoutError, on all ranks, if lengths or dtypes differ."""
        heard = allgather(self._agreement, (length, kind.name, vectors), tuple[int, str, int])
        for rank, other in enumerate(heard):
            if other[:2] != heard[0][:2]:
                raise LayoutError(
                    f"rank {rank} makes a tensor of {other[0]} elements of {other[1]}, rank 0 one of {heard[0][0]} of "
                    f"{heard[0][1]}: they must be alike"
                )
        return [other[2] for other in heard]

    def _agreed(self, make: Callable[[], Made]) -> Made | None:
        """Return what `make` makes in shared memory; None on all nodes if it fails on one. `note` then says why."""
        made, own = None, ""
        try:
            made = make()
        except LayoutError as error:
            own = str(error)
        reasons = [text.decode() for text in self._agreement.allgather_bytes(own.encode())]
        found = next((reason for reason in reasons if reason), "")
        self.note = self.note or found
        return None if found else made
