"""Row-sparse gradients: rows of an array, summed over all workers without the rows that no worker has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hybridps.algorithms import Algorithm
from hybridps.errors import LayoutError
from hybridps.memory import Layout
from hybridps.step.job_context import JobContext
from hybridps.step.plan import Span, Table
from hybridps.step.schedule import Item, Schedule
from hybridps.step.steps import Reducer
from hybridps.step.weights import InitialValues

TABLE_BYTES = 8 << 20
"""The rows of a key are summed in parts of this size. It limits a key's memory on each worker and at the servers."""

FIRST_IDS = 1023
"""The number of row numbers that a group sends to the others together with their count."""

IDS = 1 << 14
"""The number of row numbers in each later exchange."""


class SparseRows(NamedTuple):
    """Some rows of an array. `ids`: their numbers, int64, ascending, each once; `values`: one row for each."""

    ids: np.ndarray
    values: np.ndarray


class SparseGradient(Item):
    """A row-sparse gradient that the program has pushed. `read` returns its rows once it has arrived."""

    def __init__(
        self,
        name: str,
        kind: str,
        number: int,
        read: Callable[[], SparseRows],
        sums: SparseGradients,
        schedule: Schedule,
    ) -> None:
        super().__init__(schedule.inbox)
        self.title = f"the sum of the rows of key {name!r}"
        self.shape = kind
        self.rows: SparseRows
        """The sum over all workers, once the item is done."""
        self._name = name
        self._number = number
        self._read = read
        self._sums = sums

    def run(self, items: Sequence[Item]) -> int:
        self.rows = self._sums.sum(self._name, self._read(), self._number)
        self.finish()
        return 1


class SparseGradients:
    """The row-sparse gradients of one model. Used by the program's thread; all ranks make the same calls in order.

    The workers of a group tell each other the numbers of their rows, and the groups do so through a table `ids` at the
    servers. All of them then lay out the rows of all in the same way, with zeros where a worker has none, and sum these
    like dense gradients. `initial`: the initial values of the same model. `prefix` begins the names of the tables.
    """

    def __init__(
        self, schedule: Schedule, algorithm: Algorithm, context: JobContext, initial: InitialValues, prefix: str
    ) -> None:
        self._schedule = schedule
        self._algorithm = algorithm
        self._context = context
        self._initial = initial
        self._prefix = prefix
        self._reducer = Reducer(algorithm, context)
        self._kinds: dict[str, str] = {}
        self._tables: dict[str, Table] = {}
        self._ids: Table | None = None
        self._pushes: dict[str, int] = {}
        self._goes_over_groups = context.groups > 1 and algorithm.row.sends == "gradients"

    def __contains__(self, name: str) -> bool:
        """Return whether the key has been laid out."""
        return name in self._tables

    def lay_out(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        """Make a table for the rows of a key, an array of this dtype and shape, and wait for it.

        Raises LayoutError for a dtype that cannot be laid out, or for an array without elements.
        """
        row_bytes = int(np.prod(shape[1:])) * np.dtype(dtype).itemsize
        if not shape or not shape[0] * row_bytes:
            raise LayoutError(f"key {name!r} has the shape {shape}: it has no rows to be summed")
        rows = max(1, min(shape[0], TABLE_BYTES // row_bytes))
        wanted = {f"{self._prefix}{len(self._tables)}": Layout.of(dtype, {name: (rows, *shape[1:])})}
        if self._goes_over_groups and self._ids is None:
            shape_of_ids = (max(IDS, 1 + FIRST_IDS), self._context.groups, 2)
            wanted[f"{self._prefix}.ids"] = Layout.of("float32", {"ids": shape_of_ids})
        title = f"the layout of the rows of key {name!r}"
        table, *more = self._schedule.call(title, lambda: self._make_tables(wanted))
        self._tables[name] = table
        self._kinds[name] = f"{shape} of {dtype}"
        self._ids = more[0] if more else self._ids

    def push(self, name: str, read: Callable[[], SparseRows]) -> SparseGradient:
        """Push a key. Call the returned item when `read` can return this worker's rows.

        `read` is called on the communication thread.
        """
        self._pushes[name] = number = self._pushes.get(name, -1) + 1
        item = SparseGradient(name, self._kinds[name], number, read, self, self._schedule)
        self._schedule.post(item)
        return item

    def close(self) -> None:
        """Drop the tables. Not a collective; may be called from any thread, once."""
        tables = [*self._tables.values(), *([self._ids] if self._ids is not None else [])]
        names, algorithm = [table.name for table in tables], self._algorithm
        self._schedule.post_local("the end of row-sparse gradients", lambda: algorithm.drop(names))

    # The methods below run on the communication thread.

    def _make_tables(self, wanted: Mapping[str, Layout]) -> list[Table]:
        layouts, tables = list(wanted.values()), []
        self._schedule.agreement.check_layouts(layouts)
        self._initial.check_tables(layouts)
        for name, layout in wanted.items():
            tensor = self._algorithm.levels.tensor(layout.length, layout.dtype)
            with self._context.watch(f"the registration of {name}"):
                self._algorithm.join_rows(name, layout)
            tables.append(Table(name, layout, tensor))
        return tables

    def sum(self, name: str, own: SparseRows, number: int) -> SparseRows:
        """Return the sum of a key's rows over all workers. `number` counts the pushes of the key: 0, 1, ..."""
        with self._context.watch(f"the rows of key {name!r} that other workers have"):
            ids = self._unite(own.ids)
        table = self._tables[name]
        rows = table.views(name)[0]
        values = np.empty((len(ids), *rows.shape[1:]), rows.dtype)
        places = np.searchsorted(ids, own.ids)
        for start in range(0, len(ids), len(rows)):
            stop = min(start + len(rows), len(ids))
            here = slice(*np.searchsorted(places, (start, stop)))
            end = self._end(table, (stop - start) * values[0].size)
            table.tensor.vectors[0][:end] = 0
            rows[places[here] - start] = own.values[here]
            self._reducer.reduce([Span(table, 0, end)], number, {})
            values[start:stop] = rows[: stop - start]
        return SparseRows(ids, values)

    def _unite(self, ids: np.ndarray) -> np.ndarray:
        """Return the numbers of the rows that any of the summed workers has."""
        group = self._algorithm.levels.group
        if group.size > 1:
            told = group.allgather_bytes(ids.astype(np.int64).tobytes())
            ids = _union(np.frombuffer(each, np.int64) for each in told if each)
        return _union(self._tell_groups(self._ids, ids)) if self._ids is not None else ids

    def _tell_groups(self, table: Table, ids: np.ndarray) -> list[np.ndarray]:
        """Return the row numbers of each group.

        Each group writes the count of its rows, and their numbers, to a column of its own, where all others write
        zeros. So the sum over the groups has what each group has written.
        """
        first = np.concatenate([[len(ids)], ids[:FIRST_IDS]]).astype(np.int64)
        columns = self._exchange_columns(table, first, 1 + FIRST_IDS)
        counts = columns[0]
        most, parts = int(counts.max()), [columns[1:]]
        for start in range(FIRST_IDS, most, IDS):
            parts.append(self._exchange_columns(table, ids[start : start + IDS], min(IDS, most - start)))
        told = np.concatenate(parts)
        return [told[:count, group] for group, count in enumerate(counts)]

    def _exchange_columns(self, table: Table, values: np.ndarray, length: int) -> np.ndarray:
        """Return the values of all groups: a column of `length` for each, which ends with zeros if a group has fewer.

        A number, below 2^40, is sent as two of float32, which all servers sum exactly: its lower 16 bits, and the rest.
        """
        columns, end = table.views("ids")[0], self._end(table, length * self._context.groups * 2)
        table.tensor.vectors[0][:end] = 0
        mine = columns[: len(values), self._context.group]
        mine[:, 0], mine[:, 1] = values >> 16, values & 0xFFFF
        tier = self._algorithm.tier
        tier.finish(tier.exchange(table.name, table.tensor, 0, end))
        told = columns[:length].astype(np.int64)
        return (told[:, :, 0] << 16) + told[:, :, 1]

    def _end(self, table: Table, elements: int) -> int:
        """Return the end of the elements to exchange: at least the first `elements`, in whole chunks if need be."""
        if not self._context.whole_tables:
            return elements
        chunk = self._context.settings.usual_chunk_bytes // table.layout.itemsize
        return min(-(-elements // chunk) * chunk, table.layout.length)


def _union(some: Iterable[np.ndarray]) -> np.ndarray:
    """Return all numbers that are in any of these arrays, ascending, each once."""
    return np.unique(np.concatenate([np.empty(0, np.int64), *some]))
