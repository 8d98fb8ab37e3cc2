"""A trigger in a group: the leader decides, and all of its ranks know."""

from __future__ import annotations

import numpy as np

from hybridps.errors import LateError
from hybridps.memory import Arena, Layout
from hybridps.mpi_groups.group import Group
from hybridps.ps.clocks import BulkSynchronous
from hybridps.ps.rules import Sum
from hybridps.tensor_collectives import Tensor
from hybridps.tiers.tier import Tier
from hybridps.triggers import State, Trigger
from hybridps.triggers.trigger import runs

Spans = list[tuple[int, int]]


class GroupTrigger:
    """When one table communicates. All ranks of the group make the same calls in the same order.

    The leader has the state. Where the step alone decides, or an earlier exchange, no rank needs to be told; else the
    leader broadcasts one byte for each part. `together`: the tier of groups that communicate together or not at all;
    what is due in any of them is due in all, by one small exchange of a table named after this one.
    """

    def __init__(
        self,
        trigger: Trigger,
        group: Group,
        table: str,
        layout: Layout,
        weights: np.ndarray,
        together: Tier | None = None,
    ) -> None:
        """`weights`: flat, the same in all groups.

        Raises what `Tier.register` raises, and LateError for a group that comes to `together` after others have
        voted: they would wait for its vote where it waits for their weights.
        """
        self._trigger = trigger
        self._group = group
        self._edges = trigger.edges(layout)
        self.state: State | None = trigger.start(layout, weights) if trigger.by_step or group.rank == 0 else None
        """On the leader, and on all ranks where the step alone decides."""
        self._decides_ahead = trigger.decides_ahead and together is None
        """Whether each exchange decides when a later one is due, so that `spans` is asked for in these steps only."""
        self._told = np.zeros(self._edges.size - 1, np.uint8)
        self._together = None if trigger.by_step else together
        self._votes_table = f"{table}.due"
        self._votes = Arena(Layout.of("float32", {"due": (self._told.size,), "voted": (1,)}))
        if self._together is not None:
            self._together.register(self._votes_table, self._votes.layout, None, Sum(), BulkSynchronous())
            self._refuse_if_late(self._together, table)

    def spans(self, step: int, weights: np.ndarray) -> Spans:
        """The elements that communicate before the local update of this step; empty if none do."""
        if self._decides_ahead:
            if self.state is not None:
                self.state.measure(step, weights)
            return runs(np.ones(self._told.size, bool), self._edges)
        if not self._trigger.may_be_due(step):
            return []
        if self.state is not None:
            self.state.due(step, weights)
            self._told[:] = self.state.fired
        if self._together is not None:
            self._vote(self._together)
        elif not self._trigger.by_step:
            self._group.broadcast_(self._told)
        if self.state is not None:
            self.state.fired[:] = self._told
        return runs(self._told.astype(bool), self._edges)

    def sent(self, step: int, weights: np.ndarray, nbytes: int, seconds: float) -> None:
        """The exchange of these spans has left these weights. As `State.sent`."""
        if self.state is not None:
            self.state.sent(step, weights, nbytes, seconds)

    def next_tau(self) -> int:
        """Where exchanges decide: the steps between two later ones. On the leader; 0 on other ranks."""
        return 0 if self.state is None else self.state.tau

    def _vote(self, tier: Tier) -> None:
        votes = self._votes.flat
        votes[: self._told.size] = self._told
        self._votes.view("voted")[:] = 1
        tier.exchange(self._votes_table, Tensor([votes]), 0, votes.size)
        tier.finish()
        self._told[:] = votes[: self._told.size] > 0

    def _refuse_if_late(self, tier: Tier, table: str) -> None:
        if tier.begun(self._votes_table):
            raise LateError(
                f"other groups of this job had trained before this one came to {table!r}, and the trigger "
                f"{self._trigger} is decided by all groups in each step: start all groups together, with another name "
                "of the job (HYBRIDPS_JOB), or use the trigger every:TAU or the algorithm elastic, where a group may "
                "come late"
            )

    def drop(self) -> None:
        """Give up what the servers hold for it. Not a collective."""
        if self._together is not None:
            self._together.drop(self._votes_table)
