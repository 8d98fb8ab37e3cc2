"""The tier with servers: the leader has a store, exchanges through it, and passes the answer to the followers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from hybridps.codecs import CodecSpec
from hybridps.errors import HybridPSError, ServerError
from hybridps.memory import Layout
from hybridps.mpi_groups.group import Group, allgather
from hybridps.mpi_groups.session import agree
from hybridps.ps.clocks import Clock
from hybridps.ps.model import Joining, Meeting, Rules
from hybridps.ps.rules import Rule
from hybridps.ps.store import HasMeetings, ParameterStore, Pending
from hybridps.shared_memory import shared_memory
from hybridps.tensor_collectives import Tensor, broadcast_, reduce_
from hybridps.tensor_collectives.tensor import Rows
from hybridps.tiers.barrier import Barrier
from hybridps.tiers.rejoining import TRY_SECONDS, Rejoining
from hybridps.tiers.tier import Exchange, check_same_layout, rows_for_servers


@dataclass(frozen=True, eq=False)
class _Table:
    """A registered table."""

    layout: Layout
    rule: Rule
    joining: Joining
    out: Tensor | None = None
    """Where the answer is written, on all ranks. None: it replaces or changes the values."""
    difference: np.ndarray | None = None
    """On the leader: the answer by which values are changed; flat, of the layout's length and dtype."""
    finds_not_finite: bool = False
    """Whether the servers examine the exact values for NaN and Inf, and use them in any case."""

    @property
    def can_wait(self) -> bool:
        """Whether an exchange can be completed later, because no other group's values are in its answer."""
        return self.rule.separate and not self.rule.answer_is_new_value


@dataclass(frozen=True, eq=False)
class _Exchange:
    """An exchange under way, with an answer for `tensor`. `rows`: those that servers add up and answer, if any."""

    table: str
    tensor: Tensor
    start: int
    stop: int
    pending: Pending | None
    rows: Rows | None = None
    rule: Rule | None = None
    """Used instead of the table's rule."""

    def is_answered_within(self, seconds: float) -> bool:
        """As `Exchange.is_answered_within`."""
        return self.pending is not None and self.pending.is_done_within(seconds)


class ServersTier:
    """One rank's exchanges with servers. `Tier` documents the methods. `store`: the leader's connection; None on
    followers.

    Several tiers share a store, and none of them closes it. A table's name at the servers is the prefix and the
    algorithm's name for the table.
    """

    has_servers = True

    def __init__(
        self,
        group: Group,
        store: ParameterStore | None = None,
        prefix: str = "",
        rejoining: Rejoining | None = None,
    ) -> None:
        self.distance = float("nan")
        self.rejoining = rejoining or Rejoining()
        self._group = group
        self._store = store
        self._prefix = prefix
        self._tables: dict[str, _Table] = {}
        self._barrier = None if store is None else Barrier(store, f"{prefix}barrier")
        self._interrupted: list[_Exchange] = []
        """On the leader: exchanges that had no answer when a server went away. Each counts once or not at all."""
        self._reached: WeakKeyDictionary[Rows, bool] = WeakKeyDictionary()
        """Whether all servers work in the memory of these rows."""

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

        def join(store: ParameterStore) -> str:
            name, initial = self._prefix + table, None if tensor is None else tensor.vectors[0]
            joining = store.register(name, layout, initial, rule, clock, codec)
            if joining.takes_centre and initial is not None:
                store.pull(name, initial)
            return joining.value

        joining = Joining(self._lead(join))
        difference = None
        if self._store is not None and not rule.answer_is_new_value:
            difference = shared_memory(layout.nbytes).view(layout.dtype)
        finds = rule.transparent and codec == "exact" and (self._store is None or self._store.finds_not_finite)
        self._tables[table] = _Table(layout, rule, joining, tensor if keeps_values else None, difference, finds)
        if tensor is not None:
            broadcast_(tensor, self._group)
        return joining

    def begun(self, table: str) -> bool:
        layout = self._tables[table].layout

        def has_values(store: ParameterStore) -> bool:
            centre = np.empty(layout.length, layout.dtype)
            store.pull(self._prefix + table, centre)
            return bool(centre.any())

        is_late = self._tables[table].joining is Joining.LATE and not self.rejoining.done
        return is_late and bool(self._lead(has_values))

    def joining(self, table: str) -> Joining:
        return self._tables[table].joining

    def is_alone(self, table: str, tensor: Tensor) -> bool:
        if not self._tables[table].can_wait:
            return False
        ended = self._store is not None and self._end_interrupted(table)
        alone = self._store is not None and (self._store.away or any(each.table == table for each in self._interrupted))
        told = np.array([alone, ended], np.uint8)
        self._group.broadcast_(told)
        if told[1]:
            broadcast_(tensor, self._group)
        return bool(told[0])

    def sum_(self, table: str, tensor: Tensor, start: int, stop: int, rules: Rules = ()) -> _Exchange:
        self.rejoining.trains = True
        begun = self._begin_in_place(table, tensor, start, stop, rules)
        if begun is not None:
            return begun
        out = self._tables[table].out
        if out is not None and self._group.size > 1:
            np.copyto(out.vectors[0][start:stop], tensor.vectors[0][start:stop])
            tensor = out  # ranks reduce in place
        reduce_(tensor, self._group, start=start, stop=stop)
        return self.exchange(table, tensor, start, stop, rules)

    def finds_not_finite(self, table: str, tensor: Tensor) -> bool:
        rows = tensor.rows_in(self._group)
        reached = rows is not None and self._reached.get(rows, False)
        own = self._group.size == 1 and len(tensor.vectors) == 1
        return self._tables[table].finds_not_finite and (reached or own)

    def exchange(self, table: str, tensor: Tensor, start: int, stop: int, rules: Rules = ()) -> _Exchange:
        self.rejoining.trains = True
        known, pending = self._tables[table], None
        out = known.out or tensor
        if self._store is not None:
            values, answer = tensor.vectors[0], out.vectors[0] if known.difference is None else known.difference
            pending = self._store.exchange(self._prefix + table, values, answer, start, stop, rules)
        rule = rules[0][1] if rules else None
        return _Exchange(table, out, start, stop, pending, rule=rule)

    def finish(self, exchange: Exchange | None) -> Mapping[int, int]:
        done = cast(_Exchange, exchange)
        is_answered = done.pending is not None
        if done.pending is not None and self._tables[done.table].can_wait:
            is_answered = done.pending.wait_here()
            if not is_answered:
                self._interrupted.append(done)
        elif done.pending is not None:
            done.pending.wait()
        if done.rows is None:
            if is_answered:
                self._apply_answer(done)
            broadcast_(done.tensor, self._group, 0, done.start, done.stop)
        elif done.pending is not None:
            done.rows.levels.node.arrive()
        else:
            done.rows.levels.node.wait_for_rank(0, "the answer of the servers")
        return self._not_finite(done)

    def pull(self, table: str, tensor: Tensor) -> None:
        if self._store is not None:
            self._store.pull(self._prefix + table, tensor.vectors[0])
        broadcast_(tensor, self._group)

    def pull_states(self, table: str) -> list[np.ndarray]:
        if self._store is None:
            return []
        known, states = self._tables[table], list[np.ndarray]()
        for number in range(known.rule.states + 1):
            states.append(np.empty(known.layout.length, known.layout.dtype))
            self._store.pull(self._prefix + table, states[-1], number)
        return states

    def put_states(self, table: str, states: Mapping[int, np.ndarray]) -> None:
        if self._store is not None:
            for number, state in states.items():
                self._store.put(self._prefix + table, state, number)

    def drop(self, table: str) -> None:
        self._interrupted = [each for each in self._interrupted if each.table != table]
        dropped = self._tables.pop(table, None)
        if dropped is not None and dropped.joining is not Joining.DROPPED and self._store is not None:
            self._store.drop(self._prefix + table)

    def barrier(self) -> None:
        self._group.barrier()
        if self._barrier is not None and not self.rejoining.waits:  # the others are in the middle of their training
            self._barrier.meet(self.rejoining.comes_late)
        self._group.barrier()

    def meet(self) -> Meeting | None:
        def attempt(store: ParameterStore) -> str:
            met = store.meet(TRY_SECONDS) if isinstance(store, HasMeetings) else None
            return msgspec.json.encode(met).decode()

        return msgspec.json.decode(self._lead(attempt), type=Meeting | None)

    def close(self) -> None:
        for table in list(self._tables):
            self.drop(table)
        if self._barrier is not None:
            self._barrier.close()

    def _end_interrupted(self, table: str) -> bool:
        """Complete the interrupted exchanges of a table that servers can answer. Returns whether one was completed."""
        ended = False
        for each in [each for each in self._interrupted if each.table == table]:
            if each.pending is not None and (self._store is None or self._store.away or not each.pending.wait_here()):
                break
            self._interrupted.remove(each)
            self._apply_answer(each)
            ended = True
        return ended

    def _begin_in_place(self, table: str, tensor: Tensor, start: int, stop: int, rules: Rules) -> _Exchange | None:
        """Begin an exchange in which servers add up the ranks' vectors. Returns None if not all servers reach them."""
        known = self._tables[table]
        out = known.out or tensor
        rows, targets = (rows_for_servers(each, self._group, known.rule) for each in (tensor, out))
        if rows is None or targets is None or start == stop or not self._reached.get(rows, True):
            return None
        node, pending = rows.levels.node, None
        if self._store is None:
            node.arrive()
        else:
            node.meet("an exchange with the servers", asleep=True)
            vectors, answers = (
                [row[: tensor.length].view(tensor.dtype) for row in each.array] for each in (rows, targets)
            )
            pending = self._store.exchange_rows(self._prefix + table, vectors, answers, start, stop, rules)
        if rows not in self._reached:
            began = pending is not None
            self._reached[rows] = bool(self._lead(lambda store: began))
        elif self._store is not None and pending is None:
            node.give_up()
            raise ServerError(f"a server no longer reaches the memory of table {table!r}, which it has worked in")
        return _Exchange(table, out, start, stop, pending, rows) if self._reached[rows] else None

    def _not_finite(self, done: _Exchange) -> dict[int, int]:
        """Return the ranks that had NaN or Inf, each with its first such element; empty if servers saw only a sum."""
        found: dict[int, int] = {}
        if done.pending is None or not done.pending.not_finite:
            return found
        owners = [0] if self._group.size == 1 and len(done.tensor.vectors) == 1 else []
        if done.rows is not None:
            owners = [rank for rank in range(self._group.size) for _ in range(*done.rows.of_rank(rank))]
        for row, element in done.pending.not_finite.items() if owners else ():
            found[owners[row]] = min(element, found.get(owners[row], element))
        return found

    def _apply_answer(self, done: _Exchange) -> None:
        """Change the values by the answer, if the answer does not replace them."""
        table = self._tables[done.table]
        if table.difference is not None:
            rule = done.rule or table.rule
            values, answer = (array[done.start : done.stop] for array in (done.tensor.vectors[0], table.difference))
            self.distance = rule.distance(values, answer)
            rule.apply_answer_(values, answer)

    def _lead(self, work: Callable[[ParameterStore], Any]) -> Any:
        """Return the result of `work` on the leader (bool or str) to all ranks. An error is raised on all ranks."""
        result, problem = None, None
        if self._store is not None:
            try:
                result = work(self._store)
            except HybridPSError as error:
                problem = error
        agree(self._group, problem, everywhere=False)
        return allgather(self._group, result, Any)[0]
