"""The plan of a launch: pure values that describe everything it starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from hybridps.cli.run.plan.environment import Environment
from hybridps.cli.run.plan.hosts import Host
from hybridps.cli.run.plan.ranks import RankOptions
from hybridps.config import Settings
from hybridps.resuming import Resume

_OF_SOME = (
    *("groups", "workers_per_group", "group_sizes", "group_index", "servers", "racks", "rack_index", "parents"),
    *("peers", "keys", "credentials", "server_keys", "life", "resume_epoch", "resume_step", "rejoins"),
)
"""The settings that differ between the processes of a launch."""


@dataclass(frozen=True)
class GroupLaunch:
    """One mpirun. Without hosts, it runs on this host."""

    index: int
    """The place of the group among those of this launch."""
    size: int
    hosts: tuple[Host, ...]
    number: int
    """The number of the group in the job."""


@dataclass(frozen=True)
class ServerLaunch:
    """A server process. `rack` is the rack that it serves. Servers without a rack are the parents of those with one."""

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
    """Whether the servers listen on the network with keys that are made for this launch only."""
    environment: Environment = Environment()
    """The variables that the command line gives to the processes."""
    launcher: str | None = None
    """How mpirun reaches the hosts, a word of `places.LAUNCHERS`. None: by mpirun's default."""
    ranks: RankOptions = RankOptions()
    """How ranks are started and their output is shown."""
    may_gossip: bool = False
    """Whether the groups get each other's addresses."""
    peers: tuple[str, ...] = ()
    """Those addresses, if they are configured or groups are on other hosts."""
    restarts: int = 0
    """The limit on restarts of groups that die, in total."""
    begins_together: bool = False
    """Whether a restarted group could not join the others, so that all start together."""
    sizes: tuple[int, ...] = ()
    """The sizes of all groups of the job that these groups join, by number; empty if the launch starts its own job."""
    hosts: tuple[Host, ...] = ()
    """The hosts that were named. Those at the end may have no group, because those before have enough slots."""
    done: tuple[float, int] = (0.0, 0)
    """The epochs and steps that the job had done when these groups joined it."""

    @property
    def workers_on_a_host(self) -> int:
        """The number of workers on the host that has the most workers."""
        slots: Counter[str] = Counter()
        for group in self.groups:
            for host in group.hosts:  # a host may occur twice in a group
                slots[host.name] += host.slots
        return max(slots.values(), default=sum(group.size for group in self.groups))

    def as_another_job(self, number: int) -> Launch:
        """Return the same launch with another job, one that the servers do not know: the `number`-th of this launch."""
        job = f"{self.settings.job[:56]}.{number}"
        return replace(self, settings=msgspec.structs.replace(self.settings, job=job))

    def group_settings(
        self,
        group: GroupLaunch,
        servers: Sequence[str],
        credentials: str | None = None,
        folder: str = "",
        resume: Resume = Resume(),  # noqa: B008 (a NamedTuple)
        rejoins: bool = False,
    ) -> Settings:
        """Return the settings of the ranks of a group, given the addresses and the credentials of the servers.

        Servers of this launch use the keys that were made for it, the keys of their folder, or none. `folder`: a
        private folder of this user, in which gossiping groups of this host find each other. `resume`: where the scripts
        continue. `rejoins`: the group rejoins others that train in step.
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
            workers_on_host=self.workers_on_a_host,
            peers=(self.peers or here) if self.may_gossip else (),
            keys=None if unsecured else self.settings.keys,
            credentials=None if unsecured else credentials or self.settings.credentials,
            life=resume.life,
            resume_epoch=resume.epoch,
            resume_step=resume.step,
            rejoins=rejoins,
        )

    def server_settings(
        self,
        server: ServerLaunch,
        parents: Sequence[str] = (),
        keys: str | None = None,
        credentials: str | None = None,
    ) -> Settings:
        """Return a server's settings: its folder of keys and, in a rack, its parents and its credentials for them."""
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
        """Return the settings that all processes share: without their roles, the addresses of others, or keys."""
        return msgspec.structs.replace(self.settings, **{field: getattr(Settings(), field) for field in _OF_SOME})
