"""The groups of a launch as processes: one mpirun for each, in its latest life."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from hybridps.cli.run.children.child import Child, running
from hybridps.cli.run.children.output import Screen
from hybridps.cli.run.children.processes import Processes
from hybridps.cli.run.children.rank_ends import RankEnds
from hybridps.cli.run.groups.command import announces, command_of_group
from hybridps.cli.run.groups.environment import environment_of_groups
from hybridps.cli.run.groups.starting import Starting
from hybridps.cli.run.mpirun import Mpirun
from hybridps.cli.run.plan import GroupLaunch, Launch
from hybridps.cli.run.servers import LaunchedServers
from hybridps.resuming import Resume


class LaunchedGroups:
    """The groups of a launch.

    `hear` is called with the number of a group in the job and a line of one of its workers. If it returns True, the
    line is hidden.
    """

    def __init__(
        self, launch: Launch, mpirun: Mpirun, processes: Processes, screen: Screen, hear: Callable[[int, str], bool]
    ) -> None:
        self.children: list[Child] = []
        """The latest life of each group."""
        self.starting: Starting | None = None
        """Counts the ranks that run, from the start of the groups, if the ranks can announce that they run."""
        self._launch = launch
        self._mpirun = mpirun
        self._processes = processes
        self._screen = screen
        self._hear_line = hear
        self._shared: dict[str, str] = {}
        """The environment of all groups."""
        self._meeting_folder = ""
        """Where gossiping groups of this host find each other."""
        self._was_late = False
        """Whether a group was found not to have started in time."""

    @property
    def running(self) -> list[Child]:
        return running(self.children)

    @property
    def workers_running(self) -> dict[int, int]:
        """The number of workers of each group that has not ended, by the number of the group in the job."""
        groups = zip(self.children, self._launch.groups, strict=False)
        return {group.number: group.size for child, group in groups if child.status is None}

    def prepare(self, stack: ExitStack) -> None:
        """Make what all groups share. The stack removes the folders for mpirun's files and for gossiping groups."""
        self._meeting_folder = self._processes.make_folder(stack)
        self._shared = environment_of_groups(
            self._launch, self._meeting_folder, lambda place: self._processes.make_folder(stack, place)
        )
        if announces(self._launch):
            self.starting = Starting(self._launch.groups, self._launch.settings.start_seconds)

    def start(self, launch: Launch, index: int, servers: LaunchedServers, resume: Resume, rejoins: bool) -> None:
        """Start a life of a group. The job of `launch` may differ from that of earlier lives. `rejoins` as there."""
        group, at = launch.groups[index], (servers.addresses, servers.credentials, self._meeting_folder)
        settings = launch.group_settings(group, *at, resume, rejoins)
        command = command_of_group(launch, group, self._mpirun, settings, self._shared, self._screen.shows_bars)
        child = self._processes.start(
            group_name(group),
            command.words,
            command.environ,
            death_signal=self._mpirun.death_signal,
            on_line=partial(self._hear, group),
            tag=self._mpirun.tag if launch.ranks.are_told_apart else None,
            names=worker_names(launch, group),
            ends=None if self._mpirun.names_ranks_that_failed else RankEnds(group.size),
            hosts=" or ".join(host.name for host in group.hosts),
        )
        if index < len(self.children):
            self.children[index] = child
            if self.starting is not None:
                self.starting.begin(index)
        else:
            self.children.append(child)

    def _hear(self, group: GroupLaunch, line: str) -> bool:
        if self.starting is not None and (before := self.starting.hear(group.index, line)) is not None:
            if before.strip():
                self._screen.line(group_name(group), before)
            return True
        return self._hear_line(group.number, line)

    def late(self) -> int | None:
        """Return a group that has not started all ranks in time.

        The first time, return None: this process may have been stopped, so it first reads what the ranks have printed
        since.
        """
        late = self.starting.late() if self.starting is not None else []
        missing = [group for group in late if self.children[group].status is None]
        if missing and self._was_late:
            return missing[0]
        self._was_late = self._was_late or bool(missing)
        return None

    def stop_late(self, group: int, hurry: Callable[[], bool]) -> None:
        """Stop a late group, which may then be restarted."""
        self._was_late = False
        self._processes.stop([self.children[group]], hurry)


def group_name(group: GroupLaunch) -> str:
    """Return the name of a group on the screen."""
    return f"group {group.number}"


def worker_names(launch: Launch, group: GroupLaunch) -> dict[int, str]:
    """Return the names of the ranks of a group on the screen, with their numbers as workers of the job."""
    numbers = enumerate(worker_numbers(launch, group))
    return {rank: f"{group_name(group)} worker {number}" for rank, number in numbers}


def worker_numbers(launch: Launch, group: GroupLaunch) -> range:
    """Return the numbers of the ranks of a group as workers of the job."""
    sizes = launch.sizes or [each.size for each in launch.groups]
    first = sum(sizes[: group.number])
    return range(first, first + group.size)
