"""What a launch prints about itself before it starts: its first line, and the commands of `--dry-run`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from hybridps.cli.run.groups.command import Command, command_of_group
from hybridps.cli.run.groups.environment import environment_of_groups
from hybridps.cli.run.groups.launched import group_name
from hybridps.cli.run.mpirun import Mpirun
from hybridps.cli.run.plan import Launch
from hybridps.cli.run.servers import command_of_server
from hybridps.config import PREFIX, SECRETS
from hybridps.quantities import counted

_MADE = "MADE-FOR-THIS-LAUNCH"
"""The placeholder for keys."""

_FOLDER = "A-NEW-FOLDER"
"""The placeholder for folders of the launch. Without them, mpirun uses its own."""

_ALWAYS = ("OMP_NUM_THREADS",)


class Why(NamedTuple):
    """What the command line itself specified; the rest was chosen."""

    workers: int | None = None
    servers: int | None = None
    hosts: str | None = None
    """The option that named the hosts."""


def describe(launch: Launch, mpirun: Mpirun, why: Why) -> str:
    """Return one line that says what was chosen, and why."""
    sizes = [group.size for group in launch.groups]
    settings = launch.settings
    workers = f"{counted(sum(sizes), 'worker')} ({_why_workers(launch, why)})"
    groups = f"in {counted(len(sizes), 'group')}" + (f" ({' + '.join(map(str, sizes))})" if len(sizes) > 1 else "")
    names = dict.fromkeys(host.name for group in launch.groups for host in group.hosts)
    where = f"on {', '.join(names)}" if names else "on this host"
    idle = dict.fromkeys(host.name for host in launch.hosts if host.name not in names)
    where += f" (not on {', '.join(idle)}: the slots before suffice)" if idle else ""
    parts = [
        f"{workers} {groups} {where}",
        _servers(launch, why),
        f"algorithm {settings.algorithm or 'sync, unless the script names another'}",
        str(mpirun) + (f" over {launch.launcher}" if launch.launcher not in (None, "local", "mpi") else ""),
        f"each worker has {' and '.join(launch.ranks.bound)} of its own" if launch.ranks.bound else "",
    ]
    return "; ".join(filter(None, parts))


def _why_workers(launch: Launch, why: Why) -> str:
    if why.workers is not None:
        return "-n"
    if launch.settings.group_sizes:
        return "--group-sizes"
    if why.hosts:
        return f"the slots of {why.hosts}"
    return "one for each group" if launch.settings.groups else "the default"


def _servers(launch: Launch, why: Why) -> str:
    settings = launch.settings
    if settings.servers and not launch.servers:
        return f"using the servers at {', '.join(settings.servers)}"
    if not launch.servers:
        reason = "the groups exchange weights themselves" if len(launch.groups) > 1 else "there is one group"
        return f"no server ({'-s' if why.servers is not None else reason})"
    reason = "-s" if why.servers is not None else "there are several groups"
    keys = "keys made for this launch" if launch.makes_keys else f"the keys of {settings.server_keys}"
    keys = keys if launch.makes_keys or settings.server_keys else "no keys"
    where = launch.bind.removeprefix("tcp://").removesuffix(":*")
    return f"{counted(len(launch.servers), 'server')} ({reason}) at {where} with {keys}"


def commands(launch: Launch, mpirun: Mpirun) -> Iterator[str]:
    """Yield the commands that the launch would execute, for a shell, with a comment before each.

    Addresses and keys that do not exist yet are words in capitals. Variables for folders of the launch are left out.
    """
    here = dict(os.environ)
    keys, credentials = (_MADE, _MADE) if launch.makes_keys else (None, None)
    parents: list[str] = []
    addresses: list[str] = []
    for server in launch.servers:
        place = launch.bind.replace("*", f"PORT-OF-{server.name.upper().replace(' ', '-')}")
        (parents if server.rack is None and launch.settings.racks > 1 else addresses).append(place)
        yield f"# {server.name}"
        yield _shown(command_of_server(launch, server, parents, keys, credentials), here)
    shared = environment_of_groups(launch, _FOLDER, lambda place: f"{place}/{_FOLDER}")
    for group in launch.groups:
        settings = launch.group_settings(group, addresses, credentials, _FOLDER)
        where = f" on {', '.join(map(str, group.hosts))}" if group.hosts else ""
        yield f"# {group_name(group)}: {counted(group.size, 'worker')}{where}"
        yield _shown(command_of_group(launch, group, mpirun, settings, shared, at_once=False), here)


def _shown(command: Command, here: dict[str, str]) -> str:
    """Return a command as text, with the variables that differ from those of this process."""
    variables = {
        name: _MADE if name in SECRETS else value
        for name, value in command.environ.items()
        if (here.get(name) != value or name.startswith(PREFIX) or name in _ALWAYS) and _FOLDER not in value
    }
    return shlex.join(["env", *(f"{name}={value}" for name, value in sorted(variables.items())), *command.words])
