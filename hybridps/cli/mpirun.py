"""The MPI library's own launcher: where it is, which one it is, and its command line."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hybridps.cli.hosts import Host
from hybridps.config import SECRETS
from hybridps.errors import ConfigError

OPEN_MPI = "Open MPI"
MPICH = "MPICH"
_MARKS = {"Open MPI": OPEN_MPI, "OpenRTE": OPEN_MPI, "PRRTE": OPEN_MPI, "HYDRA": MPICH, "Intel(R) MPI": MPICH}
_OLD_OPEN_MPI = re.compile(r"\(Open MPI\) [1-4]\.")
"""Passes parts of lines on, and has no option for it."""
_VERSION_SECONDS = 20


@dataclass(frozen=True)
class Mpirun:
    """An `mpirun`, and the MPI library that it belongs to."""

    path: str
    flavour: str
    version: str = ""
    """What `mpirun --version` says."""

    @property
    def death_signal(self) -> int:
        """The signal at which mpirun ends, and with it all ranks, even those that ignore SIGTERM."""
        # on SIGTERM Open MPI's kills its ranks and MPICH's waits for them; when MPICH's is killed, its
        # proxies kill the ranks, and when Open MPI's is killed, its ranks go on
        return signal.SIGTERM if self.flavour == OPEN_MPI else signal.SIGKILL

    def command(
        self,
        workers: int,
        hosts: Sequence[Host],
        exported: Mapping[str, str],
        command: Sequence[str],
        *,
        at_once: bool = False,
    ) -> tuple[str, ...]:
        """The command line for so many ranks on these hosts (none: this one). Ranks elsewhere get `exported`.

        `at_once`: pass parts of lines on, so that a progress bar is seen; else whole lines, if mpirun can.
        """
        is_open_mpi = self.flavour == OPEN_MPI
        options = self._open_mpi(hosts, exported, at_once) if is_open_mpi else self._mpich(hosts, exported)
        return (self.path, *options, "-n", str(workers), *command)

    def _open_mpi(self, hosts: Sequence[Host], exported: Mapping[str, str], at_once: bool) -> list[str]:
        # several mpiruns on a host would each bind their first rank to core 0
        options = ["--oversubscribe", "--bind-to", "none"]
        if at_once and not _OLD_OPEN_MPI.search(self.version):
            options += ["--stream-buffering", "0"]
        if hosts:
            options += ["--host", ",".join(map(str, hosts))]
            for name in exported:
                options += ["-x", name]
        return options

    def _mpich(self, hosts: Sequence[Host], exported: Mapping[str, str]) -> list[str]:
        options = []
        if hosts:
            options += ["-hosts", ",".join(map(str, hosts))]
            # The whole environment goes to all ranks anyway; a command line can be read by everybody.
            for name, value in exported.items():
                options += [] if name in SECRETS else ["-genv", name, value]
        return options


def find_mpirun() -> Mpirun:
    """The mpirun beside this Python, else the first on PATH. Raises ConfigError if there is none that is known."""
    beside = Path(sys.executable).parent
    found = shutil.which("mpirun", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise ConfigError(
            f"no mpirun beside {sys.executable}, nor on PATH: pip install 'hybridps[mpi]', "
            "or load the MPI module of your cluster"
        )
    version = version_of(found)
    return Mpirun(found, flavour_of(version, found), version)


def version_of(path: str) -> str:
    """What `mpirun --version` says. Raises ConfigError if it fails."""
    try:
        done = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_VERSION_SECONDS,
            env=os.environ | root_environment(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{path} --version failed: {error}") from None
    return done.stdout + done.stderr


def flavour_of(version: str, path: str) -> str:
    """Which MPI library, from what `mpirun --version` says. Raises ConfigError for one that is not known."""
    for mark, flavour in _MARKS.items():
        if mark in version:
            return flavour
    first = (version.strip().splitlines() or ["nothing"])[0]
    raise ConfigError(f"{path} is neither Open MPI's nor MPICH's: it says {first!r}; put one of them first on PATH")


def rank_environment(environ: Mapping[str, str], cores: int, workers: int, processes: int) -> dict[str, str]:
    """Variables that let `workers` ranks, and the other `processes` of the job, share the cores of a host.

    What the user has set is left alone.
    """
    wanted = {"OMP_NUM_THREADS": str(max(1, cores // max(1, workers)))}
    if processes > cores:
        # a waiting rank spins on its core, which others need
        wanted["OMPI_MCA_mpi_yield_when_idle"] = "1"
    return {name: value for name, value in wanted.items() if name not in environ}


def root_environment() -> dict[str, str]:
    """What Open MPI wants to see before it runs as root."""
    if os.geteuid() != 0:
        return {}
    names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    return dict.fromkeys(names, "1")


def session_environment(environ: Mapping[str, str], folder: str) -> dict[str, str]:
    """Tells Open MPI 5's mpirun to keep its session files in `folder`, unless the user has told it where.

    Else it keeps them under its process id in the system's folder, where a killed mpirun leaves them behind; a later
    one that gets the same process id then ends with "listener thread failed to start".
    """
    if any(name.startswith("PRTE_MCA_prte") and "tmpdir_base" in name for name in environ):
        return {}
    return {"PRTE_MCA_prte_local_tmpdir_base": folder}


def without_rank_marks(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables without those that tell a process that it is itself a rank, as children shall not take after us."""
    marks = ("OMPI_COMM_WORLD_", "OMPI_UNIVERSE_", "PMI_", "PMIX_", "PRTE_", "MV2_COMM_WORLD_")
    kept = ("PRTE_MCA_", "PRTE_ALLOW_", "PMIX_MCA_")
    return {name: value for name, value in environ.items() if not name.startswith(marks) or name.startswith(kept)}
