"""The weights as the servers see them: averaged with the centre, and the centre itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from hybridps.algorithms import Algorithm
from hybridps.events import Exchanged, Registered
from hybridps.memory import Arena, Layout
from hybridps.shared_memory import shared_memory
from hybridps.step.gradients import drop_all
from hybridps.step.initial import InitialValues
from hybridps.step.job_context import JobContext
from hybridps.step.plan import KeySpec, lay_out
from hybridps.step.schedule import Item, Schedule, Work
from hybridps.tensor_collectives import Tensor


class Weights:
    """Keys whose weights are averaged together. Used by the program's thread; all ranks make the same calls in order.

    The weights lie in `views` while an operation runs: call the returned item when they are there; they are the result
    when it is released. `initial`: the initial values of the same model. `prefix` begins the names of the tables.
    """

    def __init__(
        self,
        keys: Mapping[str, KeySpec],
        schedule: Schedule,
        algorithm: Algorithm,
        context: JobContext,
        initial: InitialValues,
        prefix: str,
    ) -> None:
        """Raises LayoutError for a dtype that cannot be laid out."""
        self._schedule = schedule
        self._algorithm = algorithm
        self._context = context
        self._initial = initial
        laid_out = lay_out(prefix, {name: spec._replace(vectors=1) for name, spec in keys.items()})
        self._layouts = {table: layout for table, (layout, _) in laid_out.items()}
        self._arenas = {table: _shared(layout) for table, layout in self._layouts.items()}
        self.views = views_of(self._arenas)
        """The array of each key, in its shape."""

    def join(self) -> Item:
        """Register the weights. They are the centre afterwards, if it was there already."""
        return self._post("the registration of the weights", self._join)

    def average(self, step: int) -> Item:
        """Average the weights with the centre."""
        return self._post(f"averaging in step {step}", lambda: self._average(step))

    def read_centre(self) -> tuple[Item, dict[str, np.ndarray]]:
        """The centre of all keys, in arrays of its own."""
        arenas = {table: Arena(layout) for table, layout in self._layouts.items()}
        return self._post("reading the centre", lambda: self._read_centre(arenas)), views_of(arenas)

    def close(self) -> None:
        """Drop the tables. Not a collective; may be called from any thread, once."""
        names, algorithm = list(self._layouts), self._algorithm
        self._schedule.post_local("the end of weights", lambda: drop_all(algorithm, names))

    def _post(self, title: str, work: Callable[[], None]) -> Item:
        item = Work(title, self._schedule.inbox, work)
        self._schedule.post(item)
        return item

    def _join(self) -> None:
        layouts = list(self._layouts.values())
        self._schedule.agreement.check_layouts(layouts)
        self._initial.check_tables(layouts)
        for table, arena in self._arenas.items():
            with self._context.watch(f"the registration of {table}"):
                late = self._algorithm.join_weights(table, arena.layout, Tensor([arena.flat]))
            self._context.events.emit(
                Registered(table, self._algorithm.name, len(arena.layout.slots), arena.layout.nbytes, bool(late))
            )

    def _average(self, step: int) -> None:
        for table, arena in self._arenas.items():
            began = time.monotonic()
            with self._context.watch(f"the averaging of {table} with the centre"):
                self._algorithm.average_(table, Tensor([arena.flat]))
            took = time.monotonic() - began
            self._context.events.emit(Exchanged(table, step, took, arena.layout.nbytes, self._algorithm.distance))

    def _read_centre(self, arenas: Mapping[str, Arena]) -> None:
        for table, arena in arenas.items():
            with self._context.watch(f"reading the centre of {table}"):
                self._algorithm.read_centre(table, Tensor([arena.flat]))


def views_of(arenas: Mapping[str, Arena]) -> dict[str, np.ndarray]:
    """The array of each key of these arenas."""
    return {slot.key: arena.view(slot.key) for arena in arenas.values() for slot in arena.layout.slots}


def _shared(layout: Layout) -> Arena:
    return Arena(layout, shared_memory(layout.nbytes).view(layout.dtype))
