"""The parameter store of a group's leader whose tables lie on MXNet's own servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple

import msgspec
import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from hybridps.config import Settings
from hybridps.errors import ConfigError, LayoutError, ServerError
from hybridps.kvstore.arrays import array_over
from hybridps.kvstore.ps_lite.chunks import Chunk, KeyChunks
from hybridps.kvstore.ps_lite.native import Native, Operation
from hybridps.kvstore.ps_lite.rules import Assignment, Keys
from hybridps.memory import Layout
from hybridps.ps.clocks import BoundedStale, BulkSynchronous, Clock
from hybridps.ps.model import CodecName, Joining, TableSpec
from hybridps.ps.rules import AnyRule, Mean, Rule, Sum
from hybridps.ps.rules.finite import check_finite
from hybridps.ps.scheduler import Scheduler
from hybridps.ps.store import check_new, registered


class MXNetStores:
    """Opens stores, as `hybridps.ps.client.Client` does: the stores of a process share its place in ps-lite."""

    def __init__(self) -> None:
        self._native: Native | None = None

    def __call__(
        self, addresses: Sequence[str], *, job: str, group: int, groups: int, settings: Settings
    ) -> MXNetStore:
        """Open one more store; all groups do it in the same order. The first one waits for all groups."""
        if settings.keys or settings.credentials:
            raise ConfigError("MXNet's servers know no keys: drop HYBRIDPS_KEYS, or use HYBRIDPS_BACKEND=hybridps")
        scheduler = Scheduler.parse(addresses)
        if scheduler.groups != groups:
            raise ServerError(
                f"MXNet's servers at {scheduler.host}:{scheduler.port} were started for groups={scheduler.groups}, and "
                f"this job has {groups}: start them with --groups {groups}"
            )
        if self._native is None:
            self._native = Native(scheduler, settings)
        return MXNetStore(self._native, job=job, group=group, scheduler=scheduler, settings=settings)


class _Registration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all groups must say alike when they register a table."""

    job: str
    table: str
    spec: TableSpec


class _Table(NamedTuple):
    """A registered table."""

    rule: AnyRule
    clock: Clock
    chunks: KeyChunks
    numbers: range
    """Of its chunks, at the servers."""

    def keys(self, chunks: Sequence[Chunk], key_of: Callable[[int], int]) -> list[int]:
        """The keys of some chunks at the servers."""
        return [key_of(self.numbers[chunk.number]) for chunk in chunks]


class MXNetStore:
    """A group at MXNet's servers. Implements `ParameterStore`; also a context manager.

    A chunk is a pair of keys there (`HybridPSRules`), and an exchange one message each way, in which MXNet pushes and
    pulls. All rules are computed by hybridps' own kernels, so an exchange means what it means at hybridps' servers:
    with Elastic both sides use the same d. What is different:

    - All groups register the same tables in the same order, and each registration waits for all of them: no group is
      late, and none finds a table dropped.
    - A group cannot leave a synchronous job: the others then wait until their deadline. None can come back.
    - The values of a round are added in the order in which they come, so runs may differ in the last bits.
    - Whole keys are exchanged. A second exchange of a chunk begins when the first is done.
    - Rows of a group are not added up at the servers.
    - Tables are of float32, and values are exact. Bounded-stale clocks are refused, and so are two kinds of clocks in
      one job.
    - A table that is dropped is forgotten here; MXNet's servers keep its memory.
    """

    def __init__(self, native: Native, *, job: str, group: int, scheduler: Scheduler, settings: Settings) -> None:
        self.bytes_to_servers = 0
        """Payload bytes sent so far."""
        self._native = native
        self._job = job
        self._group = group
        self._scheduler = scheduler
        self._keys = Keys(scheduler.servers)
        self._settings = settings
        self._tables: dict[str, _Table] = {}
        self._exchanges: dict[int, Operation] = {}
        self._closed = False
        native.join()

    def register(
        self,
        table: str,
        layout: Layout,
        initial: np.ndarray | None,
        rule: Rule,
        clock: Clock | None = None,
        codec: CodecName = "exact",
    ) -> Joining:
        """As `ParameterStore.register`. Waits for all groups. All but the first one are `LATE`: its values count."""
        self._check_open()
        rule = check_new(self._tables, table, self._group, rule)
        clock = clock or rule.clocks[0]()
        chunks = KeyChunks(layout, self._settings.chunk_bytes)
        if initial is not None:
            chunks.check_array(initial)
        spec = TableSpec(layout, rule, clock, self._settings.chunk_bytes, 0, self._scheduler.servers)
        spec.check()
        _check_possible(table, spec, codec)
        self._agree(_Registration(self._job, table, spec))
        numbers = self._native.take_chunks(len(chunks.chunks))
        if numbers:
            values = self._scheduler.groups if isinstance(clock, BulkSynchronous) else 1
            assignment = Assignment(numbers.start, numbers.stop, rule, values)
            self._native.command(msgspec.json.encode(assignment))
            self._initialise(table, chunks, numbers, initial)
        self._tables[table] = _Table(rule, clock, chunks, numbers)
        return Joining.LATE if self._group else Joining.NEW

    def exchange(self, table: str, values: np.ndarray, answer: np.ndarray, start: int, stop: int) -> Operation:
        """As `ParameterStore.exchange`, of whole keys. `answer` holds the values until the answer comes."""
        known = self._table_of(table, values, answer)
        chunks = known.chunks.between(start, stop)
        self._check_finite(table, known.rule, values[start:stop])
        self._native.use_clock(known.clock, table)
        keys = known.keys(chunks, self._keys.answer)
        self._await_last(keys)
        if chunks:
            start, stop = chunks[0].start, chunks[-1].stop
            np.copyto(answer[start:stop], values[start:stop])
        arrays = _arrays(answer, chunks)
        if chunks:
            self._native.store.pushpull(keys, arrays, arrays)
        operation = Operation(f"exchange of table {table!r}", self._native, arrays)
        self._exchanges |= dict.fromkeys(keys, operation)
        self.bytes_to_servers += (stop - start) * values.itemsize
        return operation

    def exchange_rows(self, table: str, rows: Sequence[np.ndarray], start: int, stop: int) -> None:
        """As `ParameterStore.exchange_rows`: the servers never reach the memory of a group."""
        self._table_of(table, *rows).chunks.between(start, stop)

    def pull(self, table: str, out: np.ndarray) -> Operation:
        """As `ParameterStore.pull`."""
        known = self._table_of(table, out)
        chunks = known.chunks.chunks
        arrays = _arrays(out, chunks)
        if chunks:
            self._native.store.pull(known.keys(chunks, self._keys.centre), arrays)
        return Operation(f"pull of table {table!r}", self._native, arrays)

    def drop(self, table: str) -> None:
        """As `ParameterStore.drop`, in this process alone."""
        known = self._table_of(table)
        for key in known.keys(known.chunks.chunks, self._keys.answer):
            self._exchanges.pop(key, None)
        del self._tables[table]

    def barrier(self) -> None:
        """Return when all groups have called it, by ps-lite's own barrier."""
        self._check_open()
        self._native.call("barrier of all groups", self._native.store._barrier)

    def close(self) -> None:
        """As `ParameterStore.close`. A second time does nothing."""
        if not self._closed:
            self._closed = True
            self._native.leave()

    def __enter__(self) -> MXNetStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _agree(self, mine: _Registration) -> None:
        """Compare what this group registers with what the one that is ps-lite's first registers.

        Raises LayoutError or ServerError with the difference.
        """
        text = np.frombuffer(msgspec.json.encode(mine), np.uint8)
        (number,) = self._native.take_chunks(1)
        length = self._tell(self._keys.centre(number), np.array([text.size]))
        told = self._tell(self._keys.answer(number), np.resize(text, int(length[0])))
        first = msgspec.json.decode(told.astype(np.uint8).tobytes(), type=_Registration)
        if (first.job, first.table) != (mine.job, mine.table):
            raise ServerError(
                f"this group registers table {mine.table!r} of {mine.job!r} while another one registers "
                f"{first.table!r} of {first.job!r}: with MXNet's servers all groups register in the same order"
            )
        first.spec.check_same(mine.spec, mine.table)

    def _tell(self, key: int, numbers: np.ndarray) -> np.ndarray:
        """The integers that ps-lite's first worker has under a new key. Waits for all groups."""
        store, out = self._native.store, mx.nd.zeros(numbers.shape, dtype="float64")
        self._native.call("registration", lambda: store.init(key, mx.nd.array(numbers, dtype="float64")))
        store.pull(key, out)
        Operation("registration", self._native, [out]).wait()
        return out.asnumpy()

    def _initialise(self, table: str, chunks: KeyChunks, numbers: range, initial: np.ndarray | None) -> None:
        """Make the keys of a table, with the first group's values. Waits for all groups."""
        store, what = self._native.store, f"registration of table {table!r}"
        values = np.zeros(chunks.layout.length, chunks.layout.dtype)
        centres = [self._keys.centre(number) for number in numbers]
        keys = [*centres, *map(self._keys.answer, numbers)]
        self._native.call(what, lambda: store.init(keys, _arrays(values, chunks.chunks) * 2))
        # In a memory of its own, which MXNet then keeps for what is pulled.
        values = np.zeros_like(values)
        if self._group == 0 and initial is not None:
            np.copyto(values, initial)
        elif self._group:
            values.fill(-0.0)  # changes no bit of a sum
        if self._group == 0 or self._native.is_synchronous:
            arrays = _arrays(values, chunks.chunks)
            store.push(centres, arrays)
            Operation(what, self._native, arrays).wait()
        self._native.call(what, store._barrier)

    def _check_finite(self, table: str, rule: AnyRule, values: np.ndarray) -> None:
        """Raise NotFiniteError for values that would poison a centre, or any with the setting `refuse`."""
        shared = not isinstance(rule, (Sum, Mean))
        if (shared or self._settings.check_finite == "refuse") and values.size:
            check_finite(values, f"table {table!r}")

    def _await_last(self, keys: Sequence[int]) -> None:
        """MXNet counts values, not groups: it would take a second one in a round for another group's."""
        for key in keys:
            before = self._exchanges.get(key)
            if before is not None:
                before.await_end()

    def _table_of(self, table: str, *arrays: np.ndarray) -> _Table:
        """A registered table, whose layout `arrays` must have (else LayoutError)."""
        self._check_open()
        known = registered(self._tables, table, self._group)
        for array in arrays:
            known.chunks.check_array(array)
        return known

    def _check_open(self) -> None:
        if self._closed:
            raise ServerError(f"group {self._group} has left MXNet's servers: open a new job")


def _check_possible(table: str, spec: TableSpec, codec: str) -> None:
    """Raise ServerError or LayoutError for what MXNet's servers cannot do."""
    if isinstance(spec.clock, BoundedStale):
        raise ServerError(
            f"MXNet's servers cannot keep the clock {spec.clock} of {type(spec.rule).__name__}: use BulkSynchronous or "
            "FreeRunning, or HYBRIDPS_BACKEND=hybridps"
        )
    if codec != "exact":
        raise ServerError(f"MXNet's servers do not know the codec {codec!r}: use 'exact', or HYBRIDPS_BACKEND=hybridps")
    if spec.layout.dtype != "float32":
        raise LayoutError(
            f"table {table!r} is of {spec.layout.dtype}, and MXNet's servers can be trusted with float32 alone: a flag "
            "of theirs that nothing sets (multi_precision) says whether they compute others in float32; use "
            "HYBRIDPS_BACKEND=hybridps"
        )


def _arrays(values: np.ndarray, chunks: Sequence[Chunk]) -> list[NDArray]:
    """MXNet's arrays over the memory of the chunks."""
    return [array_over(values[chunk.start : chunk.stop]) for chunk in chunks]
