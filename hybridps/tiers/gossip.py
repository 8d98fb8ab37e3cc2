"""The tier of groups without servers: the leader gossips with other leaders, and passes the result to its group.

Algorithms are the same on all ranks: the leader's tier is given the partners, those of its followers are not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybridps.codecs import CodecSpec
from hybridps.errors import HybridPSError
from hybridps.gossip import Exchange, Partners, Partnership, Span, make_exchange
from hybridps.memory import Layout
from hybridps.mpi_groups.group import Group, allgather
from hybridps.mpi_groups.session import agree
from hybridps.ps.clocks import Clock
from hybridps.ps.model import Joining
from hybridps.ps.rules import Rule
from hybridps.tensor_collectives import Tensor, broadcast_
from hybridps.tiers.none import NoTier
from hybridps.tiers.tier import check_same_layout

Due = Callable[[], Sequence[Span]]
"""Returns the spans of a table to send now. It is called on the leader alone, after what has arrived was taken in."""

Touched = Callable[[Sequence[Span], int, float, bool], None]
"""Called on the leader alone after an exchange, with the spans, the bytes sent, the seconds that it took, and whether
this group began it."""


class GossipTier(NoTier):
    """One rank's gossip with other groups. `Tier` documents the methods.

    `partners`: given to the leader; None on the other ranks. Several tiers share them; `prefix` keeps their tables
    apart. `groups`: how many the job has. The weights of a table are the group's own. `register` compares layouts,
    and finds out whether the group is late.
    """

    def __init__(
        self, group: Group, partners: Partners | None, partnership: Partnership, groups: int, prefix: str = ""
    ) -> None:
        super().__init__(group)
        self.distance = float("nan")
        self._partners = partners
        self._partnership = partnership
        self._prefix = prefix
        self._tables: dict[str, Exchange | None] = {}
        """The registered tables. On the leader, each with its exchange."""
        self.silences = np.zeros(groups)
        """For how many seconds each group had not answered the leader, at the last averaging."""
        self._told = np.zeros(4 + groups)
        """What the leader tells its group: whether it failed, whether weights have changed, bytes sent, distance, and
        the silences."""

    def share(self, table: str, layout: Layout, tensor: Tensor) -> bool:
        """Give all ranks of all groups the same `tensor`: that of the first group's leader.

        A group that starts after all others have their tensors keeps its leader's. Returns False in such a group.
        Raises, on all ranks of the group, LayoutError with the first keys that differ between ranks or groups, or
        DeadlineError if the first group does not register the table in time.
        """
        check_same_layout(self._group, table, layout)
        is_given = self._lead(lambda partners: partners.tables.share(self._prefix + table, layout, tensor.vectors[0]))
        broadcast_(tensor, self._group)
        return bool(is_given)

    def register(
        self,
        table: str,
        layout: Layout,
        tensor: Tensor | None,
        rule: Rule,
        clock: Clock | None = None,
        codec: CodecSpec = "exact",
        keeps_values: bool = False,
    ) -> Joining:
        check_same_layout(self._group, table, layout, codec)
        name, partnership = self._prefix + table, self._partnership
        how = f"{partnership.exchange} over {partnership.topology}:{partnership.seed}"
        is_late = bool(self._lead(lambda partners: partners.tables.enter(name, layout, how)))
        self._tables[table] = None
        if self._partners is not None:
            self._partners.open(name, layout)
            self._tables[table] = make_exchange(self._partners, name, layout, partnership, is_late)
        if tensor is not None:
            broadcast_(tensor, self._group)
        return Joining.LATE if is_late else Joining.NEW

    def average_(self, table: str, weights: Tensor, due: Due, touched: Touched) -> int:
        """Take in what other groups have sent, and send what is due. This does not wait for other groups.

        Returns the payload bytes that the group has sent, the same on all of its ranks. Raises NotFiniteError, on all
        ranks of the group, if its own weights have NaN or Inf.
        """
        exchange, problem, told = self._tables[table], None, self._told
        told[:4] = 0
        if exchange is not None:
            try:
                told[1:3] = self._exchange(exchange, weights.vectors[0], due, touched)
            except HybridPSError as error:
                told[0], problem = 1, error
            told[3] = exchange.distance
        self._tell(weights, problem)
        return int(told[2])

    def settle_(self, table: str, weights: Tensor, touched: Touched) -> None:
        """Take in all that is under way between the groups. All groups call this; nothing new is sent.

        It does not wait for groups that have ended, are silent or never started. Raises DeadlineError.
        """
        exchange, problem, told = self._tables[table], None, self._told
        told[:4] = 0
        if exchange is not None and self._partners is not None:
            partners = self._partners

            def is_quiet() -> bool:
                before = partners.bytes_sent
                told[1] = max(told[1], exchange.take_in(weights.vectors[0], settles=True))
                if exchange.touched or partners.bytes_sent > before:
                    touched(exchange.touched, partners.bytes_sent - before, 0.0, False)
                return exchange.is_quiet

            try:
                partners.meet(is_quiet)
            except HybridPSError as error:
                told[0], problem = 1, error
            told[3] = exchange.distance
        self._tell(weights, problem)

    def drop(self, table: str) -> None:
        if self._tables.pop(table, None) is not None and self._partners is not None:
            self._partners.drop(self._prefix + table)

    def barrier(self) -> None:
        self._group.barrier()
        self._lead(lambda partners: partners.meet())
        self._group.barrier()

    def close(self) -> None:
        for table in list(self._tables):
            self.drop(table)

    def _exchange(self, exchange: Exchange, weights: np.ndarray, due: Due, touched: Touched) -> tuple[bool, int]:
        """Return whether the weights have changed, and the number of bytes sent."""
        began, partners = time.monotonic(), self._partners
        before = partners.bytes_sent if partners is not None else 0
        changed = exchange.take_in(weights)
        answered = (partners.bytes_sent if partners is not None else 0) - before
        if exchange.touched or answered:
            touched(exchange.touched, answered, time.monotonic() - began, False)
        exchange.touched.clear()
        nbytes = exchange.begin(weights, due())
        if exchange.touched:
            touched(exchange.touched, nbytes, time.monotonic() - began, True)
        return changed, (partners.bytes_sent if partners is not None else 0) - before

    def _tell(self, weights: Tensor, problem: HybridPSError | None) -> None:
        """Send the leader's weights, or its error, to its group."""
        if self._partners is not None:
            self._told[4:] = self._partners.peers.silences()
        self._group.broadcast_(self._told)
        np.copyto(self.silences, self._told[4:])
        if self._told[0]:
            agree(self._group, problem, everywhere=False)
        if self._told[1]:
            broadcast_(weights, self._group)
        self.distance = float(self._told[3])

    def _lead(self, work: Callable[[Partners], Any]) -> Any:
        """Return the result of `work` on the leader (bool or int) to all ranks. An error is raised on all ranks."""
        result, problem = None, None
        if self._partners is not None:
            try:
                result = work(self._partners)
            except HybridPSError as error:
                problem = error
        agree(self._group, problem, everywhere=False)
        return allgather(self._group, result, Any)[0]
