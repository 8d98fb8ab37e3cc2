"""The plan of a launch: pure values, which say all that it starts."""

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
    *("peers", "keys", "credentials", "server_keys", "life", "resume_epoch", "resume_step"),
)
"""Settings that differ between the processes of a launch."""


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
    ranks: RankOptions = RankOptions()
    """How ranks are started and shown."""
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
