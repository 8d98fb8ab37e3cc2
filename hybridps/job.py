"""A job, put together: the session, its servers, and the algorithms that run on them.

The entry for code without MXNet:

    with open_job() as job:
        algorithm = job.algorithm()
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType

import msgspec

from hybridps.algorithms import ALGORITHMS, Algorithm, make_algorithm, resolve
from hybridps.algorithms.uplink import FollowerUplink, LeaderUplink, NoUplink, Uplink
from hybridps.config import Settings, load_settings, tuning_file
from hybridps.errors import ConfigError, HybridPSError, PlanError, ServerError
from hybridps.events import Chosen, Closed
from hybridps.memory import keep_freed_memory
from hybridps.mpi_groups.group import Group
from hybridps.mpi_groups.plan import SERVER
from hybridps.mpi_groups.session import Session, agree, open_session
from hybridps.ps.client import Client
from hybridps.ps.clocks import Clock
from hybridps.ps.process import ServerProcess
from hybridps.ps.racks import place_in_rack
from hybridps.ps.rules import Rule
from hybridps.ps.server import Server
from hybridps.ps.store import OpenStore
from hybridps.tensor_collectives import BUILT_IN, Choice, Chooser, Levels, Tuning


class _Announcement(msgspec.Struct, forbid_unknown_fields=True):
    """What a rank says of the server that it runs, if it runs one."""

    address: str = ""
    error: str = ""


class Job:
    """One rank's hold on a job. Made by `open_job`; a context manager.

    Leaving the context with an exception ends all ranks of this MPI world.
    """

    def __init__(
        self, session: Session, servers: tuple[str, ...], embedded: ServerProcess | None, open_store: OpenStore
    ) -> None:
        self.session = session
        self.servers = servers
        self.steps = 0
        """Steps done, for the record."""
        self._embedded = embedded
        self._open_store = open_store
        self._groups: list[Group] = []
        self._levels: list[Levels] = []
        self._uplinks: list[Uplink] = []
        self._closed = False

    @property
    def workers(self) -> int:
        return self.session.plan.workers

    @property
    def worker(self) -> int:
        return self.session.place.worker

    def algorithm(self, name: str | None = None, rule: Rule | None = None, clock: Clock | None = None) -> Algorithm:
        """An algorithm over this rank's group and, if there are servers, a conversation with them of its own.

        `rule` (of `hybridps.ps.rules`) and `clock` (of `hybridps.ps.clocks`): what the servers do, and when, where the
        algorithm leaves that open.

        `name` must agree with the setting, if both are given (else ConfigError). Every rank of the job
        must call this, in the same order.
        """
        settings = self.session.settings
        if name is not None and settings.algorithm not in (None, ALGORITHMS[name]):
            raise ConfigError(
                f"the script asks for the algorithm {name!r}, and HYBRIDPS_ALGORITHM says {settings.algorithm!r}: "
                "drop one of the two"
            ).on_all_ranks()
        chosen = ALGORITHMS[name or settings.algorithm or "sync"]
        group = self.session.group.split(0)
        self._groups.append(group)
        levels = self._make_levels(group)
        uplink, error = self._try_uplink(group)
        agree(self.session.workers, error)
        self._uplinks.append(uplink)
        plan = self.session.plan
        return make_algorithm(
            chosen,
            levels,
            uplink,
            settings,
            workers=plan.workers,
            groups=plan.groups,
            has_servers=bool(self.servers),
            rule=rule,
            clock=clock,
        )

    def close(self) -> None:
        """End this rank's part in good order, when all workers of this MPI world have come here."""
        if self._closed:
            return
        self._closed = True
        for uplink in self._uplinks:
            uplink.close()
        within = sum(levels.bytes_moved for levels in self._levels)
        self.session.events.emit(Closed(self.steps, within, sum(uplink.bytes_to_servers for uplink in self._uplinks)))
        for levels in self._levels:
            levels.close()
        for group in self._groups:
            group.free()
        self.session.world.farewell()
        if self._embedded is not None:
            self._embedded.stop()
        self.session.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.session.__exit__(kind, error, trace)
        self.close()

    def _make_levels(self, group: Group) -> Levels:
        """The levels of a duplicate of this rank's group."""
        session, settings = self.session, self.session.settings
        nodes = [place.node for place in session.plan.places if place.group == session.place.group]
        tuning, chooser, error = self._read_tuning(group), Chooser(group.size, len(set(nodes))), None
        try:
            forced = (settings.collective, settings.collective_chunk_bytes, _why_only_own(settings))
            chooser = Chooser(group.size, len(set(nodes)), tuning, *forced)
        except HybridPSError as problem:  # perhaps in this group only
            error = problem
        agree(session.workers, error)

        def chosen(choice: Choice) -> None:
            session.events.emit(Chosen(**msgspec.structs.asdict(choice), ranks=group.size, nodes=len(set(nodes))))

        levels = Levels(group, nodes, settings.deadline_seconds, settings.wire, chooser, chosen)
        self._levels.append(levels)
        if levels.note:
            session.note(f"the ranks of a node do not share memory: {levels.note}")
        return levels

    def _read_tuning(self, group: Group) -> Tuning:
        """The leader's table of choices, on all ranks of the group; all hear of it if it cannot be read."""
        settings, tuning, error = self.session.settings, BUILT_IN, None
        path = Path(settings.tuning) if settings.tuning else tuning_file()
        wanted = settings.tuning != "built-in" and not settings.deterministic
        if group.rank == 0 and wanted and (settings.tuning or path.exists()):
            try:
                tuning = Tuning.read(path)
            except HybridPSError as problem:
                error = problem
        agree(self.session.workers, error)
        return msgspec.json.decode(group.allgather_bytes(msgspec.json.encode(tuning))[0], type=Tuning)

    def _try_uplink(self, group: Group) -> tuple[Uplink, HybridPSError | None]:
        """An uplink, or none and what is in the way: so that all ranks can hear of it."""
        try:
            return self._uplink(group), None
        except HybridPSError as error:
            return NoUplink(group), error

    def _uplink(self, group: Group) -> Uplink:
        if not self.servers:
            return NoUplink(group)
        if not self.session.place.is_leader:
            return FollowerUplink(group)
        settings, plan = self.session.settings, self.session.plan
        place = place_in_rack(self.session.place.group, plan.groups, settings.racks, self.servers)
        store = self._open_store(
            place.servers,
            job=f"{settings.job}.{len(self._uplinks)}",
            group=place.group,
            groups=place.groups,
            settings=settings,
        )
        if settings.racks > 1 and not (isinstance(store, Client) and store.has_parent):
            store.close()
            raise ServerError(
                f"HYBRIDPS_RACKS={settings.racks}, and the servers of rack {place.rack} have no parents, so that the "
                "racks would never meet: start them with HYBRIDPS_PARENTS, or let `hybridps run --racks` do it"
            )
        return LeaderUplink(store, group)


def _why_only_own(settings: Settings) -> str:
    """Why the MPI library's collectives are not used; empty if they may be."""
    if settings.deterministic:
        return "the order of summation shall be the same in every run (HYBRIDPS_DETERMINISTIC)"
    if settings.wire != "exact":
        return f"it sends no {settings.wire} between nodes (HYBRIDPS_WIRE)"
    return ""


def open_job(
    read_settings: Callable[[], Settings] = load_settings, stores: Mapping[str, OpenStore] = MappingProxyType({})
) -> Job:
    """Join the job that this process was started for. Every worker of the MPI world must call this.

    With several groups in one MPI world and no server configured, the first worker starts one. `stores`: what opens
    the stores of backends that hybridps has not itself, by their names.
    """
    session = open_session(lambda: resolve(read_settings()))
    open_store = _find_backend(session, {"hybridps": Client, **stores})
    embedded, announcement = None, _Announcement()
    if _needs_embedded(session) and session.place.worker == 0:
        try:
            embedded = _start_server(session)
            announcement.address = embedded.address
        except HybridPSError as error:
            announcement.error = str(error)
    announced = _announce(session, announcement)
    servers = tuple(announced) or session.settings.servers
    if session.plan.groups > 1 and not servers:
        raise PlanError(
            f"{session.plan.groups} groups in MPI worlds of their own need a server: "
            "start one with `hybridps serve` and set HYBRIDPS_SERVERS to its address"
        ).on_all_ranks()
    session.announce(list(servers))
    return Job(session, servers, embedded, open_store)


def serve_in_world(settings: Settings, bind: str, insecure: bool) -> None:
    """Be a server rank of an MPI world: announce the address over MPI, and serve until the workers end."""
    from hybridps.ps.metrics import serve_metrics

    session = open_session(lambda: resolve(settings), SERVER)
    announcement, server = _Announcement(), None
    keep_freed_memory()
    try:
        if settings.backend != "hybridps":
            raise ConfigError(
                f"HYBRIDPS_BACKEND={settings.backend}: MXNet's servers are no ranks of an MPI world; leave the ranks "
                "of `hybridps serve` out, and the first worker starts them"
            )
        _check_no_parents(settings)
        server = Server.of(settings, bind, insecure=insecure)
        announcement.address = server.address
        for line in serve_metrics(server.observe, settings):
            print(line, flush=True)
    except HybridPSError as error:
        announcement.error = str(error)
    _announce(session, announcement)
    if server is not None:
        threading.Thread(target=_stop_at_farewell, args=(session, server), daemon=True).start()
        server.run()
    session.close()


def _check_no_parents(settings: Settings) -> None:
    if settings.parents:
        raise ConfigError(
            f"HYBRIDPS_PARENTS={','.join(settings.parents)} has no meaning for a server that is a rank of the job's "
            "MPI world: start rack servers with `hybridps run --racks`, or each with `hybridps serve` alone"
        )


def _stop_at_farewell(session: Session, server: Server) -> None:
    session.world.farewell()
    server.stop()


def _find_backend(session: Session, stores: Mapping[str, OpenStore]) -> OpenStore:
    """What opens the stores of this job. Raises ConfigError, on all ranks, for a backend that is not here."""
    name = session.settings.backend
    if name not in stores and (session.plan.groups > 1 or session.settings.servers):
        raise ConfigError(
            f"HYBRIDPS_BACKEND={name} belongs to the KVStore types of MXNet, and this script does not use them: unset "
            "it, or open the job with open_job(stores={'mxnet': MXNetStores()}) of hybridps.kvstore.ps_lite"
        ).on_all_ranks()
    return stores.get(name, Client)


def _start_server(session: Session) -> ServerProcess:
    """Beside the first worker: a server, or MXNet's scheduler and a server of its."""
    if session.settings.backend == "hybridps":
        return ServerProcess(session.settings)
    groups = ("--groups", str(session.plan.groups))
    return ServerProcess(session.settings, arguments=groups)


def _needs_embedded(session: Session) -> bool:
    settings, plan = session.settings, session.plan
    return plan.groups > 1 and not settings.servers and settings.group_index is None and not plan.server_ranks


def _announce(session: Session, announcement: _Announcement) -> list[str]:
    """The addresses of all servers that ranks of this world run. Raises, on all ranks, what kept one from it."""
    told = session.world.allgather_bytes(msgspec.json.encode(announcement))
    announced = [msgspec.json.decode(other, type=_Announcement) for other in told]
    for other in announced:
        if other.error:
            raise ServerError(other.error).on_all_ranks()
    addresses = [other.address for other in announced if other.address]
    if session.hosts > 1 and any("//127." in address or "//localhost" in address for address in addresses):
        raise PlanError(
            f"the server at {addresses[0]} cannot be reached from the other {session.hosts - 1} hosts: start with "
            "`hybridps run --hosts ...`, or give the address of a `hybridps serve --bind ...` that has keys"
        ).on_all_ranks()
    return addresses
