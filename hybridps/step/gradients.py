"""The gradients of a model: pushed in program order, summed over all workers in the memory of the arenas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from hybridps.algorithms import Algorithm, AnyRule, Joining
from hybridps.errors import GroupError, LateError
from hybridps.events import Registered
from hybridps.memory import Arena, Layout
from hybridps.step.job_context import JobContext
from hybridps.step.plan import NOTHING, KeySpec, Plan, Span, Table, lay_out, make_plan
from hybridps.step.schedule import Item, Schedule, Work
from hybridps.step.step import Step
from hybridps.step.steps import Begin, End, Gradient, Reducer
from hybridps.step.weights import InitialValues, pull_centre
from hybridps.tensor_collectives import Tensor


class Gradients:
    """The gradients of one model. Used by the program's thread; all ranks make the same calls in the same order.

    `initial`: the initial values of the same model. `prefix` begins the names of the tables.
    """

    def __init__(
        self,
        schedule: Schedule,
        algorithm: Algorithm,
        context: JobContext,
        initial: InitialValues,
        prefix: str,
    ) -> None:
        self._initial = initial
        self._schedule = schedule
        self._algorithm = algorithm
        self._context = context
        self._prefix = prefix
        self._reducer = Reducer(algorithm, context)
        self._model = schedule.roll.enter()
        self._tables: list[Table] = []
        self._to_join: list[Table] = []
        self._spans: dict[str, Span] = {}
        """Where each key lies."""
        self._step = Step(-1, NOTHING, self._reducer)
        self._expected: frozenset[str] = frozenset()
        self._planned = (0, self._expected)
        self._plan = NOTHING
        self._pushed: set[str] = set()
        self._known = 0
        """The version of the roll that the algorithm knows."""
        self.joined = Joining.NEW
        """What the group found when `join_weights` registered the weights: `SNAPSHOT` or `LATE` if a table was so."""

    def __contains__(self, name: str) -> bool:
        """Return whether the key has been laid out."""
        return name in self._spans

    def lay_out(self, keys: Mapping[str, KeySpec]) -> None:
        """Make tables for these keys, and wait for them.

        Raises LayoutError for a dtype that cannot be laid out. If ranks of the group lay out different keys, the
        schedule ends with DifferentLayoutsError on all of them.
        """
        first = len(self._tables)
        one_each = self._context.whole_tables or self._algorithm.row.rule.whole_chunks
        wanted = lay_out(self._prefix, keys, first, one_each)
        what = f"the layout of gradients {self._prefix}{first}"
        for table in self._schedule.call(what, lambda: self._make_tables(wanted)):
            self._tables.append(table)
            self._to_join.append(table)
            self._spans |= {name: Span(table, *place) for name, place in table.spans.items()}

    def views(self, name: str) -> list[np.ndarray]:
        """Return the arrays in which the gradient of a key is summed, in its shape, one for each vector."""
        return self._spans[name].table.views(name)

    def weights(self, name: str) -> np.ndarray | None:
        """Return the array for the servers' new weights of a key, in its shape; None if they replace its gradient."""
        table = self._spans[name].table
        return None if table.weights is None else Arena(table.layout, table.weights.vectors[0]).view(name)

    @property
    def next_step(self) -> int:
        """The number of the step that `begin` begins: 0, 1, ..."""
        return self._step.number + 1

    def begin(self) -> int:
        """Begin a step, which ends the previous one. Returns its number."""
        self._follow()
        if self._step.number >= 0 and self._pushed != self._expected:
            self._expected = frozenset(self._pushed)
        self._pushed.clear()
        self._step = step = Step(self._step.number + 1, self._make_plan(), self._reducer)
        self._schedule.post(Begin(step, self._schedule, self._context))
        return step.number

    def join_weights(self) -> Item:
        """Register the tables that the servers update, with the weights. Call the item when these lie in the arrays.

        The arrays are those for new weights. If the centre existed already, they hold it afterwards.
        """
        tables, self._to_join = self._to_join, []
        item = Work("the registration of the weights", self._schedule.inbox, lambda: self._join(tables))
        self._schedule.post(item)
        return item

    def read_centre(self) -> tuple[Item, dict[str, np.ndarray]]:
        """Begin to read the weights that the servers hold now. Returns an item, and new arrays by key."""
        layouts = {table.name: table.layout for table in self._tables}
        return pull_centre(self._schedule, self._algorithm, self._context, layouts)

    def pull_states(self) -> dict[str, list[np.ndarray]]:
        """Return what the servers keep of each key, in its shape: its weights and its states. As `Tier.pull_states`."""
        states: dict[str, list[np.ndarray]] = {}
        for table in self._tables:
            arenas = self._pull(table)
            states |= {slot.key: [arena.view(slot.key) for arena in arenas] for slot in table.layout.slots}
        return states

    def put_states(self, states: Mapping[str, Sequence[np.ndarray | None]]) -> None:
        """Replace what the servers keep of these keys: weights (None: unchanged) and states. As `Tier.put_states`."""
        for table in self._tables:
            mine = {slot.key: states[slot.key] for slot in table.layout.slots if slot.key in states}
            if not mine:
                continue
            arenas = self._pull(table)
            for key, arrays in mine.items():
                for arena, array in zip(arenas, arrays, strict=True):
                    if array is not None:
                        arena.view(key)[...] = array
            first = 0 if any(arrays[0] is not None for arrays in mine.values()) else 1
            flat = {number: arena.flat for number, arena in enumerate(arenas) if number >= first}
            put = partial(self._algorithm.tier.put_states, table.name, flat)
            self._schedule.call(f"writing the states of {table.name}", put, local=True)

    def push(self, name: str, in_step: bool = True, rule: AnyRule | None = None) -> Gradient:
        """Push a key. Call the returned item when its gradient lies in the arrays.

        Without `in_step`, the key is not expected in the next step. `rule`: how the servers update with it, if they do.
        Raises GroupError if the key was pushed in this step before.
        """
        item = Gradient(name, self._spans[name], self._step, in_step, self._schedule.inbox, rule)
        if in_step:
            if name in self._pushed:
                raise GroupError(f"key {name!r} was pushed twice in {self._step.title}: begin a step before")
            self._pushed.add(name)
        self._schedule.post(item)
        return item

    def settle(self) -> None:
        """Declare that keys of this step that have not been pushed will not be."""
        self._schedule.post(End(self._step, self._schedule.inbox))

    def close(self) -> None:
        """Drop the tables. Not a collective; may be called from any thread, once."""
        names, algorithm = [table.name for table in self._tables], self._algorithm
        self._schedule.post_local("the end of gradients", lambda: algorithm.drop(names))

    def _follow(self) -> None:
        """Tell the algorithm how many groups and workers there are from this step on."""
        roll = self._schedule.roll
        roll.begin(self._model, self.next_step)
        if roll.version != self._known:
            self._known = roll.version
            follow = partial(self._algorithm.follow, roll.groups, roll.divisor, roll.hands_in)
            self._schedule.begin_call("a change of who is there", follow)

    def _make_plan(self) -> Plan:
        """Return the plan of the next step; the same object as long as nothing has changed."""
        known = len(self._tables), self._expected
        if known[0] != self._planned[0] or known[1] is not self._planned[1]:
            self._planned = known
            self._plan = make_plan(self._tables, self._expected, self._context.bucket_bytes)
        return self._plan

    def _make_tables(self, wanted: Mapping[str, tuple[Layout, int]]) -> list[Table]:
        """On the communication thread."""
        layouts = [layout for layout, _ in wanted.values()]
        self._schedule.agreement.check_layouts(layouts)
        self._initial.check_tables(layouts)
        return [self._make_table(name, *each) for name, each in wanted.items()]

    def _pull(self, table: Table) -> list[Arena]:
        pull = partial(self._algorithm.tier.pull_states, table.name)
        flat = self._schedule.call(f"reading the states of {table.name}", pull, local=True)
        return [Arena(table.layout, array) for array in flat]

    def _join(self, tables: Sequence[Table]) -> None:
        """On the communication thread."""
        for table in tables:
            with self._context.watch(f"the registration of {table.name}"):
                tensor = table.weights or Tensor(table.tensor.vectors[:1])
                weights = tensor.vectors[0]
                before = weights.copy()
                late = self._algorithm.join_weights(table.name, table.layout, tensor, tensor is table.weights)
            tier = self._algorithm.tier
            if late and self.joined is not Joining.SNAPSHOT:
                self.joined = tier.joining(table.name)
            from_snapshot = self.joined is Joining.SNAPSHOT
            may_be_late = not self._algorithm.is_synchronous or tier.rejoining.done or from_snapshot
            if late and not may_be_late and not np.array_equal(before, weights):
                raise LateError(
                    f"other groups of this job had trained before this one came to {table.name!r}: start all groups "
                    "together, with another name of the job (HYBRIDPS_JOB), or use elastic or async, where a late "
                    "group continues from the centre"
                )
            slots, nbytes = len(table.layout.slots), table.layout.nbytes
            self._context.events.emit(Registered(table.name, self._algorithm.name, slots, nbytes, bool(late)))

    def _make_table(self, name: str, layout: Layout, vectors: int) -> Table:
        levels = self._algorithm.levels
        tensor = levels.tensor(layout.length, layout.dtype, vectors)
        # This is the same on all ranks, which may have different numbers of devices.
        total = vectors if levels.group.size == 1 else 0 if tensor.rows is None else tensor.rows.total
        apart = self._algorithm.keeps_gradients and total == levels.group.size
        weights = levels.tensor(layout.length, layout.dtype) if apart else None
        with self._context.watch(f"the registration of {name}"):
            self._algorithm.join_gradients(name, layout)
        self._context.trace.add_keys(name, layout, vectors)
        return Table(name, layout, tensor, weights, self._algorithm.row.rule.whole_keys)
