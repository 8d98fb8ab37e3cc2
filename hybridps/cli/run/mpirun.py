"""The MPI library's `mpirun`: where it is, which library it belongs to, and its command lines."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hybridps.cli.run.plan.hosts import Host
from hybridps.config import SECRETS
from hybridps.errors import ConfigError
from hybridps.processes import MPI_MEMORY, MPI_MEMORY_HERE

OPEN_MPI = "Open MPI"
MPICH = "MPICH"
INTEL_MPI = "Intel MPI"
"""Its mpirun is made from MPICH's."""
_MARKS = {"Open MPI": OPEN_MPI, "OpenRTE": OPEN_MPI, "PRRTE": OPEN_MPI, "Intel(R) MPI": INTEL_MPI, "HYDRA": MPICH}
_OLD_OPEN_MPI = re.compile(r"\(Open MPI\) [1-4]\.")
"""The versions that forward incomplete lines, and have no option for it."""
_VERSION_SECONDS = 20
_NUMBER = re.compile(r"(?:\(Open MPI\)|Version:|Version) +(\S+)")
_BINDS = ("--bind-to", "-bind-to", "--bind-to-core", "--bind-to-socket")
_INTEL_SCRIPTED = {"LOADL_HOSTFILE", "PE_HOSTFILE", "NB_PARALLEL_JOB_HOSTS", "I_MPI_YARN"}
"""Variables of batch systems that only the script of Intel MPI knows."""
_INTEL_BATCH = {
    "PBS_ENVIRONMENT": ("I_MPI_HYDRA_RMK", "pbs"),
    "LSB_JOBID": ("I_MPI_HYDRA_RMK", "lsf"),
    "SLURM_JOBID": ("I_MPI_HYDRA_BOOTSTRAP", "slurm"),
    "PBS_NODEFILE": ("I_MPI_HYDRA_BOOTSTRAP", "pbs"),
}
"""Variables of batch systems, and the setting with which the script of Intel MPI makes its program use each."""
WITHOUT_OFI = {"OMPI_MCA_btl": "^ofi"}
"""Leaves out Open MPI's one-sided transport over OFI, which sleeps for a second in `MPI_Init` where it finds no fabric.
Messages over fabrics of OFI use another component (`mtl/ofi`)."""


@dataclass(frozen=True)
class Mpirun:
    """An `mpirun`, and the MPI library that it belongs to."""

    path: str
    flavour: str
    version: str = ""
    """The output of `mpirun --version`."""

    def __str__(self) -> str:
        number = _NUMBER.search(self.version)
        return f"{self.flavour} {number[1]}" if number else self.flavour

    @property
    def tag(self) -> re.Pattern[bytes]:
        """A pattern for the tag before what a rank writes, if `command` asks for tags. Its group 1 is the rank."""
        space = b"" if self._is_old else b" "
        return re.compile(rb"\[\d+,(\d+)\]<std(?:out|err)>:" + space)

    @property
    def _is_old(self) -> bool:
        return _OLD_OPEN_MPI.search(self.version) is not None

    @property
    def names_ranks_that_failed(self) -> bool:
        """Whether its messages and exit status tell which rank ended first, and how; Open MPI's do."""
        return self.flavour == OPEN_MPI

    @property
    def death_signal(self) -> int:
        """The signal that ends mpirun together with all of its ranks, even those that ignore SIGTERM."""
        # On SIGTERM, Open MPI's mpirun kills its ranks, but MPICH's waits for them. When MPICH's is killed, its proxies
        # kill the ranks; when Open MPI's is killed, its ranks keep running.
        return signal.SIGTERM if self.flavour == OPEN_MPI else signal.SIGKILL

    def of_batch_system(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that make Intel MPI use the batch system of this environment, unless the user chose."""
        if self.flavour != INTEL_MPI or "I_MPI_HYDRA_BOOTSTRAP_EXEC" in environ:
            return {}
        wanted = reversed([setting for name, setting in _INTEL_BATCH.items() if name in environ])
        return {name: text for name, text in wanted if name not in environ}

    def command(
        self,
        workers: int,
        hosts: Sequence[Host],
        exported: Mapping[str, str],
        command: Sequence[str],
        *,
        at_once: bool = False,
        over_ssh: bool = False,
        secret: Collection[str] = SECRETS,
        tagged: bool = False,
        more: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """Return the command line that starts the ranks on `hosts` (none: this host). Remote ranks get `exported`.

        `at_once`: forward incomplete lines, so that progress bars are visible; otherwise mpirun forwards whole lines if
        it can. `over_ssh`: reach the hosts over ssh, even if there is another way. `secret`: names in `exported` whose
        values must not be on a command line. `tagged`: forward whole lines, each after the tag of its rank (`tag`).
        `more`: the user's own options for mpirun.
        """
        is_open_mpi, options, of_intel = self.flavour == OPEN_MPI, [], self.flavour == INTEL_MPI
        if is_open_mpi:
            # Otherwise, several mpiruns on one host would each bind their first rank to core 0.
            options += ["--oversubscribe", *([] if set(_BINDS) & set(more) else ["--bind-to", "none"])]
            if at_once and not tagged and not self._is_old:
                options += ["--stream-buffering", "0"]
        if tagged:
            options += self._tags()
        if hosts and not of_intel:
            options += ["--host" if is_open_mpi else "-hosts", ",".join(map(str, hosts))]
        if over_ssh:
            options += self._over_ssh()
        for name, value in exported.items() if hosts else ():
            if is_open_mpi:
                options += ["-x", name]
            elif name not in secret:
                # All ranks get the whole environment anyway, and anyone on the host can read a command line.
                options += ["-genv", name, value]
        if hosts and of_intel:
            return (self.path, *options, *_sets(workers, hosts, more, command))
        return (self.path, *options, *more, "-n", str(workers), *command)

    def _tags(self) -> list[str]:
        if self.flavour != OPEN_MPI:
            return ["-prepend-pattern", "[1,%r]<stdout>: "]
        return ["--tag-output"] if self._is_old else ["--output", "tag"]

    def _over_ssh(self) -> list[str]:
        if self.flavour != OPEN_MPI:
            return ["-launcher", "ssh"]
        return ["--mca", "plm", "rsh"] if self._is_old else ["--prtemca", "plm", "ssh"]


def _sets(workers: int, hosts: Sequence[Host], more: Sequence[str], command: Sequence[str]) -> list[str]:
    """Return Intel MPI's words for the ranks of each host, with the user's: its list of hosts has no numbers."""
    words: list[str] = []
    for host in hosts:
        count = min(host.slots, workers)
        workers -= count
        if count:
            words += [*([":"] if words else []), *more, "-host", host.name, "-n", str(count), *command]
    return words


def find_mpirun() -> Mpirun:
    """Return the mpirun beside this Python, or else the first on PATH. Raises ConfigError if there is no known one."""
    beside = Path(sys.executable).parent
    found = shutil.which("mpirun", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise ConfigError(
            f"there is no mpirun beside {sys.executable} or on PATH: pip install 'hybridps[mpi]', "
            "or load the MPI module of your cluster"
        )
    try:
        done = subprocess.run(
            [found, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_VERSION_SECONDS,
            env=os.environ | root_environment(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{found} --version failed: {error}") from None
    version = done.stdout + done.stderr
    flavour = flavour_of(version, found)
    return Mpirun(_program_of(found) if flavour == INTEL_MPI else found, flavour, version)


def _program_of(script: str) -> str:
    """Return the program that Intel MPI's mpirun, a shell script, starts; the script where it does more than that.

    The script passes no signals on, and looks for the program only on PATH.
    """
    program = Path(script).with_name("mpiexec.hydra")
    sources = [] if "I_MPI_ROOT" in os.environ else ["mpivars.sh", "../env/vars.sh", "../setvars.sh"]
    does_more = not _INTEL_SCRIPTED.isdisjoint(os.environ) or any((program.parent / each).exists() for each in sources)
    return script if does_more or not os.access(program, os.X_OK) else str(program)


def flavour_of(version: str, path: str) -> str:
    """Return the MPI library that the output of `mpirun --version` names. Raises ConfigError for an unknown one."""
    for mark, flavour in _MARKS.items():
        if mark in version:
            return flavour
    first = (version.strip().splitlines() or ["nothing"])[0]
    raise ConfigError(
        f"{path} is neither Open MPI's, MPICH's nor Intel MPI's: it prints {first!r}; put one of these first on PATH"
    )


def rank_environment(environ: Mapping[str, str], cores: int, workers: int, processes: int) -> dict[str, str]:
    """Return variables that let `workers` ranks start soon and share the cores of a host with the rest of the job.

    `processes` counts all processes of the job, ranks included. Variables that the user has set are left out.
    """
    wanted = {"OMP_NUM_THREADS": str(max(1, cores // max(1, workers))), **WITHOUT_OFI}
    if not any(name.startswith("I_MPI_PIN") for name in environ):
        # Several mpiruns of Intel MPI on one host would each bind their first rank to the first cores.
        wanted["I_MPI_PIN"] = "0"
    if processes > cores:
        # Otherwise, a waiting rank would keep a core busy that other ranks need.
        wanted["OMPI_MCA_mpi_yield_when_idle"] = "1"
    return {name: value for name, value in wanted.items() if name not in environ}


def root_environment() -> dict[str, str]:
    """Return variables that allow Open MPI to run as root; none for other users."""
    if os.geteuid() != 0:
        return {}
    names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    return dict.fromkeys(names, "1")


def session_environment(environ: Mapping[str, str], folder: str, memory: str | None, all_here: bool) -> dict[str, str]:
    """Return variables that move Open MPI 5's files to folders that the launcher removes, unless the user chose others.

    `folder` is for mpirun's session files. By default they are in the system's temporary folder, and named after its
    process id. A killed mpirun leaves them there, and a later one with the same process id fails with "listener thread
    failed to start". `memory` is for the ranks' shared memory, which a killed rank leaves behind. Unless the ranks are
    `all_here`, each looks for this folder itself, because other hosts do not have it.
    """
    wanted = {}
    if not any(name.startswith("PRTE_MCA_prte") and "tmpdir_base" in name for name in environ):
        wanted["PRTE_MCA_prte_local_tmpdir_base"] = folder
    if memory is not None and not any(name.startswith(MPI_MEMORY) for name in environ):
        wanted[MPI_MEMORY[0] if all_here else MPI_MEMORY_HERE] = memory
    return wanted
