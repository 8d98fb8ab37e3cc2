"""The servers of a job: configured servers, ranks of its MPI world, or an embedded server."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from hybridps.config import Settings
from hybridps.config.racks import place_in_rack
from hybridps.errors import ConfigError, GroupError, HybridPSError, PlanError, ServerError
from hybridps.memory import keep_freed_memory
from hybridps.mpi_groups.plan import SERVER
from hybridps.mpi_groups.session import Session, agree, end_group, open_session
from hybridps.processes import SERVER_RESTARTS, ServerProcess
from hybridps.ps.client import Client, silent_groups
from hybridps.ps.model import IdleGroupError
from hybridps.ps.store import OpenStore, ParameterStore

if TYPE_CHECKING:
    from hybridps.ps.server import Server


def find_servers(session: Session, named: str | None = None) -> tuple[tuple[str, ...], ServerProcess | None]:
    """Return the addresses of the job's servers, and the embedded server if this worker has started it.

    Every worker of the MPI world calls this. With several groups in one MPI world and no server configured, the first
    worker starts one, unless the settings, or else the script (`named`), name an algorithm that needs none. Raises, on
    all ranks, ServerError if a server cannot be started, and PlanError if one is missing.
    """
    from hybridps.algorithms import definition, short_name

    settings, plan = session.settings, session.plan
    name = settings.algorithm or named
    embedded, address, error = None, "", None
    needs_one = plan.groups > 1 and not (name and definition(short_name(name)).gossips)
    of_one_world = needs_one and settings.group_index is None and not plan.server_ranks
    if of_one_world and not settings.servers and session.place.worker == 0:
        try:
            # With the backend mxnet, this is its scheduler and one of its servers.
            of_mxnet = settings.backend == "mxnet"
            options = ("--groups", str(plan.groups)) if of_mxnet else ("--restarts", str(SERVER_RESTARTS))
            embedded = ServerProcess(_seen_as_of(session), arguments=options)
            address = embedded.address
        except ServerError as wrong:
            error = wrong
    servers = tuple(_announce(session, address, error)) or settings.servers
    if needs_one and not servers and not settings.peers:
        raise PlanError(
            f"{plan.groups} groups in MPI worlds of their own need a server: "
            "start one with `hybridps serve` and set HYBRIDPS_SERVERS to its address"
        ).on_all_ranks()
    return servers, embedded


def _seen_as_of(session: Session) -> Settings:
    """Return settings with which a server shows itself as part of this run."""
    live = session.live
    folder = None if live.path is None else str(live.path)
    return msgspec.structs.replace(session.settings, launch=live.run, live_folder=folder)


def find_backend(session: Session, stores: Mapping[str, OpenStore]) -> OpenStore:
    """Return what opens the job's stores. Raises ConfigError, on all ranks, if that is needed and not in `stores`."""
    name = session.settings.backend
    stores = {"hybridps": Client, **stores}
    if name not in stores and (session.plan.groups > 1 or session.settings.servers):
        raise ConfigError(
            f"HYBRIDPS_BACKEND={name} belongs to the KVStore types of MXNet, and this script does not use them: unset "
            "it, or open the job with open_job(stores={'mxnet': MXNetStores()}) of hybridps.kvstore.ps_lite"
        ).on_all_ranks()
    return stores.get(name, Client)


def connect(session: Session, servers: tuple[str, ...], open_store: OpenStore, algorithm: str) -> ParameterStore:
    """Return the leader's connection with the servers, those of its rack if there are racks. Raises ServerError.

    `algorithm`: the name that the group states as the job's algorithm.
    """
    plan = session.plan
    settings = msgspec.structs.replace(session.settings, algorithm=algorithm, group_sizes=plan.group_sizes)
    if servers != settings.servers:  # they belong to this MPI world: nobody else restarts them
        settings = msgspec.structs.replace(settings, awaits_refusing=False)
    place = place_in_rack(session.place.group, plan.groups, settings.racks, servers)
    store = open_store(
        place.servers,
        job=settings.job,
        group=place.group,
        groups=place.groups,
        settings=settings,
        at_once=session.is_full and settings.bucket_bytes is None,
    )
    if settings.racks > 1 and not (isinstance(store, Client) and store.has_parent):
        store.close()
        raise ServerError(
            f"HYBRIDPS_RACKS={settings.racks}, and the servers of rack {place.rack} have no parents, so the racks "
            "would never meet: start them with HYBRIDPS_PARENTS, or let `hybridps run --racks` do it"
        )
    return store


def silent_workers(session: Session, servers: tuple[str, ...], number: int, seconds: float) -> list[int]:
    """Return the workers of groups (of this rack) that the servers have not heard from for longer than `seconds`.

    `number`: the number of this group's session at its servers. Raises ServerError like `silent_groups`.
    """
    settings, plan, group = session.settings, session.plan, session.place.group
    place = place_in_rack(group, plan.groups, settings.racks, servers)
    silent = silent_groups(place.servers, number, seconds, settings)
    first = [*accumulate(plan.group_sizes, initial=0)][group - place.group :]
    # Groups that joined the job later are not in this plan.
    return [worker for each in silent if each + 1 < len(first) for worker in range(first[each], first[each + 1])]


def end_if_idle(session: Session, failure: Callable[[], HybridPSError | None]) -> None:
    """End this group if servers have treated it as lost because others waited for it (`failure`).

    Its program may never come back to notice. If the group shares its MPI world with others, these would end too, so
    it is left.
    """
    error = failure()
    if isinstance(error, IdleGroupError) and session.is_one_group:
        worker, pid = session.place.worker, os.getpid()
        end_group(
            GroupError(
                f"the program of worker {worker} hangs or is busy (`py-spy dump --pid {pid}` shows where): {error}"
            )
        )


def serve_in_world(settings: Settings, bind: str, insecure: bool) -> None:
    """Run a server as a rank of an MPI world: announce its address over MPI, and serve until the workers end."""
    from hybridps.algorithms import resolve
    from hybridps.ps.server import Server
    from hybridps.ps.server.live import show_live
    from hybridps.ps.server.metrics import serve_metrics

    session = open_session(lambda: resolve(settings), SERVER)
    server, address, error = None, "", None
    keep_freed_memory()
    try:
        _check_serves_in_world(settings)
        server = Server.of(settings, bind, insecure=insecure)
        address = server.address
        for line in serve_metrics(server.observe, settings):
            print(line, flush=True)
    except HybridPSError as wrong:
        error = ServerError(str(wrong))
    _announce(session, address, error)
    if server is not None:
        threading.Thread(target=_stop_at_farewell, args=(session, server), daemon=True).start()
        shown = show_live(server, _seen_as_of(session))
        server.run()
        if shown is not None:
            shown.close()
    session.close()


def _check_serves_in_world(settings: Settings) -> None:
    """Raise ConfigError for settings that a server rank of an MPI world cannot follow."""
    if settings.backend != "hybridps":
        raise ConfigError(
            f"HYBRIDPS_BACKEND={settings.backend}: MXNet's servers cannot be ranks of an MPI world; leave the ranks of "
            "`hybridps serve` out, and the first worker starts them"
        )
    if settings.parents:
        raise ConfigError(
            f"HYBRIDPS_PARENTS={','.join(settings.parents)} has no meaning for a server that is a rank of the job's "
            "MPI world: start rack servers with `hybridps run --racks`, or each with `hybridps serve` alone"
        )


def _stop_at_farewell(session: Session, server: Server) -> None:
    session.world.farewell()
    server.stop()


def _announce(session: Session, address: str, error: HybridPSError | None) -> list[str]:
    """Return the addresses of all servers that ranks of this world run. Errors are raised on all ranks."""
    agree(session.world, error)
    addresses = [told.decode() for told in session.world.allgather_bytes(address.encode()) if told]
    if session.hosts > 1 and any("//127." in address or "//localhost" in address for address in addresses):
        raise PlanError(
            f"the server at {addresses[0]} cannot be reached from the other {session.hosts - 1} hosts: start with "
            "`hybridps run --hosts ...`, or give the address of a `hybridps serve --bind ...` that has keys"
        ).on_all_ranks()
    return addresses
