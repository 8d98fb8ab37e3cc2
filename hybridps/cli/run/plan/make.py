"""Makes the plan of a launch from the options of the command line, before anything starts."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import msgspec

from hybridps.cli.run.groups.lives import check_restarts
from hybridps.cli.run.plan import user_command
from hybridps.cli.run.plan.environment import Environment
from hybridps.cli.run.plan.hosts import LOOPBACK, Host, address_seen_by, is_here, split_hosts, spread_workers
from hybridps.cli.run.plan.launch import GroupLaunch, Launch
from hybridps.cli.run.plan.peers import do_gossip, find_peers, might_gossip
from hybridps.cli.run.plan.ranks import RankOptions
from hybridps.cli.run.plan.servers import check_unsecured, count_servers, makes_keys, plan_servers
from hybridps.config import Settings
from hybridps.errors import ConfigError
from hybridps.mpi_groups.plan import WORKER, make_plan


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
    ranks: RankOptions = RankOptions(),  # noqa: B008 (frozen)
) -> Launch:
    """Plan what a command line of `hybridps run` asks for; None means not given. `join`: the servers of a job to join.

    Raises HybridPSError for a launch that is not possible.
    """
    user_command.check(command)
    settings = _of_one_launch(settings, join)
    total = _workers(workers, hosts, settings)
    hosts = spread_workers(hosts, total)
    seen = _as_ranks_see(settings)
    groups, gossips = _groups(total, hosts, seen), do_gossip(seen)
    count = count_servers(servers, len(groups) > 1 and not seen.servers and not gossips, seen)
    launches = plan_servers(count, len(groups), server_restarts, settings)
    elsewhere = [host.name for host in hosts if not is_here(host.name)]
    may_gossip = len(groups) > 1 and (gossips or might_gossip(settings, elsewhere))
    bind = _listening(elsewhere, settings, insecure) if launches or gossips else LOOPBACK
    peers = find_peers(groups, settings, bind) if may_gossip else ()
    made = Launch(
        groups=groups,
        servers=launches,
        bind=f"tcp://{bind}:*",
        insecure=insecure,
        command=user_command.wrap(command),
        settings=settings,
        makes_keys=makes_keys(settings, bind, insecure, peers if gossips else ()),
        environment=environment or Environment(),
        launcher=launcher,
        ranks=ranks,
        may_gossip=may_gossip,
        peers=peers,
        restarts=check_restarts(restarts, len(groups), settings),
        begins_together=not join and seen.algorithm == "sync",
        hosts=hosts,
    )
    return _joined(made) if join else made


def _listening(elsewhere: Sequence[str], settings: Settings, insecure: bool) -> str:
    """Return the address at which servers listen, so that groups on hosts `elsewhere` reach them.

    Raises ConfigError for MXNet's servers on the network without the user's consent.
    """
    if not elsewhere:
        return LOOPBACK
    bind = address_seen_by(elsewhere[0])
    if settings.backend == "mxnet" and bind != LOOPBACK:
        check_unsecured(bind, insecure)
    return bind


def _joined(launch: Launch) -> Launch:
    from hybridps.cli.run import joining  # this loads the compiler too

    return joining.join(launch)


def _of_one_launch(settings: Settings, join: Sequence[str]) -> Settings:
    """Return the settings with the identity of a new launch, and of its job or the job that it joins."""
    settings = msgspec.structs.replace(settings, group_index=None, launch=uuid.uuid4().hex)
    if join:
        return msgspec.structs.replace(settings, servers=tuple(join))
    if settings.job == Settings().job:
        return msgspec.structs.replace(settings, job=_job(settings))
    return settings


def _groups(workers: int, hosts: Sequence[Host], seen: Settings) -> tuple[GroupLaunch, ...]:
    """Return the groups, each on its part of the hosts. `seen`: the settings as the ranks see them."""
    sizes = make_plan([WORKER] * workers, [""] * workers, seen).group_sizes
    parts: Sequence[tuple[Host, ...]] = split_hosts(hosts, sizes) if hosts else [()] * len(sizes)
    pairs = enumerate(zip(sizes, parts, strict=True))
    return tuple(GroupLaunch(index, size, part, index) for index, (size, part) in pairs)


def _job(settings: Settings) -> str:
    """Return a name for a job without one: that of the job with snapshots in the folder, or else a new one."""
    if settings.snapshots is not None:
        from hybridps.ps.server.snapshots import only_job  # this loads the compiler too

        if name := only_job(settings.snapshots):
            return name
    return f"run-{uuid.uuid4().hex[:12]}"


def _workers(workers: int | None, hosts: Sequence[Host], settings: Settings) -> int:
    """Return the number of workers: as given, else that of the group sizes, the slots or the groups, else one."""
    if workers is None:
        return sum(settings.group_sizes or ()) or sum(host.slots for host in hosts) or settings.groups or 1
    if workers < 1:
        raise ConfigError(f"-n {workers} cannot be used: a job has at least one worker")
    return workers


def _as_ranks_see(settings: Settings) -> Settings:
    """Return the settings with what the algorithm's name implies. Raises ConfigError for unknown names or triggers."""
    if settings.algorithm is None and settings.trigger is None:
        return settings
    from hybridps.algorithms import resolve  # this loads the compiler, which takes longer than everything else here

    return resolve(settings)
