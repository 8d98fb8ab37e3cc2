"""Contenders of the push and pull benchmark in one worker: fill gradients, exchange them, look at weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

from mpi4py import MPI

from benchmarks.cases import Case
from benchmarks.ending import end_within
from benchmarks.exchanges import MOMENTUM, RATE, Exchanges, Way
from hybridps.algorithms import Row, ServerSGD, reduce_all_
from hybridps.config import Settings
from hybridps.memory import Layout, private_memory
from hybridps.mpi_groups.mpi import MPIGroup
from hybridps.processes import without_rank_marks
from hybridps.ps.client import Client
from hybridps.ps.clocks import BulkSynchronous
from hybridps.ps.rules import Momentum, Sum
from hybridps.shared_memory import shared_memory
from hybridps.tensor_collectives import Levels, Tensor
from hybridps.tiers import ServersTier

DEADLINE_SECONDS = 120.0
END_SECONDS = 20.0
TOP = Path(__file__).parents[1]


class Pusher(Protocol):
    """One worker's part of a contender."""

    name: str
    exact: bool
    """Whether the weights after an exchange are determined."""

    def fill(self, value: float) -> None:
        """Set all elements of the gradients to `value`."""

    def exchange(self, times: int) -> None:
        """Push the gradients and receive the weights or the sums, `times` times."""

    def seen(self) -> tuple[float, float]:
        """Return the smallest and the largest element received."""

    def close(self) -> None: ...


class Ours:
    """hybridps: synchronous SGD at the servers, with all gradients at once, or in buckets from last to first."""

    exact = True

    def __init__(self, way: Way, case: Case, task: Exchanges, world: MPI.Comm) -> None:
        self.name = way.name
        self._group = MPIGroup(world.Split(world.rank * task.groups // task.workers), DEADLINE_SECONDS)
        self._levels = Levels(self._group, [0] * self._group.size, DEADLINE_SECONDS)
        layout = Layout.of("float32", {str(key): (size,) for key, size in enumerate(case.tensors)})
        self._tensor = self._memory(layout, way.shared)
        self._bucket = task.bucket_bytes // layout.itemsize or layout.length
        self._client = self._connect(way, case, task, world) if self._group.rank == 0 else None
        tier = ServersTier(self._group, self._client)
        row = Row(sends="gradients", holds="weights", rule=rule_of(task.rule), clock=BulkSynchronous())
        self._algorithm = ServerSGD(self._levels, tier, row, task.workers)
        self._algorithm.join_weights("all", layout, self._tensor)

    def _connect(self, way: Way, case: Case, task: Exchanges, world: MPI.Comm) -> Client:
        settings = Settings(chunk_bytes=way.chunk_bytes, deadline_seconds=DEADLINE_SECONDS)
        return Client(
            way.addresses,
            job=case.name,
            group=world.rank * task.groups // task.workers,
            groups=task.groups,
            settings=settings,
        )

    def _memory(self, layout: Layout, shared: bool) -> Tensor:
        if self._group.size > 1:
            return self._levels.tensor(layout.length, layout.dtype)
        memory = shared_memory if shared else private_memory
        return Tensor([memory(layout.nbytes).view(layout.dtype)])

    def fill(self, value: float) -> None:
        self._tensor.vectors[0][:] = value

    def exchange(self, times: int) -> None:
        for _ in range(times):
            reduce_all_(self._algorithm, "all", self._tensor, self._bucket)

    def seen(self) -> tuple[float, float]:
        values = self._tensor.vectors[0]
        return float(values.min()), float(values.max())

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._levels.close()
        self._group.free()


class Theirs:
    """MXNet's own KVStore, in a child process: in ps-lite a process can be a worker of one store only."""

    def __init__(self, way: Way, case: Case, task: Exchanges, world: MPI.Comm) -> None:
        self.name = way.name
        kind = way.name.removeprefix("mxnet_")
        self.exact = kind == "dist_sync"
        sizes = ",".join(map(str, case.tensors))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.mxnet_worker", str(os.getpid()), kind, task.rule, sizes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=TOP,
            env=without_rank_marks(os.environ) | way.environment,
        )
        self._ask("begin")

    def fill(self, value: float) -> None:
        self._ask("fill", value)

    def exchange(self, times: int) -> None:
        self._ask("exchange", times)

    def seen(self) -> tuple[float, float]:
        return tuple(self._ask("seen"))

    def close(self) -> None:
        """End the process, by force if it waits: ps-lite may wait for ever for a server. All is measured by then."""
        self._process.stdin.close()  # type: ignore[union-attr]
        end_within(self._process, END_SECONDS)

    def _ask(self, *words: Any) -> Any:
        print(json.dumps(words), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise RuntimeError(f"the worker of {self.name} ended with status {self._process.wait(DEADLINE_SECONDS)}")
        return json.loads(line)


def rule_of(name: str) -> Sum | Momentum:
    return Sum() if name == "sum" else Momentum(rate=RATE, momentum=MOMENTUM)
