"""How a group talks to the parameter-server tier: its leader pushes and pulls, the others follow.

The plan gives each rank its Uplink, so that the algorithms are the same on all ranks.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np

from hybridps.memory import DTYPES, Layout, shared_memory
from hybridps.mpi_groups.group import Group
from hybridps.ps.clocks import Clock
from hybridps.ps.rules import Rule
from hybridps.ps.store import ParameterStore, Pending
from hybridps.tensor_collectives import Tensor, broadcast_
from hybridps.tensor_collectives.node import Node
from hybridps.tensor_collectives.tensor import Rows

UNDER_WAY = 8
"""Exchanges of buckets that callers have begun before they finish the oldest: with 4 the servers were idle at times."""


class Uplink(Protocol):
    """All ranks of a group call the same operations in the same order, with tensors of equal length."""

    @property
    def bytes_to_servers(self) -> int:
        """Payload bytes that this rank sent."""

    @property
    def distance(self) -> float:
        """|w - centre| / |w| of the last Elastic exchange that this rank saw; nan if there was none."""

    def register(
        self, table: str, layout: Layout, tensor: Tensor | None, rule: Rule, clock: Clock | None = None
    ) -> bool:
        """Join a table, with the tensor as its centre unless there is one; the tensor is the centre afterwards.

        Without a tensor the centre begins with zeros. Returns whether the centre was there already.
        """

    def begun(self, table: str, layout: Layout) -> bool:
        """Whether the centre of a table that began with zeros is other than that, as this group comes to it."""

    def start(self, table: str, tensor: Tensor, start: int, stop: int) -> None:
        """Begin to exchange elements `start:stop` of the tensor, which nobody may use until `finish`."""

    def start_sum(self, table: str, tensor: Tensor, start: int, stop: int) -> bool:
        """Begin to exchange the sum of those elements over the ranks of the group, where all servers can add it up.

        Else False on all ranks, and nothing is begun: reduce to the leader, and `start`.
        """

    def finish(self) -> None:
        """End the oldest exchange begun: the tensor has absorbed the answer, on all ranks of the group."""

    def pull(self, table: str, tensor: Tensor) -> None:
        """Read the whole centre of a table into the tensor, on all ranks of the group."""

    def close(self) -> None: ...


class NoUplink:
    """There is one group and no server: nothing to exchange with."""

    bytes_to_servers = 0
    distance = float("nan")

    def __init__(self, group: Group) -> None:
        self.group = group

    def register(
        self, table: str, layout: Layout, tensor: Tensor | None, rule: Rule, clock: Clock | None = None
    ) -> bool:
        if tensor is not None:
            broadcast_(tensor, self.group)
        return False

    def begun(self, table: str, layout: Layout) -> bool:
        return False

    def start(self, table: str, tensor: Tensor, start: int, stop: int) -> None:
        pass

    def start_sum(self, table: str, tensor: Tensor, start: int, stop: int) -> bool:
        return False

    def finish(self) -> None:
        pass

    def pull(self, table: str, tensor: Tensor) -> None:
        pass

    def close(self) -> None:
        pass


class LeaderUplink:
    """The leader's side: exchanges with the store, then broadcasts in its group."""

    def __init__(self, store: ParameterStore, group: Group) -> None:
        self.store = store
        self.group = group
        self.last_distance = float("nan")
        self._tables: dict[str, tuple[Rule, np.ndarray | None]] = {}
        self._late: set[str] = set()
        """Tables whose centre was there already."""
        self._under_way: deque[tuple[str, Tensor, int, int, Pending, Node | None]] = deque()
        self._added_up: dict[str, bool] = {}

    @property
    def bytes_to_servers(self) -> int:
        return self.store.bytes_to_servers

    @property
    def distance(self) -> float:
        return self.last_distance

    def register(
        self, table: str, layout: Layout, tensor: Tensor | None, rule: Rule, clock: Clock | None = None
    ) -> bool:
        late = self.store.register(table, layout, None if tensor is None else tensor.vectors[0], rule, clock)
        apart = None if rule.replaces else shared_memory(layout.nbytes).view(layout.dtype)
        self._tables[table] = (rule, apart)
        if tensor is not None:
            if late:
                self.store.pull(table, tensor.vectors[0]).wait()
            broadcast_(tensor, self.group)
        if late:
            self._late.add(table)
        return late

    def begun(self, table: str, layout: Layout) -> bool:
        found = False
        if table in self._late:
            centre = np.empty(layout.length, layout.dtype)
            self.store.pull(table, centre).wait()
            found = bool(centre.any())
        self.group.allgather_bytes(b"yes" if found else b"no")
        return found

    def start(self, table: str, tensor: Tensor, start: int, stop: int) -> None:
        values, apart = tensor.vectors[0], self._tables[table][1]
        pending = self.store.exchange(table, values, values if apart is None else apart, start, stop)
        self._under_way.append((table, tensor, start, stop, pending, None))

    def start_sum(self, table: str, tensor: Tensor, start: int, stop: int) -> bool:
        rows = rows_of_node(tensor, self.group)
        if rows is None or not self._tables[table][0].replaces or not self._added_up.get(table, True):
            return False
        node = rows.levels.node
        node.meet("an exchange with the servers", asleep=True)
        vectors = [row[: tensor.length].view(tensor.dtype) for row in rows.array]
        pending = self.store.exchange_rows(table, vectors, start, stop)
        if table not in self._added_up:
            self._added_up[table] = pending is not None
            self.group.allgather_bytes(b"yes" if pending else b"no")
        if pending is not None:
            self._under_way.append((table, tensor, start, stop, pending, node))
        return pending is not None

    def finish(self) -> None:
        table, tensor, start, stop, pending, node = self._under_way.popleft()
        pending.wait()
        if node is not None:
            node.arrive()
            return
        rule, apart = self._tables[table]
        if apart is not None:
            values, answer = tensor.vectors[0][start:stop], apart[start:stop]
            self.last_distance = rule.distance(values, answer)
            rule.absorb_(values, answer)
        broadcast_(tensor, self.group, 0, start, stop)

    def pull(self, table: str, tensor: Tensor) -> None:
        self.store.pull(table, tensor.vectors[0]).wait()
        broadcast_(tensor, self.group)

    def close(self) -> None:
        self.store.close()


class FollowerUplink:
    """The side of the other ranks of a group: they receive what the leader has."""

    bytes_to_servers = 0
    distance = float("nan")

    def __init__(self, group: Group) -> None:
        self.group = group
        self._under_way: deque[tuple[Tensor, int, int, Node | None]] = deque()
        self._replaces: dict[str, bool] = {}
        self._added_up: dict[str, bool] = {}

    def register(
        self, table: str, layout: Layout, tensor: Tensor | None, rule: Rule, clock: Clock | None = None
    ) -> bool:
        self._replaces[table] = rule.replaces
        if tensor is not None:
            broadcast_(tensor, self.group)
        return False

    def begun(self, table: str, layout: Layout) -> bool:
        return self.group.allgather_bytes(b"")[0] == b"yes"

    def start(self, table: str, tensor: Tensor, start: int, stop: int) -> None:
        self._under_way.append((tensor, start, stop, None))

    def start_sum(self, table: str, tensor: Tensor, start: int, stop: int) -> bool:
        rows = rows_of_node(tensor, self.group)
        if rows is None or not self._replaces[table] or not self._added_up.get(table, True):
            return False
        node = rows.levels.node
        node.arrive()
        if table not in self._added_up:
            self._added_up[table] = self.group.allgather_bytes(b"")[0] == b"yes"
        if self._added_up[table]:
            self._under_way.append((tensor, start, stop, node))
        return self._added_up[table]

    def finish(self) -> None:
        tensor, start, stop, node = self._under_way.popleft()
        if node is not None:
            node.wait_for_rank(0, "the answer of the servers")
        else:
            broadcast_(tensor, self.group, 0, start, stop)

    def pull(self, table: str, tensor: Tensor) -> None:
        broadcast_(tensor, self.group)

    def close(self) -> None:
        pass


def rows_of_node(tensor: Tensor, group: Group) -> Rows | None:
    """The rows of a group of several ranks, if all are in memory of one node, in a dtype that servers know."""
    rows = tensor.rows_in(group)
    fits = rows is not None and group.size > 1 and rows.levels.one_node and tensor.dtype.name in DTYPES
    return rows if fits else None
