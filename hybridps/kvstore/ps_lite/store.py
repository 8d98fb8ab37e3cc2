"""The parameter store of a group's leader whose tables lie on MXNet's own servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any

import msgspec
import mxnet as mx
import numpy as np
from mxnet.base import MXNetError
from mxnet.ndarray import NDArray

from hybridps.config import Settings
from hybridps.errors import ConfigError, LayoutError, ServerError
from hybridps.kvstore.arrays import array_over
from hybridps.kvstore.ps_lite.native import Native
from hybridps.kvstore.ps_lite.rules import Assignment, Keys
from hybridps.memory import Layout
from hybridps.ps.chunk_map import Chunk, ChunkMap, check_new, registered_map
from hybridps.ps.clocks import BoundedStale, BulkSynchronous, Clock
from hybridps.ps.rules import Rule
from hybridps.ps.rules.finite import check_finite
from hybridps.ps.scheduler import Scheduler
from hybridps.ps.terms import Terms


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


class Operation:
    """Something under way. Implements `Pending`."""

    def __init__(self, what: str, native: Native, arrays: Sequence[NDArray]) -> None:
        self._what = what
        self._native = native
        self._arrays = arrays
        self._future: Future[None] = native.when_done(arrays)
        self._waited = False

    def await_end(self) -> None:
        """Return when it is done, whether somebody waits for it or not."""
        self._native.await_(self._what, self._future)

    def wait(self) -> None:
        """As `Pending.wait`."""
        if self._waited:
            raise ServerError(f"the {self._what} was waited for already: wait once for each operation")
        self._waited = True
        self.await_end()
        try:
            for array in self._arrays:
                array.wait_to_read()
        except MXNetError as error:
            raise ServerError(f"the {self._what} has failed: {error}") from None


class _Registration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all groups must say alike when they register a table."""

    job: str
    table: str
    terms: Terms


class _Table(msgspec.Struct, frozen=True):
    clock: Clock
    numbers: range
    """Of its chunks, at the servers."""


class MXNetStore:
    """A group at MXNet's servers. Implements `ParameterStore`; also a context manager.

    A chunk is a pair of keys there (`HybridPSRules`), and an exchange one message each way, in which MXNet pushes and
    pulls. All rules are computed by hybridps' own kernels, so an exchange means what it means at hybridps' servers:
    with Elastic both sides use the same d. What is different:

    - All groups register the same tables in the same order, and each registration waits for all of them.
    - A group cannot leave a synchronous job: the others then wait until their deadline. None can come back.
    - The values of a round are added in the order in which they come, so runs may differ in the last bits.
    - `push` is done when its round is complete. A second exchange of a chunk begins when the first is done.
    - Rows of a group are not added up at the servers.
    - Tables are of float32. Bounded-stale clocks are refused, and so are two kinds of clocks in one job.
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
        self._maps: dict[str, ChunkMap] = {}
        self._tables: dict[str, _Table] = {}
        self._exchanges: dict[int, Operation] = {}
        self._closed = False
        native.join()

    def register(
        self, table: str, layout: Layout, initial: np.ndarray | None, rule: Rule, clock: Clock | None = None
    ) -> bool:
        """As `ParameterStore.register`. Waits for all groups."""
        self._check_open()
        rule = check_new(self._tables, table, self._group, rule)
        clock = clock or rule.clocks[0]()
        if isinstance(clock, BoundedStale):
            raise ServerError(
                f"MXNet's servers cannot keep the clock {clock} of {type(rule).__name__}: use BulkSynchronous or "
                "FreeRunning, or HYBRIDPS_BACKEND=hybridps"
            )
        chunk_map = ChunkMap(layout, self._settings.chunk_bytes, self._scheduler.servers)
        if initial is not None:
            chunk_map.check_array(initial)
        terms = Terms(layout, rule, clock, self._settings.chunk_bytes, 0, self._scheduler.servers)
        terms.check()
        if layout.dtype != "float32":
            raise LayoutError(
                f"table {table!r} is of {layout.dtype}, and MXNet's servers can be trusted with float32 alone: a flag "
                "of theirs that nothing sets (multi_precision) says whether they compute others in float32; use "
                "HYBRIDPS_BACKEND=hybridps"
            )
        self._agree(_Registration(self._job, table, terms))
        numbers = self._native.take_chunks(len(chunk_map.chunks))
        if numbers:
            values = self._scheduler.groups if isinstance(clock, BulkSynchronous) else 1
            assignment = Assignment(numbers.start, numbers.stop, rule, values)
            self._native.command(msgspec.json.encode(assignment))
            self._initialise(table, chunk_map, numbers, initial)
        self._maps[table] = chunk_map
        self._tables[table] = _Table(clock, numbers)
        return self._group > 0

    def exchange(self, table: str, values: np.ndarray, answer: np.ndarray, start: int, stop: int) -> Operation:
        """As `ParameterStore.exchange`. `answer` holds the values until the answer comes."""
        chunks = self._map_of(table, values, answer).between(start, stop)
        self._check_finite(table, values[start:stop])
        self._native.use_clock(self._tables[table].clock, table)
        self._await_last(table, chunks)
        np.copyto(answer[start:stop], values[start:stop])
        store = self._native.store
        return self._send("exchange", table, chunks, answer, lambda keys, arrays: store.pushpull(keys, arrays, arrays))

    def exchange_rows(self, table: str, rows: Sequence[np.ndarray], start: int, stop: int) -> None:
        """As `ParameterStore.exchange_rows`: never reached."""
        self._map_of(table, *rows).between(start, stop)

    def push(self, table: str, values: np.ndarray) -> Operation:
        """As `ParameterStore.push`; with a bulk-synchronous clock, done when all groups have pushed."""
        chunks = self._map_of(table, values).chunks
        self._check_finite(table, values)
        self._native.use_clock(self._tables[table].clock, table)
        self._await_last(table, chunks)
        return self._send("push", table, chunks, values, self._native.store.push)

    def pull(self, table: str, out: np.ndarray) -> Operation:
        """As `ParameterStore.pull`."""
        chunks = self._map_of(table, out).chunks
        keys = [self._keys.centre(self._tables[table].numbers[chunk.index]) for chunk in chunks]
        arrays = _arrays(out, chunks)
        if chunks:
            self._native.store.pull(keys, arrays)
        return Operation(f"pull of table {table!r}", self._native, arrays)

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

    def _send(
        self,
        kind: str,
        table: str,
        chunks: Sequence[Chunk],
        values: np.ndarray,
        begin: Callable[[Sequence[int], Sequence[NDArray]], Any],
    ) -> Operation:
        keys = [self._keys.answer(self._tables[table].numbers[chunk.index]) for chunk in chunks]
        arrays = _arrays(values, chunks)
        if chunks:
            begin(keys, arrays)
        operation = Operation(f"{kind} of table {table!r}", self._native, arrays)
        self._exchanges |= dict.fromkeys(keys, operation)
        self.bytes_to_servers += sum(chunk.length for chunk in chunks) * values.itemsize
        return operation

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
        first.terms.check_same(mine.terms, mine.table)

    def _tell(self, key: int, numbers: np.ndarray) -> np.ndarray:
        """The integers that ps-lite's first worker has under a new key. Waits for all groups."""
        store, out = self._native.store, mx.nd.zeros(numbers.shape, dtype="float64")
        self._native.call("registration", lambda: store.init(key, mx.nd.array(numbers, dtype="float64")))
        store.pull(key, out)
        Operation("registration", self._native, [out]).wait()
        return out.asnumpy()

    def _initialise(self, table: str, chunk_map: ChunkMap, numbers: range, initial: np.ndarray | None) -> None:
        """Make the keys of a table, with the first group's values. Waits for all groups."""
        store, what = self._native.store, f"registration of table {table!r}"
        values = np.zeros(chunk_map.layout.length, chunk_map.layout.dtype)
        centres = [self._keys.centre(number) for number in numbers]
        keys = [*centres, *map(self._keys.answer, numbers)]
        self._native.call(what, lambda: store.init(keys, _arrays(values, chunk_map.chunks) * 2))
        # In a memory of its own, which MXNet then keeps for what is pulled.
        values = np.zeros_like(values)
        if self._group == 0 and initial is not None:
            np.copyto(values, initial)
        elif self._group:
            values.fill(-0.0)  # changes no bit of a sum
        if self._group == 0 or self._native.is_synchronous:
            arrays = _arrays(values, chunk_map.chunks)
            store.push(centres, arrays)
            Operation(what, self._native, arrays).wait()
        self._native.call(what, store._barrier)

    def _check_finite(self, table: str, values: np.ndarray) -> None:
        if self._settings.check_finite and values.size:
            check_finite(values, f"table {table!r}")

    def _await_last(self, table: str, chunks: Sequence[Chunk]) -> None:
        """MXNet counts values, not groups: a second one in a round would be taken for another group's."""
        for chunk in chunks:
            before = self._exchanges.get(self._keys.answer(self._tables[table].numbers[chunk.index]))
            if before is not None:
                before.await_end()

    def _map_of(self, table: str, *arrays: np.ndarray) -> ChunkMap:
        """The chunks of a registered table, whose layout `arrays` must have."""
        self._check_open()
        return registered_map(self._maps, table, self._group, arrays)

    def _check_open(self) -> None:
        if self._closed:
            raise ServerError(f"group {self._group} has left MXNet's servers: open a new job")


def _arrays(values: np.ndarray, chunks: Sequence[Chunk]) -> list[NDArray]:
    """MXNet's arrays over the memory of the chunks."""
    return [array_over(values[chunk.start : chunk.stop]) for chunk in chunks]
