"""Where the ranks of a launch run: turns `--launcher`, `-H` and `--hostfile` into hosts and slots."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from hybridps.cli.run.plan.hosts import Host, parse_hostfile, parse_hosts
from hybridps.errors import ConfigError, did_you_mean

LOCAL, SSH, MPI, SLURM = LAUNCHERS = ("local", "ssh", "mpi", "slurm")

_OTHERS = {
    "sge": "in the job's script, make a hostfile of its hosts: awk '{print $1, \"slots=\" $2}' $PE_HOSTFILE > hosts; "
    "hybridps run -H hosts ...",
    "yarn": "reserve the hosts in another way, and name them with -H",
}
_PORT = re.compile(r"^\s*([^\s:#]+):[0-9]+", re.MULTILINE)
_RUN = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")
"""The number of tasks of a node, and of how many nodes, as SLURM writes them: `4(x2)`."""
_SECONDS = 60


def read_hosts(hosts: str | None, hostfile: Path | None) -> tuple[Host, ...]:
    """Return the hosts that were named: in a list or the path of a file (`hosts`), or in `hostfile`; else none.

    Raises ConfigError for input that cannot be read, and if both are given.
    """
    if hosts is not None and hostfile is not None:
        raise ConfigError("--hosts and --hostfile both name the hosts: give only one of them")
    if hosts is None and hostfile is None:
        return ()
    file = hostfile or _as_file(hosts or "")
    found = parse_hostfile(_text(file)) if file else parse_hosts(hosts or "")
    if not found:
        raise ConfigError(
            f"{str(file or hosts)!r} names no host: write h1:4,h2:4, or a file with lines such as h1 slots=4"
        )
    return found


def find_hosts(
    launcher: str | None, hosts: str | None, hostfile: Path | None, environ: Mapping[str, str] = os.environ
) -> tuple[Host, ...]:
    """Return the hosts of a launch; none leaves them to mpirun, which takes this one. `launcher` is in `LAUNCHERS`.

    Raises ConfigError for another word, or if it contradicts the hosts or the environment.
    """
    _check_launcher(launcher)
    named = read_hosts(hosts, hostfile)
    if launcher == LOCAL:
        if named:
            raise ConfigError(f"--launcher local starts all ranks here, and -H names {named[0].name}: give only one")
        return (Host("localhost", 1, is_counted=False),)
    if launcher == SSH:
        if not named:
            raise ConfigError("--launcher ssh needs hosts: name them with -H h1:4,h2:4, or with -H FILE")
        _check_ports(hostfile or _as_file(hosts or ""))
    if launcher == SLURM:
        return _allocated(environ, named)
    return named


def check_sync(folder: str | None) -> None:
    """Raise ConfigError for `--sync-dst-dir`, with which launch.py copies the working folder."""
    if folder is not None:
        raise ConfigError(
            f"--sync-dst-dir {folder}: hybridps run copies no files. Script and Python must have the same path on all "
            f"hosts: copy them first (rsync -az ./ HOST:{folder}), and start hybridps run in a folder of that path"
        )


def _check_launcher(launcher: str | None) -> None:
    if launcher in _OTHERS:
        raise ConfigError(f"--launcher {launcher} is not supported: {_OTHERS[launcher]}")
    if launcher is not None and launcher not in LAUNCHERS:
        known = f"{', '.join(LAUNCHERS)}{did_you_mean(launcher, LAUNCHERS)}"
        raise ConfigError(f"--launcher {launcher} is not one of {known}")


def _check_ports(file: Path | None) -> None:
    """Raise ConfigError for `h1:22` in a hostfile: to launch.py the number is an ssh port, here it would be slots."""
    found = _PORT.search(_text(file)) if file else None
    if found:
        raise ConfigError(
            f"{found[0].strip()!r} in {str(file)!r} may be a port of ssh, as for launch.py, or a number of slots: "
            f"write `{found[1]} slots=N`; ports belong in ~/.ssh/config"
        )


def _as_file(hosts: str) -> Path | None:
    """Return the file that was named in place of hosts, if it is one. Raises ConfigError for a path without a file."""
    if os.path.isfile(hosts):  # false for a list that is too long for a path
        return Path(hosts)
    if "/" in hosts:
        raise ConfigError(f"the hostfile {hosts!r} cannot be read: there is no such file")
    return None


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise ConfigError(f"the hostfile {str(file)!r} cannot be read: {reason}") from None


def _allocated(environ: Mapping[str, str], named: tuple[Host, ...]) -> tuple[Host, ...]:
    """Return the hosts that were named, or else those of the SLURM allocation of this process. Raises ConfigError."""
    nodes, tasks = environ.get("SLURM_JOB_NODELIST"), environ.get("SLURM_TASKS_PER_NODE", "")
    if not nodes:
        raise ConfigError(
            "--launcher slurm needs an allocation: start it in one, e.g. salloc --nodes=2 --ntasks-per-node=4 "
            "hybridps run --launcher slurm ..., or with sbatch"
        )
    if named:
        return named
    command = ["scontrol", "show", "hostnames", nodes]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True, env=dict(environ))
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{' '.join(command)} failed: {error}; name the hosts with -H") from None
    names = done.stdout.split()
    slots = [int(count) for count, times in _RUN.findall(tasks) for _ in range(int(times or 1))]
    if slots and len(slots) != len(names):
        raise ConfigError(
            f"SLURM_TASKS_PER_NODE={tasks} does not fit the {len(names)} hosts of {nodes}: name the hosts with -H"
        )
    if not slots:
        return tuple(Host(name, 1, is_counted=False) for name in names)
    return tuple(Host(name, count) for name, count in zip(names, slots, strict=True))
