"""A trigger for a group: the leader decides, and all ranks know the decision."""

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
    """Decides when one table communicates. All ranks of the group make the same calls in the same order.

    The leader has the state. If the step alone decides, or an earlier exchange has decided, no communication is needed.
    Otherwise the leader broadcasts one byte for each part.

    `together`: the tier of groups that communicate all together or not at all. What is due in one of them is then due
    in all; they find out by one small exchange of a table named after this one.
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

        Raises the errors of `Tier.register`. Raises LateError for a group that joins `together` after others have
        voted: they would wait for its vote while it waits for their weights.
        """
        self._trigger = trigger
        self._group = group
        self._edges = trigger.edges(layout)
        self.state: State | None = trigger.start(layout, weights) if trigger.by_step or group.rank == 0 else None
        """Kept on the leader, and on all ranks if the step alone decides."""
        self._decides_ahead = trigger.decides_ahead and together is None
        """Whether each exchange decides when a later one is due. `spans` is then called in those steps only."""
        self._told = np.zeros(self._edges.size - 1, np.uint8)
        self._together = None if trigger.by_step else together
        self._votes_table = f"{table}.due"
        self._votes = Arena(Layout.of("float32", {"due": (self._told.size,), "voted": (1,)}))
        if self._together is not None:
            self._together.register(self._votes_table, self._votes.layout, None, Sum(), BulkSynchronous())
            self._refuse_if_late(self._together, table)

    def spans(self, step: int, weights: np.ndarray) -> Spans:
        """Return the elements that communicate before the local update of this step; empty if none do."""
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
        """Note that the spans were exchanged, and that `weights` are the result. Arguments as in `State.sent`."""
        if self.state is not None:
            self.state.sent(step, weights, nbytes, seconds)

    def next_tau(self) -> int:
        """Return the number of steps between two later exchanges, as the last one has decided; 0 without the state."""
        return 0 if self.state is None else self.state.tau

    def _vote(self, tier: Tier) -> None:
        votes = self._votes.flat
        votes[: self._told.size] = self._told
        self._votes.view("voted")[:] = 1
        tier.finish(tier.exchange(self._votes_table, Tensor([votes]), 0, votes.size))
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
        """Drop the table of votes at the servers. This is not a collective."""
        if self._together is not None:
            self._together.drop(self._votes_table)
