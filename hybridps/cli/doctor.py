"""`hybridps doctor`: checks what works on this machine, and says how to fix what does not.

Every check tries the real thing, in a child process with a deadline. MPI and MXNet are not imported here.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hybridps.cli.run.mpirun import find_mpirun, root_environment, without_rank_marks
from hybridps.errors import HybridPSError
from hybridps.memory import SharedMemory

OK = "ok"
NOTE = "note"
PROBLEM = "problem"

FITTING_PYTHONS = ((3, 10), (3, 11))
"""Versions that have wheels of a NumPy below 1.24, which MXNet 1.9.1 needs."""

_IMPORT_SECONDS = 60.0
_MPI_SECONDS = 60.0
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
from hybridps.memory import SharedMemory
sys.exit(0 if SharedMemory.attach(sys.argv[1], 4096).bytes[4095] == 7 else 3)
"""


@dataclass(frozen=True)
class Finding:
    """The result of a check. `advice` says how to fix a problem; it is empty if there is none."""

    check: str
    state: str
    found: str
    advice: str = ""


def doctor(as_json: bool = False) -> int:
    """Run all checks and print them. Returns the exit status: 1 if there is a problem."""
    findings = list(examine())
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        _print_table(findings)
    return 1 if any(finding.state == PROBLEM for finding in findings) else 0


def examine() -> Iterator[Finding]:
    """All findings, ordered so that each part comes after the parts it depends on."""
    yield check_python(sys.version_info[:2])
    yield _check_import("NumPy", "import numpy; print(numpy.__version__)", "pip install 'numpy>=1.23,<3'", PROBLEM)
    yield check_mxnet()
    yield _check_import(
        "ZeroMQ", "import zmq; print(zmq.zmq_version(), 'with pyzmq', zmq.__version__)", "pip install pyzmq", PROBLEM
    )
    yield from check_mpi()
    yield check_root(os.geteuid())
    yield check_cores(len(os.sched_getaffinity(0)), os.cpu_count() or 1)
    yield check_shared_memory()
    yield check_huge_pages(_HUGE_PAGES.read_text() if _HUGE_PAGES.exists() else "")
    yield check_shm_size(shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else 0)
    yield check_port()


def check_python(version: Sequence[int]) -> Finding:
    """Check whether MXNet 1.9.1 can run on this Python."""
    found = ".".join(map(str, version))
    if tuple(version) in FITTING_PYTHONS:
        return Finding("Python", OK, found)
    return Finding(
        "Python",
        PROBLEM,
        found,
        "MXNet 1.9.1 needs NumPy < 1.24, which has wheels for Python 3.10 and 3.11: use one of those",
    )


def check_mxnet() -> Finding:
    """Check whether MXNet can be imported. The rest of hybridps works without it."""
    code = "import mxnet, numpy; print(mxnet.__version__, 'with NumPy', numpy.__version__)"
    return _check_import("MXNet", code, "pip install 'hybridps[mxnet]'; without it there are no KVStore types", NOTE)


def check_mpi() -> Iterator[Finding]:
    """Check whether there is an mpirun, and whether two ranks can communicate."""
    try:
        mpirun = find_mpirun()
    except HybridPSError as error:
        yield Finding("mpirun", PROBLEM, "not usable", str(error))
        return
    yield Finding("mpirun", OK, f"{mpirun.path} ({mpirun.flavour})")
    command = mpirun.command(2, (), {}, (sys.executable, "-c", _HELLO))
    output = _run(command, _MPI_SECONDS, root_environment() | {"OMPI_MCA_mpi_yield_when_idle": "1"})
    yield judge_hello(output.status, output.out, output.err)


@dataclass(frozen=True)
class ProcessOutput:
    """The output of a process. `status` is None if it did not end in time."""

    status: int | None
    out: str
    err: str

    @property
    def last(self) -> str:
        """One line that describes its error: the last Python error, or else the last line that contains a word."""
        lines = [line.strip() for line in (self.out + self.err).splitlines() if any(map(str.isalpha, line))]
        errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
        return (errors or lines or ["it printed nothing"])[-1]


def judge_hello(status: int | None, out: str, err: str) -> Finding:
    """Judge what two ranks that mpirun started reported about themselves."""
    name = "two MPI ranks"
    ranks = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    if status is None:
        return Finding(
            name, PROBLEM, f"did not end within {_MPI_SECONDS:g} seconds", "find out what mpirun waits for: " + err
        )
    if status != 0 or len(ranks) != 2:
        advice = "pip install 'hybridps[mpi]', or build mpi4py against the MPI library of this mpirun"
        return Finding(name, PROBLEM, _short(ProcessOutput(status, out, err)), advice)
    return _judge_ranks(name, ranks)


def _judge_ranks(name: str, ranks: Sequence[Mapping[str, Any]]) -> Finding:
    first = ranks[0]
    found = f"{first['library']}, THREAD_{first['level']}"
    if any(rank["size"] != 2 or rank["sum"] != 3 for rank in ranks):
        advice = "mpi4py uses a different MPI library from this mpirun: install only one, or reinstall mpi4py"
        return Finding(name, PROBLEM, f"{found}: each rank is in a world of its own", advice)
    if first["sharing"] != 2:
        return Finding(name, NOTE, f"{found}: the ranks do not share memory", "each rank counts as a node of its own")
    if first["level"] != "MULTIPLE":
        return Finding(name, PROBLEM, found, "hybridps needs MPI_THREAD_MULTIPLE: use an MPI library that provides it")
    return Finding(name, OK, found)


def check_root(user: int) -> Finding:
    if user != 0:
        return Finding("user", OK, f"not root ({user})")
    advice = "`hybridps run` handles this; a plain mpirun of Open MPI needs --allow-run-as-root"
    return Finding("user", NOTE, "root", advice)


def check_cores(usable: int, all_cores: int) -> Finding:
    """Check how many ranks have a core each. More ranks also work: they yield their core while they wait."""
    found = f"{usable} usable of {all_cores}"
    if usable >= 4:
        return Finding("cores", OK, found)
    advice = f"more than {usable} ranks share cores: `hybridps run` lets them yield; mpirun needs --oversubscribe"
    return Finding("cores", NOTE, found, advice)


def check_shared_memory() -> Finding:
    """Check whether another process can attach to shared memory of this one."""
    name = "shared memory"
    try:
        memory = SharedMemory.create(4096)
    except OSError as error:
        return Finding(
            name, PROBLEM, f"memfd_create: {error.strerror}", "use Linux 3.17 or later, and allow memfd_create"
        )
    try:
        memory.bytes[4095] = 7
        output = _run((sys.executable, "-c", _ATTACH, memory.name), _IMPORT_SECONDS)
    finally:
        memory.close()
    if output.status == 0:
        return Finding(name, OK, "memfd, attached by another process")
    advice = "processes of one user must be able to open /proc/PID/fd: check ptrace_scope and the container's profile"
    return Finding(name, NOTE, f"not attached: {_short(output)}", advice)


def check_huge_pages(enabled: str) -> Finding:
    """Check whether buffers get huge pages. `enabled` is the kernel's text, such as `always [madvise] never`."""
    chosen = enabled.partition("[")[2].partition("]")[0]
    if chosen in ("always", "madvise"):
        return Finding("huge pages", OK, chosen)
    found = chosen or "unknown"
    return Finding("huge pages", NOTE, found, f"large buffers are slower; as root: echo madvise > {_HUGE_PAGES}")


def check_shm_size(nbytes: int) -> Finding:
    """Check the size of /dev/shm, where MPI libraries keep their buffers; in containers it is often 64 MiB."""
    found = f"{nbytes / (1 << 20):.0f} MiB"
    if nbytes >= _SMALL_SHM_BYTES:
        return Finding("/dev/shm", OK, found)
    advice = "the shared buffers of MPI may not fit: start the container with --shm-size=1g"
    return Finding("/dev/shm", NOTE, found, advice)


def check_port() -> Finding:
    """Check whether a server can listen on the loopback interface, and whether clients can connect to it."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError as error:
        return Finding("loopback", PROBLEM, str(error), "servers listen on 127.0.0.1: allow that")
    return Finding("loopback", OK, f"connected to port {port}")


def _check_import(name: str, code: str, advice: str, if_missing: str) -> Finding:
    output = _run((sys.executable, "-c", code), _IMPORT_SECONDS)
    if output.status == 0:
        return Finding(name, OK, output.out.strip())
    missing = f"No module named '{name.lower()}'" in output.err or "No module named 'zmq'" in output.err
    return Finding(name, if_missing if missing else PROBLEM, "not installed" if missing else _short(output), advice)


def _run(command: Sequence[str], seconds: float, extra: Mapping[str, str] | None = None) -> ProcessOutput:
    # with DMLC_ROLE=server in the environment, `import mxnet` would never return
    environ = {name: value for name, value in without_rank_marks(os.environ).items() if not name.startswith("DMLC_")}
    try:
        done = subprocess.run(
            command,
            env=environ | dict(extra or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return ProcessOutput(None, "", f"did not end within {seconds:g} seconds")
    except OSError as error:
        return ProcessOutput(127, "", str(error))
    return ProcessOutput(done.returncode, done.stdout, done.stderr)


def _short(output: ProcessOutput) -> str:
    return output.last[:200]


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
