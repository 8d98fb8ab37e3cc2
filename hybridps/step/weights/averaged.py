"""The weights of a group: averaging with the centre or with other groups, and reading the centre."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from hybridps.algorithms import USUAL, Algorithm
from hybridps.errors import ServerError
from hybridps.events import Changed, Exchanged, Noted, Registered, Skipped, say
from hybridps.memory import Arena, Layout
from hybridps.shared_memory import shared_memory
from hybridps.step.job_context import JobContext
from hybridps.step.plan import KeySpec, lay_out
from hybridps.step.schedule import Item, Schedule, Work
from hybridps.step.weights.initial import InitialValues
from hybridps.step.weights.timetable import Timetable
from hybridps.tensor_collectives import Tensor


class Weights:
    """Keys whose weights are averaged together. Used by the program's thread; all ranks make the same calls in order.

    The weights lie in `views` while an operation runs. Call the returned item when they are there; once it is released,
    they are the result. `initial`: the initial values of the same model. `prefix` begins the names of the tables.
    """

    def __init__(
        self,
        keys: Mapping[str, KeySpec],
        schedule: Schedule,
        algorithm: Algorithm,
        context: JobContext,
        initial: InitialValues,
        prefix: str,
        alone: bool = False,
    ) -> None:
        """`alone`: whether these are one key of many that are averaged separately, whose costs are not seen together.

        Raises LayoutError for a dtype that cannot be laid out.
        """
        self._schedule = schedule
        self._algorithm = algorithm
        self._context = context
        self._initial = initial
        self._timetable = Timetable(schedule)
        self._alone = alone
        self._alone_since: int | None = None
        """While the group trains alone, the number of exchanges that it had left out before."""
        laid_out = lay_out(prefix, {name: spec._replace(vectors=1) for name, spec in keys.items()})
        self._layouts = {table: layout for table, (layout, _) in laid_out.items()}
        self._arenas = {table: _shared(layout) for table, layout in self._layouts.items()}
        self.views = views_of(self._arenas)
        """The array of each key, in its shape."""

    def join(self) -> Item:
        """Register the weights. If the centre existed already, they hold it afterwards."""
        return self._post("the registration of the weights", self._join)

    def may_be_due(self, step: int) -> bool:
        """Return whether to `average` in this step (0, 1, ...): equal on all ranks of the group. Call once per step."""
        if self._schedule.roll.hands_in and self._algorithm.has_centre and not self._algorithm.is_synchronous:
            return step > 0
        if not self._algorithm.decides_ahead:
            return self._algorithm.averages(step)
        return USUAL.may_be_due(step) if self._alone else step > 0 and self._timetable.is_due(step)

    def average(self, step: int) -> Item:
        """Average the weights with others, if the algorithm's trigger says so."""
        return self._post(f"averaging in step {step}", lambda: self._average(step))

    def read_centre(self) -> tuple[Item, dict[str, np.ndarray]]:
        """Begin to read the centre of all keys. Returns an item, and new arrays by key."""
        return pull_centre(self._schedule, self._algorithm, self._context, self._layouts)

    def close(self) -> None:
        """Drop the tables. Not a collective; may be called from any thread, once."""
        names, algorithm = list(self._layouts), self._algorithm
        self._schedule.post_local("the end of weights", lambda: algorithm.drop(names))

    def _post(self, title: str, work: Callable[[], None]) -> Item:
        item = Work(title, self._schedule.inbox, work)
        self._schedule.post(item)
        return item

    def _join(self) -> None:
        layouts = list(self._layouts.values())
        self._schedule.agreement.check_layouts(layouts)
        self._initial.check_tables(layouts)
        for table, arena in self._arenas.items():
            with self._context.watch(f"the registration of {table}"), _naming_keys(arena):
                late = self._algorithm.join_weights(table, arena.layout, Tensor([arena.flat]))
            self._context.events.emit(
                Registered(table, self._algorithm.name, len(arena.layout.slots), arena.layout.nbytes, bool(late))
            )

    def _average(self, step: int) -> None:
        for table, arena in self._arenas.items():
            began = time.monotonic()
            with self._context.watch(f"the averaging of {table}"), _naming_keys(arena):
                skipped = self._algorithm.skipped
                nbytes = self._algorithm.average_(table, Tensor([arena.flat]), step)
            if self._algorithm.skipped > skipped:
                self._context.events.emit(Skipped(table, step))
            self._tell(self._algorithm.skipped > skipped, bool(nbytes))
            took = time.monotonic() - began
            self._schedule.pace.leave_out(took)
            if nbytes:
                self._context.trace.span("averaging", began, nbytes=nbytes)
            change = self._algorithm.change(table)
            if math.isfinite(change):
                self._context.events.emit(Changed(table, step, change, arena.layout.nbytes, nbytes))
            if nbytes:
                self._context.events.emit(Exchanged(table, step, took, nbytes, self._algorithm.distance))
        if self._algorithm.decides_ahead and not self._alone:
            self._timetable.tell(self._algorithm.next_tau(self._arenas))

    def _tell(self, skips: bool, exchanged: bool) -> None:
        """Tell the user once that the group trains alone, and once that it averages again."""
        group, said = f"group {self._context.group}", ""
        if skips and self._alone_since is None:
            self._alone_since = self._algorithm.skipped - 1
            said = f"{group} trains alone until it can average its weights again"
        elif exchanged and self._alone_since is not None:
            count, self._alone_since = self._algorithm.skipped - self._alone_since, None
            said = f"{group} averages its weights again; it left out {count} exchanges"
        if said and self._algorithm.levels.group.rank == 0:
            self._context.events.emit(Noted(said))
            if not self._context.settings.quiet:
                say(said)


def pull_centre(
    schedule: Schedule, algorithm: Algorithm, context: JobContext, layouts: Mapping[str, Layout]
) -> tuple[Item, dict[str, np.ndarray]]:
    """Begin to read the centre of these tables. Returns an item, and new arrays by key."""
    arenas = {table: Arena(layout) for table, layout in layouts.items()}

    def read() -> None:
        for table, arena in arenas.items():
            with context.watch(f"reading the centre of {table}"):
                algorithm.read_centre(table, Tensor([arena.flat]))

    item = Work("reading the centre", schedule.inbox, read)
    schedule.post(item)
    return item, views_of(arenas)


def views_of(arenas: Mapping[str, Arena]) -> dict[str, np.ndarray]:
    """Return the array of each key of these arenas."""
    return {slot.key: arena.view(slot.key) for arena in arenas.values() for slot in arena.layout.slots}


def _shared(layout: Layout) -> Arena:
    return Arena(layout, shared_memory(layout.nbytes).view(layout.dtype))


@contextmanager
def _naming_keys(arena: Arena) -> Iterator[None]:
    """Add to an error of the servers which keys have NaN or Inf, which servers refuse in what groups share."""
    try:
        yield
    except ServerError as error:
        keys = [slot.key for slot in arena.layout.slots if not np.isfinite(arena.view(slot.key)).all()]
        if not keys:
            raise
        names = ", ".join(map(repr, keys[:3])) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
        raise type(error)(f"{error} (NaN or Inf in key {names})") from None
