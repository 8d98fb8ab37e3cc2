"""A leader's parameter store whose tables are on MXNet's own servers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from hybridps.addresses import Scheduler
from hybridps.codecs import CodecSpec
from hybridps.config import Settings
from hybridps.errors import ConfigError, LayoutError, ServerError
from hybridps.kvstore.arrays import array_over
from hybridps.kvstore.ps_lite.native import Native, Operation
from hybridps.kvstore.ps_lite.table import Assignment, Table
from hybridps.memory import Layout
from hybridps.ps.clocks import BoundedStale, BulkSynchronous, Clock
from hybridps.ps.model import Joining, Rules, TableSpec
from hybridps.ps.rules import Rule
from hybridps.ps.rules.finite import check_finite
from hybridps.ps.store import check_new, registered


class MXNetStores:
    """Opens stores, like `hybridps.ps.client.Client`. The stores of a process share its place in ps-lite."""

    def __init__(self) -> None:
        self._native: Native | None = None

    def __call__(
        self, addresses: Sequence[str], *, job: str, group: int, groups: int, settings: Settings, at_once: bool = False
    ) -> MXNetStore:
        """Open a store, as `OpenStore`; `at_once` changes nothing here.

        All groups open their stores in the same order. The first one waits for all groups.
        """
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
        return MXNetStore(self._native, job=job, group=group, settings=settings)


_Registration = tuple[str, str, TableSpec]
"""What all groups must agree on when they register a table: the job, the name and the spec."""


class MXNetStore:
    """A group at MXNet's servers. Implements `ParameterStore`.

    A chunk is a pair of keys there (`Assignment`), and an exchange is one message each way, in which MXNet pushes and
    pulls. The kernels of hybridps compute all rules, so an exchange has the same result as at hybridps' servers: with
    Elastic both sides use the same d. docs/parameter-server.md lists the differences.
    """

    finds_not_finite = False
    away = False

    def __init__(self, native: Native, *, job: str, group: int, settings: Settings) -> None:
        self.bytes_to_servers = self.bytes_from_servers = 0
        """Payload bytes so far."""
        self._native = native
        self._job = job
        self._group = group
        self._settings = settings
        self._tables: dict[str, Table] = {}
        self._closed = False
        native.join()

    def register(
        self,
        table: str,
        layout: Layout,
        initial: np.ndarray | None,
        rule: Rule,
        clock: Clock | None = None,
        codec: CodecSpec = "exact",
    ) -> Joining:
        """As `ParameterStore.register`. Waits for all groups. The first one's values count; all others are `LATE`."""
        self._check_open()
        rule = check_new(self._tables, table, self._group, rule)
        clock = clock or rule.clocks[0]()
        spec = TableSpec(layout, rule, clock, self._settings.usual_chunk_bytes, 0, self._native.scheduler.servers)
        spec.check()
        _check_possible(table, spec, codec)
        known = Table(spec)
        if initial is not None:
            known.check_array(initial)
        self._agree((self._job, table, spec))
        count = len(known.spans)
        distance = -(-count // spec.servers) * spec.servers
        keys = self._native.take_keys(2 * distance)
        known.centres, known.answers = keys[:count], keys[distance:][:count]
        if count:
            values = self._native.scheduler.groups if isinstance(clock, BulkSynchronous) else 1
            assignment = Assignment(keys.start, keys.start + distance, keys.stop, rule, values)
            self._native.command(msgspec.json.encode(assignment).decode())
            self._initialise(table, known, initial)
        self._tables[table] = known
        return Joining.LATE if self._group else Joining.NEW

    def exchange(
        self, table: str, values: np.ndarray, answer: np.ndarray, start: int, stop: int, rules: Rules = ()
    ) -> Operation:
        """As `ParameterStore.exchange`, for whole keys. Waits for the last exchange of the same chunks.

        `answer` holds the values until the answer arrives.
        """
        known = self._table_of(table, values, answer)
        if rules:
            raise ServerError(f"MXNet's servers cannot change the numbers of {known.spec.rule}: leave out rules")
        part = known.between(start, stop)
        if self._settings.check_finite == "refuse" or not known.spec.rule.transparent:
            check_finite(values[start:stop], f"table {table!r}")
        self._native.use_clock(known.spec.clock, table)
        for before in filter(None, known.exchanges[part]):
            # MXNet counts values, not groups: it would mistake a second value in a round for another group's.
            before.await_end()
        keys, spans = list(known.answers[part]), known.spans[part]
        arrays = _arrays(answer, spans)
        if spans:
            whole = slice(spans[0].start, spans[-1].stop)
            np.copyto(answer[whole], values[whole])
            self._native.store.pushpull(keys, arrays, arrays)
            self.bytes_to_servers += values[whole].nbytes
            self.bytes_from_servers += values[whole].nbytes
        operation = Operation(f"exchange of table {table!r}", self._native, arrays)
        known.exchanges[part] = [operation] * len(spans)
        return operation

    def exchange_rows(
        self,
        table: str,
        rows: Sequence[np.ndarray],
        answers: Sequence[np.ndarray],
        start: int,
        stop: int,
        rules: Rules = (),
    ) -> None:
        """As `ParameterStore.exchange_rows`: the servers never reach the memory of a group."""
        self._table_of(table, *rows, *answers).between(start, stop)

    def pull(self, table: str, out: np.ndarray, array: int = 0) -> None:
        """As `ParameterStore.pull`, for the centre only."""
        known = self._table_of(table, out)
        if array:
            raise ServerError(f"MXNet's servers do not give out the states of {known.spec.rule}")
        arrays = _arrays(out, known.spans)
        if arrays:
            self._native.store.pull(list(known.centres), arrays)
        Operation(f"pull of table {table!r}", self._native, arrays).wait()

    def put(self, table: str, values: np.ndarray, array: int) -> None:
        """Raise ServerError: MXNet's servers cannot do this."""
        raise ServerError(f"MXNet's servers do not take new values for array {array} of table {table!r}")

    def drop(self, table: str) -> None:
        """As `ParameterStore.drop`, in this process only."""
        self._table_of(table)
        del self._tables[table]

    def barrier(self) -> None:
        """Return when all groups have called it, by ps-lite's own barrier."""
        self._check_open()
        self._native.call("barrier of all groups", self._native.store._barrier)

    def close(self) -> None:
        """As `ParameterStore.close`. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._native.leave()

    def _agree(self, mine: _Registration) -> None:
        """Compare this group's registration with that of ps-lite's first worker.

        Raises LayoutError or ServerError with the difference.
        """
        text = np.frombuffer(msgspec.json.encode(mine), np.uint8)
        of_length, of_text = self._native.take_keys(2)
        length = self._tell(of_length, np.array([text.size]))
        told = self._tell(of_text, np.resize(text, int(length[0])))
        job, table, spec = msgspec.json.decode(told.astype(np.uint8).tobytes(), type=_Registration)
        if (job, table) != mine[:2]:
            raise ServerError(
                f"this group registers table {mine[1]!r} of {mine[0]!r} while another one registers {table!r} of "
                f"{job!r}: with MXNet's servers all groups register in the same order"
            )
        spec.check_same(mine[2], table)

    def _tell(self, key: int, numbers: np.ndarray) -> np.ndarray:
        """Return the numbers that ps-lite's first worker gives for a new key. Waits for all groups."""
        store, out = self._native.store, mx.nd.zeros(numbers.shape, dtype="float64")
        self._native.call("registration", lambda: store.init(key, mx.nd.array(numbers, dtype="float64")))
        store.pull(key, out)
        Operation("registration", self._native, [out]).wait()
        return out.asnumpy()

    def _initialise(self, table: str, known: Table, initial: np.ndarray | None) -> None:
        """Create the keys of a table, with the first group's values. Waits for all groups."""
        store, what = self._native.store, f"registration of table {table!r}"
        values = np.zeros(known.spec.layout.length, known.spec.layout.dtype)
        keys = [*known.centres, *known.answers]
        self._native.call(what, lambda: store.init(keys, _arrays(values, known.spans) * 2))
        # In memory of its own, which MXNet then keeps for pulled values.
        values = np.zeros_like(values)
        if self._group == 0 and initial is not None:
            np.copyto(values, initial)
        elif self._group:
            values.fill(-0.0)  # changes no bit of a sum
        if self._group == 0 or self._native.clock is BulkSynchronous:
            arrays = _arrays(values, known.spans)
            store.push(list(known.centres), arrays)
            Operation(what, self._native, arrays).wait()
        self._native.call(what, store._barrier)

    def _table_of(self, table: str, *arrays: np.ndarray) -> Table:
        """Return a registered table. Raises LayoutError unless `arrays` have its layout."""
        self._check_open()
        known = registered(self._tables, table, self._group)
        for array in arrays:
            known.check_array(array)
        return known

    def _check_open(self) -> None:
        if self._closed:
            raise ServerError(f"group {self._group} has left MXNet's servers: open a new job")


def _check_possible(table: str, spec: TableSpec, codec: CodecSpec) -> None:
    """Raise ServerError or LayoutError for a table that MXNet's servers cannot hold."""
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


def _arrays(values: np.ndarray, spans: Sequence[slice]) -> list[NDArray]:
    """Return MXNet arrays over the memory of the chunks."""
    return [array_over(values[span]) for span in spans]
