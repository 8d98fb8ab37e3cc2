"""The servers of the contenders, as processes: those of hybridps, and the scheduler and servers of MXNet's KVStore."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from signal import SIGTERM

from benchmarks.ending import end_within
from benchmarks.exchanges import Way
from hybridps.addresses import Scheduler
from hybridps.cli.serve.mxnet import reserved_port
from hybridps.config import Settings
from hybridps.processes import ServerProcess, die_with_parent

END_SECONDS = 10
HOST = "127.0.0.1"

_NOT_FUSED = """
from hybridps.ps.rules import rule
rule.COMPILED = ()
from hybridps.cli import main
main()
"""


@contextmanager
def serving(
    name: str, transport: str, count: int, folder: str, settings: Settings, fused: bool = True, restarts: int = 0
) -> Iterator[Way]:
    """Start `count` servers of hybridps. `transport`: shm, ipc or tcp.

    Not `fused`: NumPy computes the rules. With `restarts` the tables outlive the servers.
    """
    with ExitStack() as stack:
        processes = []
        for number in range(count):
            bind = f"ipc://{folder}/{number}" if transport == "ipc" else "tcp://127.0.0.1:*"
            program = ["-m", "hybridps"] if fused else ["-c", _NOT_FUSED]
            command = [sys.executable, *program, "serve", "--bind", bind, "--restarts", str(restarts)]
            processes.append(stack.enter_context(ServerProcess(settings, command=command)))
        yield Way(
            name,
            tuple(one.pid for one in processes),
            tuple(one.address for one in processes),
            shared=transport == "shm",
            chunk_bytes=settings.usual_chunk_bytes,
        )


@contextmanager
def mxnet_serving(
    name: str, case: str, count: int, workers: int, host: str = HOST, inside: Sequence[str] = ()
) -> Iterator[Way]:
    """Start a scheduler and `count` servers of ps-lite, for one store of `workers` workers.

    `inside`: the words that make a command run on `host`, if that is another node.
    """
    with ExitStack() as stack:
        scheduler = Scheduler(host, stack.enter_context(reserved_port(HOST)), workers, count)
        processes = [_start(role, scheduler, stack, inside) for role in ("scheduler", *["server"] * count)]
        # MXNet's servers have their defaults. A worker gets its share of the cores, as `hybridps run` gives it.
        threads = str(max(1, (os.cpu_count() or 1) // workers))
        told = scheduler.environment("worker", host) | {"OMP_NUM_THREADS": threads}
        yield Way(name, tuple(process.pid for process in processes), environment=told, case=case)


def _start(role: str, scheduler: Scheduler, stack: ExitStack, inside: Sequence[str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [*inside, sys.executable, "-c", "import mxnet"],
        env=os.environ | scheduler.environment(role, scheduler.host),
        stdin=subprocess.DEVNULL,
        preexec_fn=partial(die_with_parent, SIGTERM, os.getpid()),
    )
    stack.push(partial(_end, process))
    return process


def _end(process: subprocess.Popen[bytes], failure: type[BaseException] | None, *about: object) -> None:
    """Wait until the process ends by itself, as it does after its workers. After a failure, or a timeout, end it."""
    end_within(process, 0 if failure else END_SECONDS)
