"""The plan of a launch: a pure value, made from the command line before anything starts."""

from __future__ import annotations

import secrets
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from hybridps.addresses import is_local
from hybridps.cli.run import user_command
from hybridps.cli.run.environment import Environment
from hybridps.cli.run.groups.lives import check_restarts
from hybridps.cli.run.hosts import Host, address_seen_by, is_here, split_hosts, spread_workers
from hybridps.cli.serve import check_can_snapshot
from hybridps.config import PREFIX, Settings
from hybridps.errors import ConfigError
from hybridps.mpi_groups.plan import WORKER, make_plan
from hybridps.processes import SERVER_RESTARTS
from hybridps.racks import check_racks, place_in_rack
from hybridps.resuming import Resume

_LOOPBACK = "127.0.0.1"
_FIRST_PORT, _PORTS = 12000, 16000
"""Where groups on several hosts listen to each other: ports that systems do not give away by themselves."""
_OF_SOME = (
    *("groups", "workers_per_group", "group_sizes", "group_index", "servers", "racks", "rack_index", "parents"),
    *("peers", "keys", "credentials", "server_keys", "life", "resume_epoch", "resume_step"),
)
"""Settings that differ between the processes of a launch."""


def check_unsecured(host: str, insecure: bool) -> None:
    """Raise ConfigError if MXNet's servers would be on the network without the user's consent."""
    if not insecure:
        raise ConfigError(
            f"MXNet's servers at {host} would be open to everybody on the network, as ps-lite has neither keys nor "
            "encryption: add --insecure if you trust the network, or use the backend hybridps"
        )


@dataclass(frozen=True)
class GroupLaunch:
    """One mpirun. Without hosts it runs on this host."""

    index: int
    """Among the groups of this launch."""
    size: int
    hosts: tuple[Host, ...]
    number: int = -1
    """In the job."""


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
    environment: Environment = Environment()
    """Variables that the command line gives to the processes."""
    launcher: str | None = None
    """How mpirun reaches the hosts, a word of `places.LAUNCHERS`. None: as it does by itself."""
    may_gossip: bool = False
    """Whether the groups are told each other's addresses."""
    peers: tuple[str, ...] = ()
    """These addresses, if they are given, or groups are on other hosts."""
    restarts: int = 0
    """How often groups that die may be started again, in all."""
    begins_together: bool = False
    """Whether a group that was started again could not join the others."""
    sizes: tuple[int, ...] = ()
    """Workers of all groups of a job that these groups join, by their numbers; empty for a job of this launch."""
    done: tuple[float, int] = (0.0, 0)
    """Epochs and steps that the job had done then."""

    @property
    def workers_on_a_host(self) -> int:
        """Number of workers on the host that has the most workers."""
        slots: Counter[str] = Counter()
        for group in self.groups:
            for host in group.hosts:  # one may stand twice in a group
                slots[host.name] += host.slots
        return max(slots.values(), default=sum(group.size for group in self.groups))

    def as_another_job(self, number: int) -> Launch:
        """The same, with a job that the servers do not know yet, the `number`-th of this launch."""
        job = f"{self.settings.job[:56]}.{number}"
        return replace(self, settings=msgspec.structs.replace(self.settings, job=job))

    def group_settings(
        self,
        group: GroupLaunch,
        servers: Sequence[str],
        credentials: str | None = None,
        folder: str = "",
        resume: Resume = Resume(),  # noqa: B008 (a NamedTuple)
    ) -> Settings:
        """Settings of the ranks of a group, given the addresses and the credentials of the servers.

        Servers of this launch use the keys that were made for it, the keys of their folder, or none. `folder`: of this
        user alone, in which groups of this host that gossip find each other. `resume`: where its scripts go on.
        """
        here = tuple(f"ipc://{folder}/group-{other.index}" for other in self.groups if folder)
        unsecured = bool(self.servers) and not self.makes_keys and self.settings.server_keys is None
        return msgspec.structs.replace(
            self._common_settings(),
            group_sizes=self.sizes[: group.number + 1] or tuple(other.size for other in self.groups),
            group_index=group.number,
            servers=tuple(servers) or self.settings.servers,
            racks=self.settings.racks,
            awaits_refusing=self.settings.awaits_refusing and not self.servers,
            peers=(self.peers or here) if self.may_gossip else (),
            keys=None if unsecured else self.settings.keys,
            credentials=None if unsecured else credentials or self.settings.credentials,
            life=resume.life,
            resume_epoch=resume.epoch,
            resume_step=resume.step,
        )

    def server_settings(
        self,
        server: ServerLaunch,
        parents: Sequence[str] = (),
        keys: str | None = None,
        credentials: str | None = None,
    ) -> Settings:
        """Settings of a server: the folder of its keys and, in a rack, its parents and the credentials for them."""
        alone = msgspec.structs.replace(self._common_settings(), server_keys=keys or self.settings.server_keys)
        if server.rack is None:
            return alone
        return msgspec.structs.replace(
            alone,
            awaits_refusing=self.settings.awaits_refusing and bool(self.settings.parents),
            racks=self.settings.racks,
            rack_index=server.rack,
            parents=tuple(parents) or self.settings.parents,
            keys=self.settings.keys,
            credentials=credentials or self.settings.credentials,
        )

    def _common_settings(self) -> Settings:
        """What all processes are told alike: neither their part, nor whom they meet, nor keys."""
        return msgspec.structs.replace(self.settings, **{field: getattr(Settings(), field) for field in _OF_SOME})


def make_launch(
    command: Sequence[str],
    settings: Settings,
    *,
    workers: int | None = None,
    servers: int | None = None,
    restarts: int = 0,
    server_restarts: int | None = None,
    hosts: tuple[Host, ...] = (),
    insecure: bool = False,
    environment: Environment | None = None,
    launcher: str | None = None,
    join: Sequence[str] = (),
) -> Launch:
    """Plan what the command line of `hybridps run` asks for; None means not given. `join`: the servers of a job that
    the groups join.

    Raises HybridPSError for what cannot be met.
    """
    user_command.check(command)
    settings = msgspec.structs.replace(settings, group_index=None, launch=uuid.uuid4().hex)
    if join:
        settings = msgspec.structs.replace(settings, servers=tuple(join))
    elif settings.job == Settings().job:
        settings = msgspec.structs.replace(settings, job=_job(settings))
    count = _workers(workers, hosts, settings)
    hosts = spread_workers(hosts, count)
    seen = _as_ranks_see(settings)
    sizes = make_plan([WORKER] * count, [""] * count, seen).group_sizes
    gossips = _gossips(seen)
    parts: Sequence[tuple[Host, ...]] = split_hosts(hosts, sizes) if hosts else [()] * len(sizes)
    pairs = enumerate(zip(sizes, parts, strict=True))
    groups = tuple(GroupLaunch(index, size, part, index) for index, (size, part) in pairs)
    needs_server = len(sizes) > 1 and not settings.servers and not gossips
    launches = _server_launches(_servers(servers, needs_server, settings), len(sizes), server_restarts, settings)
    elsewhere = [host.name for host in hosts if not is_here(host.name)]
    # A script may name an algorithm that gossips; on one host that costs nothing to prepare.
    may_gossip = len(sizes) > 1 and (gossips or (settings.algorithm is None and not elsewhere))
    bind = address_seen_by(elsewhere[0]) if (launches or gossips) and elsewhere else _LOOPBACK
    peers = _peers(groups, settings, bind) if may_gossip else ()
    if settings.backend == "mxnet" and bind != _LOOPBACK:
        check_unsecured(bind, insecure)
    made = Launch(
        groups=groups,
        servers=launches,
        bind=f"tcp://{bind}:*",
        insecure=insecure,
        command=user_command.wrap(command),
        settings=settings,
        makes_keys=_makes_keys(settings, bind, insecure, peers if gossips else ()),
        environment=environment or Environment(),
        launcher=launcher,
        may_gossip=may_gossip,
        peers=peers,
        restarts=check_restarts(restarts, len(sizes), settings),
        begins_together=not join and len(sizes) > 1 and seen.algorithm == "sync",
    )
    if not join:
        return made
    from hybridps.cli.run import joining  # brings the compiler too

    return joining.join(made)


def _job(settings: Settings) -> str:
    """The name of a job that was given none: of the one that has snapshots in the folder, else a new one."""
    if settings.snapshots is not None:
        from hybridps.ps.server.snapshots import only_job  # brings the compiler too

        if name := only_job(settings.snapshots):
            return name
    return f"run-{uuid.uuid4().hex[:12]}"


def _workers(workers: int | None, hosts: Sequence[Host], settings: Settings) -> int:
    """Workers in all: as said, else as many as the groups need, else a worker for each slot, else one."""
    if workers is None:
        return sum(settings.group_sizes or ()) or sum(host.slots for host in hosts) or settings.groups or 1
    if workers < 1:
        raise ConfigError(f"-n {workers} cannot be used: a job has at least one worker")
    return workers


def _as_ranks_see(settings: Settings) -> Settings:
    """The settings with what the algorithm's name implies. Raises ConfigError for an unknown one, or such a trigger."""
    if settings.algorithm is None and settings.trigger is None:
        return settings
    from hybridps.algorithms import resolve  # it brings the compiler, which takes longer than all else here

    return resolve(settings)


def _gossips(settings: Settings) -> bool:
    """Whether the groups exchange weights without servers. `settings`: as the ranks see them."""
    if settings.algorithm is None:
        return False
    from hybridps.algorithms import definition

    return definition(settings.algorithm).gossips


def _peers(groups: Sequence[GroupLaunch], settings: Settings, here: str) -> tuple[str, ...]:
    """Where the groups listen to each other: as given, or on their hosts. Empty if they are all on this host.

    `here`: how other hosts reach this one. Raises ConfigError for another number than that of the groups.
    """
    if settings.peers and len(settings.peers) != len(groups):
        raise ConfigError(
            f"{PREFIX}PEERS has {len(settings.peers)} addresses, and there are {len(groups)} groups: give one for each"
        )
    if settings.peers or here == _LOOPBACK:
        return settings.peers
    first = _FIRST_PORT + secrets.randbelow(_PORTS - len(groups))
    names = [here if is_here(group.hosts[0].name) else group.hosts[0].name for group in groups]
    return tuple(f"tcp://{name}:{first + index}" for index, name in enumerate(names))


def _makes_keys(settings: Settings, bind: str, insecure: bool, peers: Sequence[str]) -> bool:
    """Whether servers at `bind`, or groups that gossip at `peers`, are on the network and have no keys yet."""
    if settings.keys is None and not all(map(is_local, peers)):
        return True
    return bind != _LOOPBACK and settings.backend != "mxnet" and not insecure and settings.server_keys is None


def _servers(servers: int | None, needs_one: bool, settings: Settings) -> int:
    """Number of servers to start: as given, or else one if the groups need one."""
    if servers is None:
        return int(needs_one)
    if servers < 0:
        raise ConfigError(f"--servers {servers} cannot be used: it must be 0 or more")
    if servers and settings.servers:
        raise ConfigError(
            f"--servers {servers} asks for new servers, and {PREFIX}SERVERS={','.join(settings.servers)} for running "
            "ones: give only one of them"
        )
    return servers


def _server_restarts(asked: int | None, servers: int, settings: Settings) -> int:
    """How often a server that dies is started again. Raises ConfigError if it is `asked` for where that cannot be."""
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


def _server_launches(count: int, groups: int, restarts: int | None, settings: Settings) -> tuple[ServerLaunch, ...]:
    """The servers to start: `count`, or with racks `count` for each rack and one parent, unless parents are given.

    Raises PlanError. MXNet's servers are started by one process, and have no racks (ConfigError). `restarts`: how often
    one that dies is started again, as given.
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
