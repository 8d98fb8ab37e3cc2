"""The plan of a launch: a pure value, made from the command line before anything starts."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hybridps.algorithms import resolve
from hybridps.cli.run import user_command
from hybridps.cli.run.hosts import Host, address_seen_by, is_here, most_on_a_host, split_hosts
from hybridps.config import PREFIX, Settings, load_settings, make_settings, to_environment
from hybridps.errors import ConfigError
from hybridps.mpi_groups.plan import WORKER, make_plan
from hybridps.ps.racks import check_racks, place_in_rack

_LOOPBACK = "127.0.0.1"


def check_unsecured(host: str, insecure: bool) -> None:
    """Raise ConfigError if MXNet's servers would be on the network without the user's consent."""
    if not insecure:
        raise ConfigError(
            f"MXNet's servers at {host} would be open to everybody on the network, as ps-lite has neither keys nor "
            "encryption: add --insecure if you trust the network, or use the backend hybridps"
        )


@dataclass(frozen=True)
class LaunchOptions:
    """What the command line of `hybridps run` asks for. None means not given."""

    command: tuple[str, ...]
    settings: Settings
    workers: int | None = None
    servers: int | None = None
    hosts: tuple[Host, ...] = ()
    insecure: bool = False


@dataclass(frozen=True)
class GroupLaunch:
    """One mpirun. Without hosts it runs on this host."""

    index: int
    size: int
    hosts: tuple[Host, ...]


@dataclass(frozen=True)
class ServerLaunch:
    """A server process. `rack` is the rack that it serves; servers without a rack are the parents of those with one."""

    name: str
    rack: int | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Launch:
    """Everything that a launch starts."""

    groups: tuple[GroupLaunch, ...]
    servers: tuple[ServerLaunch, ...]
    bind: str
    insecure: bool
    command: tuple[str, ...]
    settings: Settings
    makes_keys: bool = False
    """Whether the servers listen on the network and get keys that are made for this launch only."""

    @property
    def can_lose_a_group(self) -> bool:
        """Whether the other groups can go on when a group fails."""
        return self.settings.backend == "hybridps"

    @property
    def workers(self) -> int:
        return sum(group.size for group in self.groups)

    @property
    def workers_on_a_host(self) -> int:
        """Number of workers on the host that has the most workers."""
        return most_on_a_host([group.hosts for group in self.groups]) or self.workers

    def group_settings(self, group: GroupLaunch, servers: Sequence[str], credentials: str | None = None) -> Settings:
        """Settings of the ranks of a group, given the addresses and the credentials of the servers.

        Servers of this launch use the keys that were made for it, the keys of their folder, or none.
        """
        sizes = tuple(other.size for other in self.groups)
        addresses = tuple(servers) or self.settings.servers
        unsecured = bool(self.servers) and not self.makes_keys and self.settings.server_keys is None
        return msgspec.structs.replace(
            self.settings,
            groups=None,
            workers_per_group=None,
            group_sizes=sizes,
            group_index=group.index,
            servers=addresses,
            parents=(),
            rack_index=0,
            server_keys=None,
            keys=None if unsecured else self.settings.keys,
            credentials=None if unsecured else credentials or self.settings.credentials,
        )

    def server_settings(
        self,
        server: ServerLaunch,
        parents: Sequence[str] = (),
        keys: str | None = None,
        credentials: str | None = None,
    ) -> Settings:
        """Settings of a server: the folder of its keys and, in a rack, its parents and the credentials for them."""
        alone = msgspec.structs.replace(
            self.settings,
            groups=None,
            workers_per_group=None,
            group_sizes=None,
            group_index=None,
            servers=(),
            racks=1,
            rack_index=0,
            parents=(),
            keys=None,
            credentials=None,
            server_keys=keys or self.settings.server_keys,
        )
        if server.rack is None:
            return alone
        return msgspec.structs.replace(
            alone,
            racks=self.settings.racks,
            rack_index=server.rack,
            parents=tuple(parents) or self.settings.parents,
            keys=self.settings.keys,
            credentials=credentials or self.settings.credentials,
        )


def read_settings(options: Mapping[str, Any], pairs: Iterable[str]) -> Settings:
    """Settings from the environment, overridden by the options that are not None, and these by `NAME=VALUE` pairs.

    Raises ConfigError.
    """
    values = msgspec.structs.asdict(load_settings())
    values |= {field: value for field, value in options.items() if value is not None}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair!r} has no value: write --set NAME=VALUE, e.g. --set tau=5")
        values[name.strip().removeprefix(PREFIX).lower()] = value
    if values.get("run_folder"):
        values["run_folder"] = os.path.abspath(values["run_folder"])
    return make_settings(values)


def make_launch(options: LaunchOptions) -> Launch:
    """Plan a launch. Raises HybridPSError for options that cannot be met."""
    user_command.check(options.command)
    settings = msgspec.structs.replace(options.settings, group_index=None)
    if settings.job == Settings().job:
        settings = msgspec.structs.replace(settings, job=f"run-{uuid.uuid4().hex[:12]}")
    sizes = group_sizes(_workers(options), settings)
    parts: Sequence[tuple[Host, ...]] = split_hosts(options.hosts, sizes) if options.hosts else [()] * len(sizes)
    groups = tuple(GroupLaunch(index, size, part) for index, (size, part) in enumerate(zip(sizes, parts, strict=True)))
    servers = _server_launches(_servers(options, len(sizes)), len(sizes), settings)
    bind = _bind(options) if servers else _LOOPBACK
    makes_keys = bind != _LOOPBACK and not options.insecure and settings.server_keys is None
    if settings.backend == "mxnet":
        makes_keys = False
        if bind != _LOOPBACK:
            check_unsecured(bind, options.insecure)
    command = user_command.wrap(options.command)
    return Launch(groups, servers, f"tcp://{bind}:*", options.insecure, command, settings, makes_keys)


def group_sizes(workers: int, settings: Settings) -> tuple[int, ...]:
    """Workers of each group, as the ranks themselves will see it. Raises PlanError, with the numbers."""
    return make_plan([WORKER] * workers, [""] * workers, resolve(settings)).group_sizes


def child_environment(environ: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """The variables of a child: those of this process, with these settings in the place of its own."""
    return {name: value for name, value in environ.items() if not name.startswith(PREFIX)} | to_environment(settings)


def _workers(options: LaunchOptions) -> int:
    """Workers in all: as said, else as many as the groups need, else a worker for each slot, else one."""
    if options.workers is not None:
        if options.workers < 1:
            raise ConfigError(f"-n {options.workers} cannot be used: a job has at least one worker")
        return options.workers
    if options.settings.group_sizes:
        return sum(options.settings.group_sizes)
    slots = sum(host.slots for host in options.hosts)
    return slots or options.settings.groups or 1


def _servers(options: LaunchOptions, groups: int) -> int:
    """Number of servers to start: as given, or else one if the groups need one and none is configured."""
    given = options.settings.servers
    if options.servers is None:
        return 1 if groups > 1 and not given else 0
    if options.servers < 0:
        raise ConfigError(f"--servers {options.servers} cannot be used: it must be 0 or more")
    if options.servers and given:
        raise ConfigError(
            f"--servers {options.servers} asks for new servers, and {PREFIX}SERVERS={','.join(given)} for running "
            "ones: give only one of them"
        )
    return options.servers


def _server_launches(count: int, groups: int, settings: Settings) -> tuple[ServerLaunch, ...]:
    """The servers to start: `count`, or with racks `count` for each rack and one parent, unless parents are given.

    Raises PlanError. MXNet's servers are started by one process, and have no racks (ConfigError).
    """
    racks = settings.racks
    check_racks(groups, racks)
    if settings.backend == "mxnet":
        if racks > 1:
            raise ConfigError(f"--racks {racks}: MXNet's servers have no parents; use the backend hybridps")
        return (ServerLaunch("servers", options=("--groups", str(groups), "--servers", str(count))),) if count else ()
    if racks == 1:
        return tuple(ServerLaunch(f"server {index}") for index in range(count))
    of_racks = [ServerLaunch(f"rack {rack} server {index}", rack) for rack in range(racks) for index in range(count)]
    place_in_rack(0, groups, racks, [server.name for server in of_racks] or settings.servers)
    above = [] if settings.parents or not count else [ServerLaunch("parent")]
    return (*above, *of_racks)


def _bind(options: LaunchOptions) -> str:
    """The address on which servers listen: the loopback, unless workers are on other hosts."""
    elsewhere = [host.name for host in options.hosts if not is_here(host.name)]
    return address_seen_by(elsewhere[0]) if elsewhere else _LOOPBACK
