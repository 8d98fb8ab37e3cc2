"""`hybridps doctor`: checks what works on this machine, and prints for each problem what to type to fix it.

Each check tries the real thing, in a child process with a deadline. This process imports neither MPI nor MXNet.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hybridps.cli.run.mpirun import find_mpirun, root_environment
from hybridps.errors import HybridPSError
from hybridps.processes import without_rank_marks
from hybridps.shared_memory import create_shared, shared_name

OK = "ok"
NOTE = "note"
PROBLEM = "problem"

_REBUILD = "pip install --force-reinstall --no-cache-dir --no-binary mpi4py mpi4py"

Done = subprocess.CompletedProcess[str]
LATE = 124
"""The exit status of a command that did not end in time."""

_SECONDS = 60.0
"""The longest time that a check may take."""

_SMALL_SHM_BYTES = 256 << 20
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_STYLES = {OK: "green", NOTE: "yellow", PROBLEM: "bold red"}

_HELLO = """
import json, sys
from mpi4py import MPI
levels = {MPI.THREAD_SINGLE: "SINGLE", MPI.THREAD_FUNNELED: "FUNNELED",
          MPI.THREAD_SERIALIZED: "SERIALIZED", MPI.THREAD_MULTIPLE: "MULTIPLE"}
world = MPI.COMM_WORLD
sys.stdout.write(json.dumps({
    "size": world.size,
    "sum": world.allreduce(world.rank + 1),
    "sharing": world.Split_type(MPI.COMM_TYPE_SHARED).size,
    "level": levels[MPI.Query_thread()],
    "library": MPI.Get_library_version().split(",")[0].split(chr(10))[0].strip(chr(0) + " "),
}) + chr(10))
"""

_ATTACH = """
import sys
from hybridps.shared_memory import attach_shared
sys.exit(0 if attach_shared(sys.argv[1], 4096)[4095] == 7 else 3)
"""


class Finding(NamedTuple):
    """The result of a check. `advice` says how to fix a problem; it is empty if there is none."""

    check: str
    state: str
    found: str
    advice: str = ""


def _judged(check: str, is_good: bool, found: str, advice: str, otherwise: str = NOTE) -> Finding:
    return Finding(check, OK, found) if is_good else Finding(check, otherwise, found, advice)


def doctor(as_json: bool = False) -> int:
    """Run all checks and print the findings. Return the exit status: 1 if there is a problem."""
    findings = list(examine())
    if as_json:
        print(json.dumps([finding._asdict() for finding in findings], indent=1))
    else:
        _print_table(findings)
    return 1 if any(finding.state == PROBLEM for finding in findings) else 0


def examine() -> Iterator[Finding]:
    """Yield all findings, ordered so that each part comes after the parts it depends on."""
    yield check_python(sys.version_info[:2])
    yield _check_import("NumPy", "numpy", "numpy.__version__", "`pip install 'numpy>=1.23,<3'`", PROBLEM)
    # the rest of hybridps works without it
    advice = "`pip install 'hybridps[mxnet]'`; without it, the KVStore types are not available"
    yield _check_import(
        "MXNet", "mxnet", "mxnet.__version__, 'with NumPy', __import__('numpy').__version__", advice, NOTE
    )
    versions = "zmq.zmq_version(), 'with pyzmq', zmq.__version__"
    yield _check_import("ZeroMQ", "zmq", versions, "`pip install pyzmq`", PROBLEM)
    yield from check_mpi()
    user, cores = os.geteuid(), len(os.sched_getaffinity(0))
    advice = "`hybridps run` handles this; a plain mpirun of Open MPI needs --allow-run-as-root"
    yield _judged("user", user != 0, f"not root ({user})" if user else "root", advice)
    # more ranks also work: they yield their core while they wait
    advice = f"more than {cores} ranks share cores: `hybridps run` lets them yield; mpirun needs --oversubscribe"
    yield _judged("cores", cores >= 4, f"{cores} usable of {os.cpu_count()}", advice)
    yield check_shared_memory()
    yield check_huge_pages(_HUGE_PAGES.read_text() if _HUGE_PAGES.exists() else "")
    # MPI libraries keep their buffers there; in containers it is often 64 MiB
    nbytes = shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else 0
    advice = "the shared buffers of MPI may not fit: start the container with --shm-size=1g"
    yield _judged("/dev/shm", nbytes >= _SMALL_SHM_BYTES, f"{nbytes / (1 << 20):.0f} MiB", advice)
    yield check_port()


def check_python(version: Sequence[int]) -> Finding:
    """Check whether MXNet 1.9.1 can run on this version of Python. The rest of hybridps also runs on later ones."""
    advice = (
        "MXNet cannot be used: MXNet 1.9.1 needs NumPy < 1.24, which has wheels for Python 3.10 and 3.11. To use it, "
        "`python3.11 -m venv .venv`, and `.venv/bin/pip install 'hybridps[mpi,mxnet]'`"
    )
    fits = tuple(version) in ((3, 10), (3, 11))
    return _judged("Python", fits, ".".join(map(str, version)), advice)


def check_mpi() -> Iterator[Finding]:
    """Check whether there is an mpirun, and whether two ranks can communicate."""
    try:
        mpirun = find_mpirun()
    except HybridPSError as error:
        yield Finding("mpirun", PROBLEM, "not usable", str(error))
        return
    yield Finding("mpirun", OK, f"{mpirun.path} ({mpirun.flavour})")
    command = mpirun.command(2, (), {}, (sys.executable, "-c", _HELLO))
    yield judge_hello(_run(command, root_environment() | {"OMPI_MCA_mpi_yield_when_idle": "1"}))


def judge_hello(done: Done) -> Finding:
    """Judge what two ranks that mpirun started reported about themselves."""
    name = "two MPI ranks"
    ranks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == LATE:
        advice = "`mpirun -n 2 hostname`: if that hangs too, mpirun cannot reach this host by its name; see /etc/hosts"
        return Finding(name, PROBLEM, done.stderr, advice)
    if done.returncode != 0 or len(ranks) != 2:
        advice = f"`pip install 'hybridps[mpi]'`, or, for the MPI library of this mpirun, `{_REBUILD}`"
        return Finding(name, PROBLEM, _last_error(done), advice)
    found = f"{ranks[0]['library']}, THREAD_{ranks[0]['level']}"
    if any(rank["size"] != 2 or rank["sum"] != 3 for rank in ranks):
        advice = f"mpi4py uses a different MPI library from this mpirun: `{_REBUILD}`"
        return Finding(name, PROBLEM, f"{found}: each rank is in a world of its own", advice)
    if ranks[0]["sharing"] != 2:
        return Finding(name, NOTE, f"{found}: the ranks do not share memory", "each rank counts as a node of its own")
    if ranks[0]["level"] != "MULTIPLE":
        advice = "hybridps needs MPI_THREAD_MULTIPLE; an MPI library that provides it: `pip install 'hybridps[mpi]'`"
        return Finding(name, PROBLEM, found, advice)
    return Finding(name, OK, found)


def check_shared_memory() -> Finding:
    """Check whether another process can attach to shared memory of this one."""
    name = "shared memory"
    try:
        memory = create_shared(4096)
    except OSError as error:
        advice = (
            "hybridps needs memfd_create (Linux 3.17 or later); in a container, `docker run --security-opt "
            "seccomp=unconfined`"
        )
        return Finding(name, PROBLEM, f"memfd_create: {error.strerror}", advice)
    memory[4095] = 7
    done = _run((sys.executable, "-c", _ATTACH, shared_name(memory)))
    found = "memfd, attached by another process" if done.returncode == 0 else f"not attached: {_last_error(done)}"
    advice = (
        "processes of one user must be able to open /proc/PID/fd; in a container, `docker run --cap-add SYS_PTRACE`"
    )
    return _judged(name, done.returncode == 0, found, advice)


def check_huge_pages(enabled: str) -> Finding:
    """Check whether buffers get huge pages. `enabled` is the kernel's text, such as `always [madvise] never`."""
    chosen = enabled.partition("[")[2].partition("]")[0] or "unknown"
    advice = f"large buffers are slower; as root: echo madvise > {_HUGE_PAGES}"
    return _judged("huge pages", chosen in ("always", "madvise"), chosen, advice)


def check_port() -> Finding:
    """Check whether a server can listen on the loopback interface, and whether clients can connect to it."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError as error:
        return Finding("loopback", PROBLEM, str(error), "servers listen on 127.0.0.1; as root: `ip link set lo up`")
    return Finding("loopback", OK, f"connected to port {port}")


def _check_import(name: str, module: str, versions: str, advice: str, if_missing: str) -> Finding:
    done = _run((sys.executable, "-c", f"import {module}; print({versions})"))
    if done.returncode == 0:
        return Finding(name, OK, done.stdout.strip())
    if f"No module named '{module}'" in done.stderr:
        return Finding(name, if_missing, "not installed", advice)
    return Finding(name, PROBLEM, _last_error(done), advice)


def _run(command: Sequence[str], extra: Mapping[str, str] | None = None) -> Done:
    # with DMLC_ROLE=server in the environment, `import mxnet` would never return
    environ = {name: value for name, value in without_rank_marks(os.environ).items() if not name.startswith("DMLC_")}
    environ |= extra or {}
    try:
        return subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Done(command, LATE, "", f"did not end within {_SECONDS:g} seconds")
    except OSError as error:
        return Done(command, 127, "", str(error))


def _last_error(done: Done) -> str:
    """Return one line that describes a failure: the last Python error, or else the last line that contains a letter."""
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if any(map(str.isalpha, line))]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return (errors or lines or ["it printed nothing"])[-1][:200]


def _print_table(findings: Sequence[Finding]) -> None:
    if not sys.stdout.isatty():
        for finding in findings:
            advice = f" -> {finding.advice}" if finding.advice else ""
            print(f"{finding.state:8}{finding.check}: {finding.found}{advice}")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "check", "result", "what to do")
    for finding in findings:
        state = Text(finding.state, style=_STYLES[finding.state])
        table.add_row(state, finding.check, Text(finding.found), Text(finding.advice))
    Console().print(table)
