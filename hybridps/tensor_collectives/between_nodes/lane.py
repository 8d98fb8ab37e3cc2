"""A lane: ranks of different nodes that exchange their part of the nodes' data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from hybridps.codecs import CODECS, Codec
from hybridps.errors import DeadlineError
from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives import kernels
from hybridps.tensor_collectives.between_nodes.halving_doubling import halving_doubling
from hybridps.tensor_collectives.between_nodes.talk import Steps, Talk, nap, run, silent_ranks, spin
from hybridps.tensor_collectives.choice import Choice
from hybridps.tensor_collectives.tensor import GROUP_OPERATION, Rows

PATIENCE_SECONDS = 1.0
"""How long the ranks of a lane exchange signs of life after a deadline, so that the missing rank can be named."""

UNDER_WAY = 4
"""Chunks in transfer at a time: while some of them travel, the node combines another."""


class Lane:
    """The conversation of one rank with the ranks of its lane.

    `peers`: the ranks of the lane, as numbers in the group; `name`: this rank's own number. `codec`: how sums travel;
    `moved` is called whenever a transfer has completed.
    """

    def __init__(
        self,
        group: Group,
        name: int,
        peers: Sequence[int],
        deadline_seconds: float,
        codec: Codec,
        moved: Callable[[], None],
    ) -> None:
        self.group = group
        self.name = name
        self.peers = peers
        self.deadline_seconds = deadline_seconds
        self._codec = codec
        self._moved = moved
        self._talks: dict[int, list[Talk]] = {}
        """By the size of their chunks in bytes."""
        self._voting: Talk | None = None
        codec.prepare()
        # Compiled now, while nobody waits for a vote.
        kernels.accumulate_(np.zeros(0, np.int64), np.zeros(0, np.int64), kernels.MAX)

    def run(
        self,
        choice: Choice,
        op: str | None,
        rows: Rows,
        start: int,
        stop: int,
        steps_of: Callable[[Talk, int, int], Steps],
        blocks: int,
    ) -> None:
        """Do `steps_of(talk, begin, end)` for the chunks of elements `start:stop`. See `Levels.run`."""
        dtype = rows.array.dtype if op is None else rows.exact
        step = max(1, choice.chunk_bytes // dtype.itemsize // blocks)
        talks = self._talks_of(step * blocks * dtype.itemsize)
        codec = self._codec_for(op, rows)
        for talk in talks:
            talk.op, talk.codec = GROUP_OPERATION[op or "sum"], codec
        self._run(((begin, min(begin + step, stop)) for begin in range(start, stop, step)), talks, steps_of, spin)

    def vote(self, low: int, high: int) -> tuple[int, int]:
        """The smallest `low` and the largest `high` over the ranks of the lane. It waits asleep after a short spin."""
        extremes = np.array([high, ~low], np.int64)  # the complement reverses the order, and cannot overflow
        if self._voting is None:
            self._voting = Talk(self.group, extremes.nbytes)
            self._voting.op = "max"
        self._run([(0, 2)], [self._voting], lambda talk, begin, end: halving_doubling(talk, extremes), nap)
        return ~int(extremes[1]), int(extremes[0])

    def close(self) -> None:
        self._talks.clear()
        self._voting = None
        self.group.free()

    def _talks_of(self, nbytes: int) -> list[Talk]:
        talks = self._talks.get(nbytes)
        if talks is None:
            talks = self._talks[nbytes] = [Talk(self.group, nbytes) for _ in range(UNDER_WAY)]
        return talks

    def _codec_for(self, op: str | None, rows: Rows) -> Codec:
        """Only sums use a lossy codec, and only those of floats: rows of bits are rounded once, in the end."""
        if self._codec.exact or op not in ("sum", "mean") or rows.array.dtype.kind != "f":
            return CODECS["exact"]
        return self._codec

    def _run(
        self,
        chunks: Iterable[tuple[int, int]],
        talks: Sequence[Talk],
        steps_of: Callable[[Talk, int, int], Steps],
        pause: Callable[[float], None],
    ) -> None:
        if not run(chunks, talks, steps_of, self._moved, self.deadline_seconds, pause):
            raise self._late()

    def _late(self) -> DeadlineError:
        missing = [self.peers[rank] for rank in silent_ranks(self.group, PATIENCE_SECONDS)]
        who = f"rank {' and '.join(map(str, missing))}" if missing else "a rank"
        return DeadlineError(
            f"{who} did not come to a collective of rank {self.name}, between nodes, within {self.deadline_seconds:g} s"
        )
