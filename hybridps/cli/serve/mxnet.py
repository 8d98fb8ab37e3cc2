"""`hybridps serve` with the backend mxnet: MXNet's scheduler and its servers, as children of this process."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

from hybridps.addresses import Scheduler
from hybridps.cli.run.children.child import Child
from hybridps.cli.run.children.output import Screen
from hybridps.cli.run.children.processes import Processes
from hybridps.cli.run.plan.servers import check_unsecured
from hybridps.config import Settings
from hybridps.errors import ConfigError, ServerError
from hybridps.processes import SAYS, START_SECONDS

_PROBE_SECONDS = 1.0


@contextmanager
def reserved_port(host: str) -> Iterator[int]:
    """Reserve a port of this host, so that no connection and no other listener gets it by chance, and yield its number.

    ps-lite must be told a port; it can listen on this one, as it reuses addresses. Raises OSError for another host.
    """
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, 0))
        yield int(reserved.getsockname()[1])


def serve_mxnet(bind: str, settings: Settings, *, groups: int | None, servers: int, insecure: bool) -> None:
    """Serve one job with `groups` groups until SIGTERM or SIGINT. Raises HybridPSError, also when a process ends.

    The processes end with this one, however it ends.
    """
    if groups is None:
        raise ConfigError("MXNet's servers serve one job and need to know its number of groups: give --groups G")
    if settings.server_keys is not None:
        raise ConfigError("MXNet's servers do not support keys: omit --keys, or use HYBRIDPS_BACKEND=hybridps")
    with ExitStack() as stack:
        _serve(_place(bind, groups, servers, insecure, stack), bind)


def _serve(scheduler: Scheduler, bind: str) -> None:
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: signals.append(number))
    names = ["scheduler", *(f"MXNet server {number}" for number in range(scheduler.servers))]
    ended: list[Child] = []
    processes = Processes(Screen(sys.stdout, sys.stderr, names), ended.append)
    try:
        for name in names:
            _start(processes, name, scheduler)
        listens = processes.until(lambda: bool(signals or ended) or _listens(scheduler), START_SECONDS)
        if not listens:
            raise ServerError(f"MXNet's scheduler did not listen at {bind} within {START_SECONDS:g} s")
        if not (signals or ended):
            print(f"{SAYS}{scheduler}", flush=True)
        processes.until(lambda: bool(signals or ended))
        if ended and not signals:
            raise ServerError(
                f"the {ended[0].name} ended with exit status {ended[0].status}, so the others were stopped"
            )
    finally:
        processes.stop(processes.running, lambda: True)
        processes.close()


def _place(bind: str, groups: int, servers: int, insecure: bool, stack: ExitStack) -> Scheduler:
    """Return where the scheduler will listen; `stack` keeps a chosen port reserved. Raises ConfigError."""
    host, _, port = urlsplit(bind).netloc.rpartition(":")
    try:
        address = ip_address(host)
        number = int(port) if port != "*" else stack.enter_context(reserved_port(host))
        if not bind.startswith("tcp://") or address.is_unspecified:
            raise ValueError("it must be tcp://IP:PORT or tcp://IP:*, with an address of this host")
    except (ValueError, OSError) as error:
        raise ConfigError(f"MXNet's scheduler cannot listen at {bind}: {error}") from None
    if not address.is_loopback:
        check_unsecured(host, insecure)
    return Scheduler(host, number, groups, servers)


def _start(processes: Processes, name: str, scheduler: Scheduler) -> None:
    role = "scheduler" if name == "scheduler" else "server"
    told = scheduler.environment(role, scheduler.host)
    del told["DMLC_ROLE"]  # the process sets it itself, once it has imported MXNet
    command = [sys.executable, "-m", "hybridps.kvstore.ps_lite.server", role]
    environ = {name: text for name, text in os.environ.items() if name != "DMLC_ROLE"} | told
    processes.start(name, command, environ, death_signal=signal.SIGKILL)


def _listens(scheduler: Scheduler) -> bool:
    with suppress(OSError):
        socket.create_connection((scheduler.host, scheduler.port), _PROBE_SECONDS).close()
        return True
    return False
