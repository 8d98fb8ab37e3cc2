"""The command line and the environment of a group's mpirun."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hybridps.cli.run.groups import bound
from hybridps.cli.run.groups.starting import RUNS, announced
from hybridps.cli.run.mpirun import Mpirun
from hybridps.cli.run.plan import GroupLaunch, Launch
from hybridps.cli.run.plan.places import SSH
from hybridps.cli.run.plan.ranks import places_on_hosts
from hybridps.config import PREFIX, SECRETS, Settings
from hybridps.mpi_groups import rank_end
from hybridps.processes import child_environment


class Command(NamedTuple):
    """A command line, and the environment to execute it with."""

    words: tuple[str, ...]
    environ: dict[str, str]


def announces(launch: Launch) -> bool:
    """Return whether each rank of the launch announces that it runs, before its program begins."""
    return bool(launch.ranks.bound or announced(launch.command))


def command_of_group(
    launch: Launch, group: GroupLaunch, mpirun: Mpirun, settings: Settings, shared: Mapping[str, str], at_once: bool
) -> Command:
    """Return the command that starts a group.

    `settings` are those of its ranks, `shared` is the environment of all groups. `at_once`: progress bars are shown.
    """
    environ = child_environment(shared, settings)
    environ |= mpirun.of_batch_system(environ)
    given = launch.environment.workers
    exported = {
        name: value
        for name, value in environ.items()
        if name.startswith(PREFIX) or name in ("OMP_NUM_THREADS", "PYTHONPATH", *given)
    }
    words = mpirun.command(
        group.size,
        group.hosts,
        exported,
        _of_rank(launch, group) if mpirun.names_ranks_that_failed else _reported(_of_rank(launch, group)),
        at_once=at_once,
        over_ssh=launch.launcher == SSH,
        secret=(*SECRETS, *given),
        tagged=launch.ranks.are_told_apart,
        more=launch.ranks.mpi_arguments,
    )
    return Command(words, environ)


def _reported(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command, changed so that each rank prints how it ended."""
    return (sys.executable, "-I", "-S", rank_end.__file__, *command)


def _of_rank(launch: Launch, group: GroupLaunch) -> tuple[str, ...]:
    """Return the command of each rank of a group."""
    if not launch.ranks.bound:
        return announced(launch.command) or launch.command
    places = places_on_hosts([(each.size, each.hosts) for each in launch.groups])[group.index]
    of_ranks = ",".join(f"{index}/{count}" for index, count in places)
    # This is hybridps's Python, whatever the program is: it must be on all hosts anyway.
    program = (sys.executable, "-I", "-S", bound.__file__, ",".join(launch.ranks.bound), of_ranks, RUNS)
    return (*program, *launch.command)
