"""A lane: ranks of different nodes that exchange their part of the nodes' data, several chunks at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import numpy as np

from hybridps.codecs import CODECS, Codec
from hybridps.errors import DeadlineError
from hybridps.mpi_groups.group import LOOK_SECONDS, Group, Transfer
from hybridps.tensor_collectives import kernels
from hybridps.tensor_collectives.between_nodes.halving_doubling import halving_doubling
from hybridps.tensor_collectives.between_nodes.talk import Steps, Talk
from hybridps.tensor_collectives.choice import Choice
from hybridps.tensor_collectives.tensor import GROUP_OPERATION, Rows

PATIENCE_SECONDS = 1.0
"""How long the ranks of a lane exchange signs of life after a deadline, to find out which rank is missing."""

UNDER_WAY = 4
"""The number of chunks in transfer at a time. While some are in transfer, the node combines another."""

HELLO = (1 << 15) - 1
"""The tag of a sign of life after a deadline. Chunks have smaller tags."""

SPIN_SECONDS = 50e-6
"""How long a vote spins before it sleeps."""

CROWDED_SECONDS = 0.2e-3
"""A core is crowded if other threads run for longer when this thread lets them."""

NAP_SECONDS, NAPPING_SECONDS = 0.1e-3, 20e-3
"""On a crowded core, how long a collective sleeps between two looks at its transfers, and for how long it does so."""

StepsOf = Callable[[Talk, int, int], Steps]
"""The operation on the chunk of elements `begin:end`."""


class Lane:
    """One rank's connection with the other ranks of its lane.

    `peers`: the ranks of the lane, as numbers in the group. `name`: this rank's number in the group. `codec`: how sums
    are encoded between nodes. `moved`: called whenever a transfer has completed.
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
        self._crowded_until = 0.0
        """On the monotonic clock."""
        self._talks: dict[int, list[Talk]] = {}
        """The talks, by the size of their chunks in bytes."""
        codec.prepare()
        # Compile this now, while no other rank waits for a vote.
        kernels.accumulate_(np.zeros(0, np.int64), np.zeros(0, np.int64), kernels.MAX)

    def run(
        self, choice: Choice, op: str | None, rows: Rows, start: int, stop: int, steps_of: StepsOf, blocks: int
    ) -> None:
        """Run `steps_of(talk, begin, end)` for the chunks of elements `start:stop`. See `Levels.run`."""
        dtype = rows.array.dtype if op is None else rows.exact
        step = max(1, choice.chunk_bytes // dtype.itemsize // blocks)
        # Only sums of floats use a codec. Rows of bits are rounded once, at the end.
        encoded = op in ("sum", "mean") and rows.array.dtype.kind == "f"
        codec = (rows.codec or self._codec) if encoded else CODECS["exact"]
        talks = self._talks_of(step * blocks * dtype.itemsize)
        for talk in talks:
            talk.op, talk.codec = GROUP_OPERATION[op or "sum"], codec
        self._run([(begin, min(begin + step, stop)) for begin in range(start, stop, step)], talks, steps_of)

    def vote(self, low: int, high: int) -> tuple[int, int]:
        """Return the smallest `low` and the largest `high` over the ranks of the lane. It sleeps after a short spin."""
        extremes = np.array([high, ~low], np.int64)  # the complement reverses the order and cannot overflow
        talk = self._talks_of(extremes.nbytes)[0]
        talk.op, talk.codec = "max", CODECS["exact"]
        self._run([(0, 2)], [talk], lambda talk, begin, end: halving_doubling(talk, extremes), asleep=True)
        return ~int(extremes[1]), int(extremes[0])

    def close(self) -> None:
        self._talks.clear()
        self.group.free()

    def _talks_of(self, nbytes: int) -> list[Talk]:
        talks = self._talks.get(nbytes)
        if talks is None:
            talks = self._talks[nbytes] = [Talk(self.group, nbytes) for _ in range(UNDER_WAY)]
        return talks

    def _run(
        self, chunks: Sequence[tuple[int, int]], talks: Sequence[Talk], steps_of: StepsOf, asleep: bool = False
    ) -> None:
        """Run `steps_of(talk, begin, end)` for each chunk, with as many chunks under way as there are talks.

        While the transfers of one chunk are under way, other chunks proceed. Raises DeadlineError if no chunk has
        proceeded for `deadline_seconds`.
        """
        coming = enumerate(chunks)

        def conversation(talk: Talk) -> Steps:
            for number, (begin, end) in coming:
                talk.tag = number % HELLO
                yield from steps_of(talk, begin, end)
                yield ()

        waiting = [conversation(talk) for talk, _ in zip(talks, chunks, strict=False)]
        active: list[tuple[Steps, tuple[Transfer, ...]]] = []
        last = looked = time.monotonic()
        self.group.begin()
        while active or waiting:
            going, progress = [], bool(waiting)
            for steps, transfers in active:
                following: tuple[Transfer, ...] | None = transfers
                if all(done() for done in transfers):
                    progress = True
                    following = next(steps, None)
                if following is not None:
                    going.append((steps, following))
            if waiting:  # start one chunk a turn, so that the first one proceeds while others begin
                going.append((waiting.pop(), ()))
            active = going
            if progress:
                last = time.monotonic()
                self._moved()
            elif (waited := time.monotonic() - last) > self.deadline_seconds:
                raise self._late()
            elif last + waited > looked + LOOK_SECONDS:
                looked = last + waited
                self.group.check_left("a collective between nodes")
            elif asleep and waited > SPIN_SECONDS:
                time.sleep(min(waited / 10, 0.001))
            else:
                self._let_others_run(last + waited)

    def _let_others_run(self, now: float) -> None:
        """Let other threads of this core run, if there are any.

        On a crowded core this thread would get the core back after milliseconds if it only yielded, and soon after it
        has slept. On others, sleep would cost time.
        """
        if now < self._crowded_until:
            time.sleep(NAP_SECONDS)
            return
        os.sched_yield()
        if time.monotonic() > now + CROWDED_SECONDS:
            self._crowded_until = now + NAPPING_SECONDS

    def _late(self) -> DeadlineError:
        """Return the error that names the ranks of the lane that send no sign of life within `PATIENCE_SECONDS`."""
        others = [rank for rank in range(self.group.size) if rank != self.group.rank]
        told, heard = np.zeros(1, np.uint8), np.zeros(self.group.size, np.uint8)
        listening = {rank: self.group.receive(heard[rank : rank + 1], rank, HELLO) for rank in others}
        said = [self.group.send(told, rank, HELLO) for rank in others]
        end = time.monotonic() + PATIENCE_SECONDS
        while listening and time.monotonic() < end:
            listening = {rank: came for rank, came in listening.items() if not came()}
            _ = [sent() for sent in said]
            time.sleep(0.001)
        who = f"rank {' and '.join(str(self.peers[rank]) for rank in listening)}" if listening else "a rank"
        return DeadlineError(
            f"{who} did not reach a collective of rank {self.name}, between nodes, within {self.deadline_seconds:g} s"
        )
