"""A group at the parameter servers: its leader exchanges with them, and its other ranks, the followers, get the answer.

The plan gives each rank its side, so that the algorithms are the same on all ranks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from hybridps.errors import HybridPSError, LayoutError, ServerError
from hybridps.memory import DTYPES, Layout, shared_memory
from hybridps.mpi_groups.group import Group
from hybridps.ps.clocks import Clock
from hybridps.ps.model import CodecName, Joining
from hybridps.ps.rules import Rule, Sum
from hybridps.ps.store import ParameterStore, Pending
from hybridps.tensor_collectives import Tensor, broadcast_
from hybridps.tensor_collectives.node import Node
from hybridps.tensor_collectives.tensor import Rows
from hybridps.tiers.tier import check_same_layout

BARRIER = "barrier"
"""The table that a tier's barrier is an exchange of."""

BARRIER_LAYOUT = Layout.of("float32", {BARRIER: (1,)})


@runtime_checkable
class HasBarrier(Protocol):
    """A store whose servers have a barrier of their own, as MXNet's have."""

    def barrier(self) -> None:
        """Return when all groups have called it."""


class _Registered(msgspec.Struct, frozen=True):
    """What the leader tells the followers of a registration."""

    joining: Joining = Joining.NEW
    error: str = ""
    is_layout_error: bool = False


@dataclass(frozen=True, eq=False)
class _Table:
    """What the leader knows of a table."""

    layout: Layout
    rule: Rule
    answer: np.ndarray | None
    """Where the answer goes, flat, of the layout's length and dtype; None: it replaces the values."""
    joining: Joining


@dataclass(frozen=True, eq=False)
class _Exchange:
    """An exchange that is under way, on any rank. `node`: the servers write the answer to all ranks of the node."""

    table: str
    tensor: Tensor
    start: int
    stop: int
    pending: Pending | None = None
    node: Node | None = None


class LeaderTier:
    """The leader's side: exchanges with the store, then broadcasts in the group. See `Tier` for the methods.

    Tiers with different prefixes share a store; none of them closes it. A table's name at the servers is the prefix
    and the name that the algorithm uses.
    """

    def __init__(self, store: ParameterStore, group: Group, prefix: str = "") -> None:
        self._store = store
        self._group = group
        self._prefix = prefix
        self._distance = float("nan")
        self._tables: dict[str, _Table] = {}
        self._under_way: deque[_Exchange] = deque()
        self._reached: WeakKeyDictionary[Rows, bool] = WeakKeyDictionary()
        """Whether all servers work in this memory."""

    @property
    def distance(self) -> float:
        return self._distance

    def register(
        self,
        table: str,
        layout: Layout,
        tensor: Tensor | None,
        rule: Rule,
        clock: Clock | None = None,
        codec: CodecName = "exact",
    ) -> Joining:
        check_same_layout(self._group, table, layout)
        try:
            joining = self._join(table, layout, tensor, rule, clock, codec)
        except HybridPSError as error:
            self._tell(_Registered(error=str(error), is_layout_error=isinstance(error, LayoutError)))
            raise
        self._tell(_Registered(joining))
        if tensor is not None:
            broadcast_(tensor, self._group)
        return joining

    def begun(self, table: str) -> bool:
        found = False
        if self._tables[table].joining is Joining.LATE:
            centre = np.empty(self._tables[table].layout.length, self._tables[table].layout.dtype)
            self._store.pull(self._prefix + table, centre).wait()
            found = bool(centre.any())
        self._tell_whether(found)
        return found

    def exchange(self, table: str, tensor: Tensor, start: int, stop: int) -> None:
        values, answer = tensor.vectors[0], self._tables[table].answer
        pending = self._store.exchange(self._prefix + table, values, values if answer is None else answer, start, stop)
        self._under_way.append(_Exchange(table, tensor, start, stop, pending))

    def exchange_rows(self, table: str, tensor: Tensor, start: int, stop: int) -> bool:
        rows = rows_for_servers(tensor, self._group, self._tables[table].rule)
        if rows is None or start == stop or not self._reached.get(rows, True):
            return False
        node = rows.levels.node
        node.meet("an exchange with the servers", asleep=True)
        vectors = [row[: tensor.length].view(tensor.dtype) for row in rows.array]
        pending = self._store.exchange_rows(self._prefix + table, vectors, start, stop)
        if rows not in self._reached:
            self._reached[rows] = pending is not None
            self._tell_whether(pending is not None)
        elif pending is None:
            node.give_up()
            raise ServerError(f"a server no longer reaches the memory of table {table!r}, which it has worked in")
        if pending is not None:
            self._under_way.append(_Exchange(table, tensor, start, stop, pending, node))
        return pending is not None

    def finish(self) -> None:
        done = self._under_way.popleft()
        if done.pending is not None:
            done.pending.wait()
        if done.node is not None:
            done.node.arrive()
            return
        self._apply_answer(self._tables[done.table], done.tensor.vectors[0][done.start : done.stop], done.start)
        broadcast_(done.tensor, self._group, 0, done.start, done.stop)

    def pull(self, table: str, tensor: Tensor) -> None:
        self._store.pull(self._prefix + table, tensor.vectors[0]).wait()
        broadcast_(tensor, self._group)

    def drop(self, table: str) -> None:
        dropped = self._tables.pop(table, None)
        if dropped is not None and dropped.joining is not Joining.DROPPED:
            self._store.drop(self._prefix + table)

    def barrier(self) -> None:
        self._group.barrier()
        self._meet_leaders()
        self._group.barrier()

    def close(self) -> None:
        for table in list(self._tables):
            self.drop(table)

    def _join(
        self, table: str, layout: Layout, tensor: Tensor | None, rule: Rule, clock: Clock | None, codec: CodecName
    ) -> Joining:
        name, initial = self._prefix + table, None if tensor is None else tensor.vectors[0]
        joining = self._store.register(name, layout, initial, rule, clock, codec)
        if joining is Joining.LATE and initial is not None:
            self._store.pull(name, initial).wait()
        answer = None if rule.answer_is_new_value else shared_memory(layout.nbytes).view(layout.dtype)
        self._tables[table] = _Table(layout, rule, answer, joining)
        return joining

    def _apply_answer(self, table: _Table, values: np.ndarray, start: int) -> None:
        """Change the values by the answer, where that does not replace them."""
        if table.answer is not None:
            answer = table.answer[start : start + values.size]
            self._distance = table.rule.distance(values, answer)
            table.rule.apply_answer_(values, answer)

    def _meet_leaders(self) -> None:
        if isinstance(self._store, HasBarrier):
            self._store.barrier()
            return
        name = self._prefix + BARRIER
        if BARRIER not in self._tables:
            joining = self._store.register(name, BARRIER_LAYOUT, None, Sum())
            self._tables[BARRIER] = _Table(BARRIER_LAYOUT, Sum(), None, joining)
        if self._tables[BARRIER].joining is Joining.DROPPED:
            return  # the other groups have closed this algorithm: there is nobody to meet
        values = np.ones(BARRIER_LAYOUT.length, BARRIER_LAYOUT.dtype)
        self._store.exchange(name, values, values, 0, BARRIER_LAYOUT.length).wait()

    def _tell(self, registered: _Registered) -> None:
        self._group.allgather_bytes(msgspec.json.encode(registered))

    def _tell_whether(self, found: bool) -> None:
        self._group.allgather_bytes(b"yes" if found else b"no")


class FollowerTier:
    """The side of the other ranks of a group. See `Tier` for the methods."""

    distance = float("nan")

    def __init__(self, group: Group) -> None:
        self._group = group
        self._under_way: deque[_Exchange] = deque()
        self._rules: dict[str, Rule] = {}
        self._reached: WeakKeyDictionary[Rows, bool] = WeakKeyDictionary()
        """As the leader has said."""

    def register(
        self,
        table: str,
        layout: Layout,
        tensor: Tensor | None,
        rule: Rule,
        clock: Clock | None = None,
        codec: CodecName = "exact",
    ) -> Joining:
        check_same_layout(self._group, table, layout)
        heard = msgspec.json.decode(self._group.allgather_bytes(b"")[0], type=_Registered)
        if heard.error:
            raise LayoutError(heard.error) if heard.is_layout_error else ServerError(heard.error)
        self._rules[table] = rule
        if tensor is not None:
            broadcast_(tensor, self._group)
        return heard.joining

    def begun(self, table: str) -> bool:
        return self._hear_whether()

    def exchange(self, table: str, tensor: Tensor, start: int, stop: int) -> None:
        self._under_way.append(_Exchange(table, tensor, start, stop))

    def exchange_rows(self, table: str, tensor: Tensor, start: int, stop: int) -> bool:
        rows = rows_for_servers(tensor, self._group, self._rules[table])
        if rows is None or start == stop or not self._reached.get(rows, True):
            return False
        node = rows.levels.node
        node.arrive()
        if rows not in self._reached:
            self._reached[rows] = self._hear_whether()
        if self._reached[rows]:
            self._under_way.append(_Exchange(table, tensor, start, stop, node=node))
        return self._reached[rows]

    def finish(self) -> None:
        done = self._under_way.popleft()
        if done.node is not None:
            done.node.wait_for_rank(0, "the answer of the servers")
        else:
            broadcast_(done.tensor, self._group, 0, done.start, done.stop)

    def pull(self, table: str, tensor: Tensor) -> None:
        broadcast_(tensor, self._group)

    def drop(self, table: str) -> None:
        self._rules.pop(table, None)

    def barrier(self) -> None:
        self._group.barrier()
        self._group.barrier()

    def close(self) -> None:
        self._rules.clear()

    def _hear_whether(self) -> bool:
        return self._group.allgather_bytes(b"")[0] == b"yes"


def rows_for_servers(tensor: Tensor, group: Group, rule: Rule) -> Rows | None:
    """The vectors of a group of several ranks, where servers could add them up and write the answer to all of them.

    All must be in memory of one node, in a dtype that servers know, and the answer must replace the values. The same on
    all ranks; whether every server reaches the memory is seen only when it is offered.
    """
    rows = tensor.rows_in(group) if rule.answer_is_new_value and group.size > 1 else None
    fits = rows is not None and rows.levels.one_node and tensor.dtype.name in DTYPES
    return rows if fits else None
