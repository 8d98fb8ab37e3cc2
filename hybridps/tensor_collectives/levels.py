"""The levels of a group: the vectors of a rank, the ranks of a node, the nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from hybridps.errors import DeadlineError, GroupError, HybridPSError, LayoutError
from hybridps.memory import private_memory
from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives import kernels
from hybridps.tensor_collectives.between_nodes import halving_doubling, ring
from hybridps.tensor_collectives.between_nodes.talk import Steps, Talk, run, silent_ranks
from hybridps.tensor_collectives.choice import Choice, Chooser
from hybridps.tensor_collectives.node import Node
from hybridps.tensor_collectives.tensor import GROUP_OPERATION, TENSOR_DTYPES, Rows, Tensor

PATIENCE_SECONDS = 1.0
"""After a deadline, for the others to say that they wait too: so the one that is missing is told."""

UNDER_WAY = 4
"""Chunks under way between nodes at a time: while some are sent, another is combined in the node."""


class Levels:
    """Memory in which collectives of a group are fastest, and what is known of its nodes.

    `nodes`: the number of each rank's node, in rank order. Every rank of `group` must make its Levels, and
    its tensors, in the same order. Where the ranks of a node cannot share memory, `note` says why, and the
    group works without. `wire`: 'exact', or 'float16' to send sums of float32 and float64 between nodes in half
    precision; they are added in full precision, and all nodes get the same bits. `chooser`: which algorithm for which
    size (default: the built-in table); `on_choice` hears of each choice when it is used first.
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
        self.wire = wire
        self.deadline_seconds = deadline_seconds
        self.note = ""
        self._bytes_moved = 0
        members = {node: [rank for rank, other in enumerate(nodes) if other == node] for node in nodes}
        self.members = [members[node] for node in sorted(members)]
        """The ranks of each node."""
        self.one_node = len(members) == 1
        self.number = sorted(members).index(nodes[group.rank])
        """Of this rank's node."""
        self.chooser = chooser or Chooser(group.size, len(members))
        self._given_up = False
        self._choices: dict[int, Choice] = {}
        """By bytes, of those that were asked for."""
        self._on_choice = on_choice
        self._chosen: set[Choice] = set()
        self._talks: dict[int, list[Talk]] = {}
        mine = self.members[self.number]
        local = mine.index(group.rank)
        self.lanes = min(len(ranks) for ranks in self.members)
        """Lane l joins the ranks that are number l on their nodes: each carries its part of what the node has."""
        self.peers = sorted(ranks[local] for ranks in self.members) if local < self.lanes else []
        """The ranks of this rank's lane; none where its node has more ranks than others."""
        # A conversation of its own: tensors are made while another thread uses the group.
        self._agreement = group.split(0)
        self._node_group = group.split(self.number)
        self._lane = group.split(min(local, self.lanes))
        self._node = self._share(mine, deadline_seconds)

    def tensor(self, length: int, dtype: str, vectors: int = 1) -> Tensor:
        """A tensor of zeros, in memory that all ranks of the node reach. All ranks of the group call it.

        dtype: one of `TENSOR_DTYPES`. `length` and `dtype` must be equal on all ranks (else LayoutError on all); the
        number of vectors may differ. Without memory that can be shared `note` says so.
        """
        kind = _dtype(dtype)
        if length < 0 or vectors < 1:
            raise LayoutError(f"a tensor of {vectors} vectors of {length} elements cannot be made")
        counts = self._agree_on(length, kind, vectors)
        array = None if self._node is None else self._rows(self._node, length, kind, counts)
        if array is None:
            return Tensor([private_memory(length * kind.itemsize).view(kind) for _ in range(vectors)])
        here = [counts[rank] for rank in self.members[self.number]]
        rows = Rows(array.view(kernels.BITS_OF.get(kind.name, kind)), here, sum(counts), self)
        first, last = rows.of_rank(self.node.rank)
        return Tensor([row[:length] for row in array[first:last]], rows)

    def choose(self, nbytes: int) -> Choice:
        """The algorithm for so many bytes of each vector."""
        choice = self._choices.get(nbytes)
        if choice is None:
            if self._given_up:
                raise GroupError(
                    "a collective of these Levels was given up, and others may have gone on: make new ones"
                )
            choice = self._choices[nbytes] = self.chooser.of(nbytes)
            if choice not in self._chosen:
                self._chosen.add(choice)
                self._on_choice(choice)
        return choice

    def choose_by(self, chooser: Chooser) -> None:
        """Use another table from now on. All ranks of the group call it."""
        self.chooser = chooser
        self._choices = {}

    @property
    def node(self) -> Node:
        """Raises LayoutError where ranks of a node share no memory."""
        if self._node is None:
            raise LayoutError("the ranks of this node share no memory: " + self.note)
        return self._node

    def place_of(self, rank: int) -> tuple[int, int]:
        """The number of a rank's node, and the rank's number there."""
        number = next(number for number, ranks in enumerate(self.members) if rank in ranks)
        return number, self.members[number].index(rank)

    def in_lane(self, number: int) -> int:
        """Which rank of this rank's lane is on that node."""
        local = self.members[self.number].index(self.group.rank)
        return self.peers.index(self.members[number][local]) if self.peers else 0

    @property
    def even(self) -> bool:
        """Whether all nodes have as many ranks."""
        return all(len(ranks) == self.lanes for ranks in self.members)

    def count(self, nbytes: int) -> None:
        """Payload that this rank hands to a collective in shared memory."""
        if self.group.size > 1:
            self._bytes_moved += nbytes

    def run(
        self,
        choice: Choice,
        op: str | None,
        rows: Rows,
        start: int,
        stop: int,
        steps_of: Callable[[Talk, int, int], Steps],
        blocks: int = 1,
    ) -> None:
        """Do `steps_of(talk, begin, end)` for the chunks of elements `start:stop`, several at a time.

        Called by all ranks of a lane, with the same `start:stop`; a rank without a lane has nothing to do. `op`: what
        combines `rows.exact` (None: the rows as they are only go round). `blocks`: so many blocks of `end - begin`
        elements together are a chunk. Raises DeadlineError that names a rank that is missing.
        """
        dtype = rows.array.dtype if op is None else rows.exact
        step = max(1, choice.chunk_bytes // dtype.itemsize // blocks)
        nbytes = step * blocks * dtype.itemsize
        talks = self._talks.setdefault(nbytes, [])
        if not talks:
            talks += [Talk(self._lane, nbytes) for _ in range(UNDER_WAY)]
        for talk in talks:
            talk.op = GROUP_OPERATION[op or "sum"]
            # A maximum is sent as it is, and what is half already is not rounded twice.
            talk.half = self.wire == "float16" and op in ("sum", "mean") and rows.array.dtype.kind == "f"
        chunks = ((begin, min(begin + step, stop)) for begin in range(start, stop, step))
        try:
            if not run(chunks, talks, steps_of, self.node.moved, self.deadline_seconds):
                raise self._late()
        except BaseException:
            self.give_up()
            raise

    def meet(self, last: bool = False) -> None:
        """The ranks of the node meet before an operation between nodes, and after it (`last`)."""
        try:
            self.node.meet(patience_seconds=2 * PATIENCE_SECONDS if last else 0.0)
        except HybridPSError:
            self.give_up()
            raise

    def combine_(self, rows: Rows, op: str, divisor: int, start: int, stop: int, of_rank: int | None = None) -> None:
        """As `Node.combine_`, on the only node."""
        try:
            self.node.combine_(rows, op, divisor, start, stop, of_rank)
        except HybridPSError:
            self.give_up()
            raise

    def give_up(self) -> None:
        """No operation is done any more: nobody knows how far the others are."""
        self._given_up = True
        self._choices = {}
        if self._node is not None:
            self._node.give_up()

    def part(self, start: int, stop: int, itemsize: int) -> tuple[int, int]:
        """What of elements `start:stop` this rank's lane carries."""
        return self.node.part(start, stop, itemsize, self.lanes)

    @property
    def bytes_moved(self) -> int:
        """Payload bytes that this rank handed to collectives of the group so far; 0 in a group of one."""
        return self.group.bytes_moved + self._bytes_moved

    def close(self) -> None:
        self._talks.clear()
        self._agreement.free()
        self._node_group.free()
        self._lane.free()

    def _late(self) -> DeadlineError:
        missing = [self.peers[rank] for rank in silent_ranks(self._lane, PATIENCE_SECONDS)]
        who = f"rank {' and '.join(map(str, missing))}" if missing else "a rank"
        return DeadlineError(
            f"{who} did not come to a collective of rank {self.group.rank}, between nodes, within "
            f"{self.deadline_seconds:g} s"
        )

    def _agree_on(self, length: int, kind: np.dtype, vectors: int) -> list[int]:
        """The number of vectors of each rank. Raises LayoutError, on all ranks, if the rest is not equal."""
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
        array, why = None, ""
        try:
            array = node.rows(length, kind, [counts[rank] for rank in self.members[self.number]])
        except LayoutError as error:
            why = str(error)
        return None if self._why_not(why) else array

    def _why_not(self, why: str) -> str:
        """The first reason of a rank not to share memory, which `note` tells from now on; empty if there is none."""
        reasons = [text.decode() for text in self._agreement.allgather_bytes(why.encode())]
        found = next((reason for reason in reasons if reason), "")
        self.note = self.note or found
        return found

    def _share(self, mine: Sequence[int], deadline_seconds: float) -> Node | None:
        """Make the node, on all nodes or on none; `note` then says why not."""
        node, why = None, ""
        try:
            # A worker alone with its servers: they may work in its memory. Between nodes huge pages are worth more.
            node = Node(self._node_group, mine, deadline_seconds, alone=self.group.size == 1)
        except LayoutError as error:
            why = str(error)
        return None if self._why_not(why) else node


def _library(talk: Talk, part: np.ndarray) -> Steps:
    """The MPI library's own allreduce, of one chunk after the other."""
    talk.lane.allreduce_(part, talk.op)
    yield from ()


BETWEEN_NODES: dict[str, Callable[[Talk, np.ndarray], Steps]] = {
    "library": _library,
    "ring": ring.allreduce,
    "multi_ring": ring.multi_ring,
    "halving_doubling": halving_doubling.halving_doubling,
}
"""What combines a chunk over the ranks of a lane."""


def _dtype(name: str) -> np.dtype:
    if name not in TENSOR_DTYPES:
        raise LayoutError(f"a tensor of dtype {name!r} cannot be reduced: use one of {', '.join(TENSOR_DTYPES)}")
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)
