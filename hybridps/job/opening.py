"""Opens the job that this process was started for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from hybridps.algorithms import resolve
from hybridps.config import Settings, load_settings
from hybridps.errors import HybridPSError
from hybridps.job.job import Job
from hybridps.job.servers import find_backend, find_servers
from hybridps.mpi_groups.session import Session, agree, open_session
from hybridps.ps.store import OpenStore
from hybridps.resuming import notice
from hybridps.watch import Watcher, start_watcher


def open_job(
    read_settings: Callable[[], Settings] = load_settings,
    stores: Mapping[str, OpenStore] = MappingProxyType({}),
    algorithm: str | None = None,
) -> Job:
    """Join the job that this process was started for. Every worker of the MPI world must call this.

    If one MPI world has several groups, the algorithm needs a server and none is configured, the first worker starts
    one. `stores`: functions that open the stores of other backends, by the backends' names. `algorithm`: the name that
    the program will ask for first, if the settings have none; groups and servers are made for it.
    """
    session = open_session(lambda: resolve(read_settings(), algorithm))
    notice.listen(session.settings.notice_seconds)
    open_store = find_backend(session, stores)
    servers, embedded = find_servers(session, algorithm)
    session.announce(list(servers))
    job = Job(session, servers, embedded, open_store)
    job.watcher = _watch(session)
    return job


def _watch(session: Session) -> Watcher | None:
    """Start a watcher on the first worker if the settings ask for one, unless a launcher watches the run.

    Raises the errors of `start_watcher`, on all ranks.
    """
    watcher, said, error = None, "", None
    if session.place.worker == 0 and session.settings.launch is None:
        try:
            watcher, said = start_watcher(session.live.path, session.settings)
        except HybridPSError as problem:
            error = problem
    agree(session.workers, error)
    if said:
        session.note(said)
    return watcher
