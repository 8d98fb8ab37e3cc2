"""The contenders of benchmarks.step: how their workers and servers are started, and how their steps are timed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import BinaryIO

import msgspec

from benchmarks.clusters import HOST, mxnet_serving
from benchmarks.ending import end_within
from benchmarks.hierarchy import server as serving_at
from benchmarks.step_task import Timed, Told
from benchmarks.world import TOP
from hybridps.cli.run.mpirun import rank_environment
from hybridps.config import Settings
from hybridps.links import Links
from hybridps.processes import die_with_parent, without_rank_marks

OURS = "dist_hybridps_sync"
START_SECONDS = 600.0
"""The longest time that the workers of a contender may take until the untimed steps are done."""
END_SECONDS = 20.0
POLL_SECONDS = 0.2

Processes = list[subprocess.Popen[bytes]]


@dataclass(frozen=True)
class Cluster:
    """Workers on this host; or, with links, each worker on a node of its own, and the servers on one more."""

    workers: int
    folder: str
    links: Links | None = None

    def inside(self, node: int) -> list[str]:
        """Return the words that make a command run on this node."""
        return self.links.inside(self.links.addresses[node]) if self.links else []


@dataclass(frozen=True)
class Contender:
    """A name, the KVStore type of its workers (empty: none), and the function that starts their processes.

    `start` gets the command of a worker, and the stack that ends what it starts.
    """

    name: str
    kvstore: str
    start: Callable[[Cluster, Sequence[str], ExitStack], Processes]
    meets: bool = False
    """Whether all workers wait for each other after each timed step."""

    @property
    def updates(self) -> tuple[str, ...]:
        """Who can update: `server`, the store; `worker`, the Trainer."""
        return ("server", "worker") if self.kvstore else ("worker",)


@dataclass(frozen=True)
class Running:
    """The workers of a contender, which have done their untimed steps and wait."""

    contender: Contender
    steps: int
    """The steps that are timed together."""
    workers: Sequence[socket.socket]
    lines: Sequence[BinaryIO]

    def time_steps(self) -> list[Timed]:
        """Time steps, and return the workers' answers. Raises RuntimeError."""
        _release(self.workers)
        for _ in range(self.steps if self.contender.meets else 0):
            for line in self.lines:
                line.read(1)  # nothing if the worker has ended, which is noticed below
            _release(self.workers)
        timed = [_hear(each.readline(), self.contender) for each in self.lines]
        _check_same([each.last_norm for each in timed], self.contender)
        return timed


def start(
    contender: Contender, told: Told, update_on_kvstore: bool, stack: ExitStack, links: Links | None = None
) -> Running:
    """Start the contender, and return when its workers have done the untimed steps. Raises RuntimeError.

    The processes end with the stack.
    """
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hybridps-"))
    given = {"kvstore": contender.kvstore, "update_on_kvstore": update_on_kvstore, "meeting": f"{folder}/meeting"}
    is_traced = bool(links) and contender.kvstore == OURS
    told = msgspec.structs.replace(told, **given, trace=is_traced, meets=contender.meets)
    meeting = stack.enter_context(socket.socket(socket.AF_UNIX))
    meeting.bind(told.meeting)
    meeting.listen(told.workers)
    command = [sys.executable, "-m", "benchmarks.step_worker", msgspec.json.encode(told).decode()]
    processes = contender.start(Cluster(told.workers, folder, links), command, stack)
    workers = [stack.enter_context(_accepted(meeting, contender, processes)) for _ in range(told.workers)]
    lines = [stack.enter_context(worker.makefile("rb")) for worker in workers]
    for worker in workers:
        stack.callback(_hang_up, worker)
    return Running(contender, told.steps, workers, lines)


def _accepted(meeting: socket.socket, contender: Contender, processes: Processes) -> socket.socket:
    """Return the connection of the next worker that is ready. Raises RuntimeError if a process ends or on a timeout."""
    meeting.settimeout(POLL_SECONDS)
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        for process in processes:
            if process.poll() is not None:
                raise RuntimeError(f"the workers of {contender.name} ended with status {process.returncode}")
        try:
            worker, _ = meeting.accept()
        except TimeoutError:
            continue
        worker.settimeout(START_SECONDS)
        return worker
    raise RuntimeError(f"the workers of {contender.name} were not ready within {START_SECONDS:g} s")


def _release(workers: Sequence[socket.socket]) -> None:
    """Let all workers go on."""
    for worker in workers:
        with suppress(ConnectionError):  # it has ended
            worker.sendall(b"!")


def _hang_up(worker: socket.socket) -> None:
    """Let a worker end."""
    with suppress(OSError):  # it has ended
        worker.shutdown(socket.SHUT_RDWR)


def _hear(line: bytes, contender: Contender) -> Timed:
    """Return the answer of a worker. Raises RuntimeError if the worker has ended."""
    if not line:
        raise RuntimeError(f"a worker of {contender.name} ended: its reason is on standard error")
    return msgspec.json.decode(line, type=Timed)


def _check_same(norms: Sequence[float], contender: Contender) -> None:
    if max(norms) - min(norms) > 1e-4 * max(norms):
        raise RuntimeError(f"the workers of {contender.name} ended with different weights, of the norms {norms}")


def _without_store(cluster: Cluster, command: Sequence[str], stack: ExitStack) -> Processes:
    return [_start([*cluster.inside(node), *command], {}, cluster, stack) for node in range(cluster.workers)]


def _of_mxnet(cluster: Cluster, command: Sequence[str], stack: ExitStack) -> Processes:
    """Start workers of MXNet's own store, with a scheduler and a server."""
    links, workers = cluster.links, cluster.workers
    host = links.addresses[-1] if links else HOST
    way = stack.enter_context(mxnet_serving("mxnet", "", 1, workers, host, cluster.inside(-1)))
    processes = []
    for node in range(workers):
        own = {"DMLC_NODE_HOST": links.addresses[node]} if links else {}
        processes.append(_start([*cluster.inside(node), *command], way.environment | own, cluster, stack))
    return processes


def _in_a_group(cluster: Cluster, command: Sequence[str], stack: ExitStack, more: Sequence[str] = ()) -> Processes:
    return [_launch(more, cluster, command, stack)]


def _with_a_server(cluster: Cluster, command: Sequence[str], stack: ExitStack, more: Sequence[str] = ()) -> Processes:
    options = ["--groups", str(cluster.workers), *more]
    if not cluster.links:
        return [_launch([*options, "--servers", "1"], cluster, command, stack)]
    address = cluster.links.addresses[-1]
    server = stack.enter_context(serving_at(cluster.links, address, Settings(), cluster.workers))
    return [_launch([*options, "--set", f"servers={server.address}"], cluster, command, stack)]


def _traced(start: Callable[..., Processes]) -> Callable[[Cluster, Sequence[str], ExitStack], Processes]:
    """Return a way to start the same with a run folder and a trace."""

    def start_traced(cluster: Cluster, command: Sequence[str], stack: ExitStack) -> Processes:
        return start(cluster, command, stack, ["--trace", "--run", str(Path(cluster.folder) / "run")])

    return start_traced


def _launch(
    options: Sequence[str], cluster: Cluster, command: Sequence[str], stack: ExitStack
) -> subprocess.Popen[bytes]:
    """Start the launcher as a user does. With links it runs on a host beside the nodes."""
    words = [sys.executable, "-m", "hybridps", "run", "-n", str(cluster.workers), "--quiet", *options]
    told: dict[str, str] = {}
    if cluster.links:
        hosts = ",".join(f"{address}:1" for address in cluster.links.addresses[: cluster.workers])
        words = [*cluster.links.launcher, *words, "--hosts", hosts]
        told = cluster.links.variables(Path(cluster.folder))
    return _start([*words, "--", *command], told, cluster, stack, SIGTERM)


def _start(
    command: Sequence[str], told: Mapping[str, str], cluster: Cluster, stack: ExitStack, death_signal: int = SIGKILL
) -> subprocess.Popen[bytes]:
    """Start a process that ends with the stack, and with this process in any case. Workers share the cores equally."""
    kept = without_rank_marks(os.environ)
    threads = rank_environment(kept, os.cpu_count() or 1, cluster.workers, cluster.workers)
    process = subprocess.Popen(
        command,
        env=kept | threads | dict(told) | {"PYTHONPATH": str(TOP)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd=TOP,
        preexec_fn=partial(die_with_parent, death_signal, os.getpid()),
    )
    stack.push(partial(_end, process))
    return process


def _end(process: subprocess.Popen[bytes], failure: type[BaseException] | None, *about: object) -> None:
    """Wait until a worker ends by itself. After a failure, or a timeout, end it."""
    if failure:
        process.terminate()
    end_within(process, END_SECONDS)


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("compute", "", _without_store),
        Contender("barrier", "", _without_store, meets=True),
        Contender("dist_sync", "dist_sync", _of_mxnet),
        Contender("dist_device_sync", "dist_device_sync", _of_mxnet),
        Contender("hybridps_group", OURS, _in_a_group),
        Contender("hybridps_servers", OURS, _with_a_server),
        Contender("hybridps_group_traced", OURS, _traced(_in_a_group)),
        Contender("hybridps_servers_traced", OURS, _traced(_with_a_server)),
    )
}

USUAL = tuple(name for name in CONTENDERS if not name.endswith("_traced"))
"""The contenders that are measured unless others are asked for."""
