"""Which servers a launch starts, and whether they need keys. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hybridps.addresses import is_local
from hybridps.cli.run.plan.hosts import LOOPBACK
from hybridps.cli.run.plan.launch import ServerLaunch
from hybridps.cli.serve.serve import check_can_snapshot
from hybridps.config import PREFIX, Settings
from hybridps.config.racks import check_racks, place_in_rack
from hybridps.errors import ConfigError
from hybridps.processes import SERVER_RESTARTS


def check_unsecured(host: str, insecure: bool) -> None:
    """Raise ConfigError if MXNet's servers would be on the network without the user's consent."""
    if not insecure:
        raise ConfigError(
            f"MXNet's servers at {host} would be open to everybody on the network, as ps-lite has neither keys nor "
            "encryption: add --insecure if you trust the network, or use the backend hybridps"
        )


def makes_keys(settings: Settings, bind: str, insecure: bool, peers: Sequence[str]) -> bool:
    """Return whether servers at `bind`, or groups that gossip at `peers`, are on the network and have no keys yet."""
    if settings.keys is None and not all(map(is_local, peers)):
        return True
    return bind != LOOPBACK and settings.backend != "mxnet" and not insecure and settings.server_keys is None


def count_servers(servers: int | None, needs_one: bool, settings: Settings) -> int:
    """Return the number of servers to start: as given, or else one if the groups need one."""
    if servers is None:
        return int(needs_one)
    if servers < 0:
        raise ConfigError(f"--servers {servers} cannot be used: it must be 0 or more")
    if servers and settings.servers:
        raise ConfigError(
            f"--servers {servers} asks for new servers, and {PREFIX}SERVERS={','.join(settings.servers)} for running "
            "ones: give only one of them"
        )
    if not servers and needs_one and settings.algorithm is not None:
        raise ConfigError(f"--servers 0: the groups of {settings.algorithm!r} need a server; give --servers 1 or more")
    return servers


def _server_restarts(asked: int | None, servers: int, settings: Settings) -> int:
    """Return how often a server that dies is restarted. Raises ConfigError if it is `asked` for but not possible."""
    problem = None
    if not servers:
        problem = "this launch starts no servers"
    elif settings.backend == "mxnet":
        problem = "MXNet's servers lose their tables when they die"
    elif settings.racks > 1:
        problem = "the servers of racks lose their tables when they die"
    if asked and problem:
        raise ConfigError(f"--server-restarts {asked} cannot be used: {problem}; omit it")
    if asked is None:
        return 0 if problem else SERVER_RESTARTS
    return asked


def _check_snapshots(servers: int, settings: Settings) -> None:
    """Raise ConfigError if snapshots are asked for where none can be taken."""
    check_can_snapshot(settings)
    if not servers:
        raise ConfigError(
            f"--snapshots {settings.snapshots} cannot be used: this launch starts no servers; omit it, or give "
            "the option to the servers that run already"
        )


def plan_servers(count: int, groups: int, restarts: int | None, settings: Settings) -> tuple[ServerLaunch, ...]:
    """Return the servers to start: `count`, or `count` for each rack and one parent, unless parents are configured.

    Raises PlanError, and ConfigError for racks of MXNet's servers; one process starts all of these. `restarts`: the
    limit on restarts of a server that dies; None: not given.
    """
    racks = settings.racks
    check_racks(groups, racks)
    restarts = _server_restarts(restarts, count, settings)
    if settings.snapshots is not None:
        _check_snapshots(count, settings)
    if settings.backend == "mxnet":
        if racks > 1:
            raise ConfigError(f"--racks {racks}: MXNet's servers have no parents; use the backend hybridps")
        return (ServerLaunch("servers", options=("--groups", str(groups), "--servers", str(count))),) if count else ()
    if racks == 1:
        options = ("--restarts", str(restarts)) if restarts else ()
        return tuple(ServerLaunch(f"server {index}", options=options) for index in range(count))
    of_racks = [ServerLaunch(f"rack {rack} server {index}", rack) for rack in range(racks) for index in range(count)]
    place_in_rack(0, groups, racks, [server.name for server in of_racks] or settings.servers)
    above = [] if settings.parents or not count else [ServerLaunch("parent")]
    return (*above, *of_racks)
