"""The parameter store of a group's leader: its tables are held by servers, which it talks to over ZeroMQ."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from hybridps.codecs import CodecSpec
from hybridps.compiled.finite import is_finite
from hybridps.config import Settings
from hybridps.errors import ProtocolError, ServerError
from hybridps.memory import Layout
from hybridps.ps import wire
from hybridps.ps.chunk_map import equal_chunk_bytes
from hybridps.ps.client.operations import EXACT, Operation, OperationSequence, Sent, Table
from hybridps.ps.client.profiling import read_records
from hybridps.ps.client.regions import Regions
from hybridps.ps.client.session import Session
from hybridps.ps.clocks import Clock
from hybridps.ps.model import Joining, Meeting, Rules, SnapshotStart, TableSpec, rules_of_span
from hybridps.ps.profile import State
from hybridps.ps.rules import Rule
from hybridps.ps.rules.finite import NotFiniteError, not_finite
from hybridps.ps.store import check_new, registered


class Client:
    """A group's connection with its servers. Implements `ParameterStore`; also a context manager.

    `addresses` are the servers, in the same order for all groups of the job; `group` is this group's number among
    `groups`. `context`: a ZeroMQ context to use, which the caller closes; servers at `inproc://` share one. Raises
    ServerError if a server does not answer within `settings.connect_seconds`, or refuses. If another process is that
    group already, this waits until that process is lost: it may be the group's last process, which ended without
    leaving. `at_once`: as `OpenStore`.

    A broken connection is restored. What is under way is then sent again; the servers recognise by its number what they
    have received already.
    """

    finds_not_finite = True

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        job: str,
        group: int,
        groups: int,
        settings: Settings,
        context: Any = None,
        at_once: bool = False,
    ) -> None:
        if not addresses:
            raise ServerError("no server is given: name one, as in tcp://127.0.0.1:5555")
        self.bytes_to_servers = self.bytes_from_servers = 0
        """The payload bytes sent and requested so far."""
        self._group = group
        self._chunk_bytes = settings.usual_chunk_bytes
        self._at_once = at_once and settings.chunk_bytes is None
        self._tables: dict[str, Table] = {}
        self.session = Session(addresses, job=job, group=group, groups=groups, settings=settings, context=context)
        """The session with the servers. A caller that waits for several operations at once listens here."""
        self._regions = Regions(self.session)
        self._meeting: Operation | None = None
        """The request to meet the other groups, if it is not answered."""
        self.servers = range(len(addresses))
        """The numbers of the servers."""
        self.has_parent = self.session.has_parent
        """Whether the servers are rack servers, which are clients of others themselves."""

    def register(
        self,
        table: str,
        layout: Layout,
        initial: np.ndarray | None,
        rule: Rule,
        clock: Clock | None = None,
        codec: CodecSpec = "exact",
    ) -> Joining:
        """Join a table, as `ParameterStore.register`.

        The first server decides which group initialises, or from which snapshot the table starts; the group tells the
        others. Servers with parents afterwards have the parents' centre, whichever group initialised it: the table is
        `LATE`.
        """
        rule = check_new(self._tables, table, self._group, rule)
        chunk_bytes = layout.nbytes if rule.whole_keys else self._chunk_bytes
        if self._at_once and rule.transparent and initial is None:  # no snapshot keeps these
            chunk_bytes = equal_chunk_bytes(layout.nbytes, len(self.servers), chunk_bytes)
        spec = TableSpec(layout, rule, clock or rule.clocks[0](), chunk_bytes, 0, len(self.servers), codec)
        return OperationSequence(self.begin_register(table, spec, initial)).wait()

    def begin_register(
        self, table: str, spec: TableSpec, initial: np.ndarray | None
    ) -> Generator[Operation, None, Joining]:
        """Yield the operations of `register`, for an `OperationSequence`."""
        spec.check()
        joined = Table(table, spec)
        if initial is not None:
            joined.chunk_map.check_array(initial)
        joined.prepare()
        lead, others = [joined.chunk_map.lead], [each for each in self.servers if each != joined.chunk_map.lead]
        told = yield from self._join(table, spec, lead, False)
        initialise, snapshot = any(each.initialise for each in told), next((each.start for each in told), None)
        if not any(each.dropped for each in told):
            told += yield from self._join(table, spec, others, initialise, snapshot)
        if any(each.dropped for each in told):
            asked = zip(lead + others, told, strict=False)
            yield self._begin_drop(table, [server for server, each in asked if not each.dropped])
            return Joining.DROPPED
        # The first server comes last, because it lets the other groups in when it has the values.
        for servers in (others, lead) if initialise else ():
            # A rack answers when it has all initial values, and zeros are not sent.
            whole = self.has_parent or initial is None
            for start, stop in [(0, spec.layout.length)] if whole else joined.parts(0, spec.layout.length):
                yield self._transfer(wire.Initial, joined, start, stop, initial, servers=servers)
        self._tables[table] = joined
        if snapshot is not None:
            return Joining.SNAPSHOT
        return Joining.NEW if initialise and not self.has_parent else Joining.LATE

    def exchange(
        self,
        table: str,
        values: np.ndarray,
        answer: np.ndarray,
        start: int,
        stop: int,
        rules: Rules = (),
        groups: int = 1,
    ) -> Operation:
        """Exchange elements, as `ParameterStore.exchange`. Several exchanges may be under way.

        A server that reaches the memory of both arrays works there; to others, `values` are sent. `groups`: the number
        of groups whose contributions `values` are the sum of. If each exchange changes the centre by itself
        (`Elastic`), values with NaN or Inf change nothing.
        """
        known = self._table(table, values, answer)
        if known.separate and not is_finite(values[start:stop]):
            # All of it is refused here, because a server would already have applied the chunks before the bad one.
            error = NotFiniteError(not_finite(values[start:stop], f"table {table!r}", start))
            return self.session.refused(f"exchange of table {table!r}", error)
        found = self._regions.offsets(self.servers, [values, answer]) if known.codec.shares else {}
        places = {server: (at[:1], at[1:]) for server, at in found.items()}
        return self._transfer(wire.Exchange, known, start, stop, values, answer, places, rules=rules, groups=groups)

    def exchange_rows(
        self,
        table: str,
        rows: Sequence[np.ndarray],
        answers: Sequence[np.ndarray],
        start: int,
        stop: int,
        rules: Rules = (),
    ) -> Operation | None:
        """Exchange the sum of rows, as `ParameterStore.exchange_rows`."""
        known = self._table(table, *rows, *answers)
        if not known.codec.shares or len(rows) > wire.MOST_ROWS:
            return None
        found = self._regions.offsets(self.servers, [*rows, *answers])
        if len(found) < len(self.servers):
            return None
        places = {server: (at[: len(rows)], at[len(rows) :]) for server, at in found.items()}
        return self._transfer(wire.Exchange, known, start, stop, rows[0], None, places, rules=rules)

    def pull(self, table: str, out: np.ndarray, array: int = 0) -> None:
        """Read an array, as `ParameterStore.pull`."""
        OperationSequence(self.begin_pull(table, out, array)).wait()

    def begin_pull(
        self, table: str, out: np.ndarray, array: int = 0, start: int = 0, stop: int | None = None
    ) -> Generator[Operation, None, None]:
        """Yield the operations of `pull`, for elements `start:stop`, which must be whole chunks."""
        known = self._table(table, out)
        for begin, end in known.parts(start, len(out) if stop is None else stop):
            yield self._transfer(wire.Pull, known, begin, end, None, out, array=array)

    def put(self, table: str, values: np.ndarray, array: int) -> None:
        """Replace an array, as `ParameterStore.put`."""
        known = self._table(table, values)
        for start, stop in known.parts(0, len(values)):
            self._transfer(wire.Put, known, start, stop, values, array=array).wait()

    def meet(self, seconds: float) -> Meeting | None:
        """Meet the other groups that train in step, as `ParameterStore.meet`."""
        what = "meeting of the groups"
        asked, self._meeting = self._meeting, None
        if asked is None:
            asked = self.session.ask(what, self.servers[:1], lambda request, _: wire.Meet(request))
        if not asked.is_done_within(seconds):
            self._meeting = asked
            return None
        asked.wait()
        met = asked.answers[0]
        if not isinstance(met, wire.Met):
            raise ProtocolError(f"the first server answered {type(met).__name__} to the {what}")
        told = met.number, met.trains
        self.session.ask("news of a meeting", self.servers[1:], lambda request, _: wire.Meet(request, *told)).wait()
        joins = self._group in met.newcomers
        return Meeting(met.number, len(met.newcomers), joins, met.giver == self._group, met.giver, met.finished)

    @property
    def away(self) -> bool:
        """Whether a server cannot be reached now, as `ParameterStore.away`."""
        return self.session.away

    def profile(self, state: State, servers: Iterable[int] | None = None) -> int:
        """Make all servers, or those given, record what they do for this job and when, stop recording, or forget it.

        Returns the number of the request, which is in the records. Raises ServerError if the tenant has no room for
        them.
        """
        asked = self.servers if servers is None else servers
        operation = self.session.ask("change of a profile", asked, lambda request, _: wire.Profile(request, state))
        operation.wait()
        return operation.request

    def read_profile(self, server: int) -> tuple[np.ndarray, int]:
        """Return what one server has recorded for this job (of dtype `RECORD`), and how many records had no room.

        Raises ServerError if it has recorded nothing.
        """
        return read_records(self.session, server)

    def drop(self, table: str) -> None:
        """Give up a table, as `ParameterStore.drop`. Operations of the table that are under way fail."""
        known = self._table(table)
        for operation in self.session.under_way.values():
            if operation.table is known and not operation.done:
                operation.refuse(ServerError(f"table {table!r} was dropped during the {operation.what}"))
        del self._tables[table]
        self._begin_drop(table, self.servers).wait()

    def close(self, lost: bool = False, early: bool = False) -> None:
        """Leave all tables and release all resources, in bounded time. A second call does nothing.

        `lost`: end like a lost group, without telling the servers, which keep its tables. `early`: the group leaves
        before the end of its training, and the job has one group less from now on.
        """
        self.session.close(lost, early)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close(early=error[0] is not None)

    def _join(
        self,
        table: str,
        spec: TableSpec,
        servers: Sequence[int],
        initialise: bool,
        start: SnapshotStart | None = None,
    ) -> Generator[Operation, None, list[wire.Registered]]:
        def message(request: int, server: int) -> wire.Register:
            return wire.Register(request, table, msgspec.structs.replace(spec, server=server), initialise, start)

        joining = self.session.ask(f"registration of table {table!r}", servers, message)
        yield joining
        told = [joining.answers[server] for server in servers]
        return [answer for answer in told if isinstance(answer, wire.Registered)]

    def _begin_drop(self, table: str, servers: Sequence[int]) -> Operation:
        return self.session.ask(f"drop of table {table!r}", servers, lambda request, _: wire.Drop(request, table))

    def _transfer(
        self,
        kind: type[wire.Initial] | type[wire.Exchange] | type[wire.Pull] | type[wire.Put],
        table: Table,
        start: int,
        stop: int,
        values: np.ndarray | None = None,
        answer: np.ndarray | None = None,
        places: Mapping[int, tuple[wire.RegionOffsets, wire.RegionOffsets]] = MappingProxyType({}),
        servers: Sequence[int] | None = None,
        **more: Any,
    ) -> Operation:
        """Send the messages of a request for elements `start:stop` to the servers that own some of them.

        `more`: fields of all messages, and the `rules` of the elements.
        """
        rules: Rules = more.pop("rules", ())
        table.chunk_map.check_span(start, stop)
        codec = EXACT
        if kind is wire.Exchange and values is not None:
            codec = table.codec
            if not codec.exact:
                table.check_free(start, stop, self.session.under_way.values())
            self.bytes_to_servers += codec.nbytes(stop - start, values.dtype)
            self.bytes_from_servers += codec.answers.nbytes(stop - start, values.dtype)
        elif kind is wire.Pull and answer is not None:
            self.bytes_from_servers += answer[start:stop].nbytes

        def messages(request: int) -> Iterator[Sent]:
            for server in self.servers if servers is None else servers:
                at = places.get(server, ())
                sent, target = (None, None) if at else (values, answer)
                for spans in table.batches(server, start, stop, server in places):
                    first, last = spans[0].start, spans[-1].stop
                    here = more | {"rules": rules_of_span(rules, first, last)} if rules else more
                    message = kind(request, table.name, first, last, *at, **here)
                    payloads = () if sent is None else table.payloads(sent, spans, codec)
                    parts = [None if target is None else target[each.start : each.stop] for each in spans]
                    asks_for = dict(zip((each.chunk for each in spans), parts, strict=True))
                    yield Sent(server, message, payloads, asks_for)

        return self.session.begin(f"{kind.__name__.lower()} of table {table.name!r}", messages, table, codec.answers)

    def _table(self, name: str, *arrays: np.ndarray) -> Table:
        """Return a registered table. Raises LayoutError unless `arrays` have its layout."""
        table = registered(self._tables, name, self._group)
        for array in arrays:
            table.chunk_map.check_array(array)
        return table
