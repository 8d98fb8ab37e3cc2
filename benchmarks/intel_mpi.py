"""Intel MPI's allreduce, from its wheel in a separate environment. Its ranks are separate processes."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import Any

from mpi4py import MPI

from benchmarks.cases import Case
from benchmarks.contender import Contender
from benchmarks.ending import end_within
from benchmarks.task import Task
from hybridps.processes import die_with_parent, without_rank_marks

TOP = Path(__file__).parents[1]
END_SECONDS = 10.0
HOW = "python -m venv PREFIX && PREFIX/bin/pip install impi-rt mpi4py numpy, then --intel-mpi PREFIX"

FLAT = ("mpi_flat", "mpi_out_of_place")
PER_TENSOR = ("mpi_per_tensor",)


def load_intel_mpi(task: Task, world: MPI.Comm) -> Callable[[Case], list[Contender]]:
    """Return the contenders of a case under Intel MPI. Rank 0 starts their ranks. Raises ImportError without it."""
    prefix = Path(task.intel_mpi)
    if not task.intel_mpi:
        raise ImportError(f"no environment was given that has it: {HOW}")
    if not (prefix / "bin" / "mpirun").exists():
        raise ImportError(f"{prefix} has no bin/mpirun: {HOW}")
    if len(set(task.node_of_rank)) > 1:
        raise ImportError("it is measured on one node only")
    started = _Started(prefix, world.size) if world.rank == 0 else None

    def build(case: Case) -> list[Contender]:
        names = FLAT if len(case.tensors) == 1 else FLAT + PER_TENSOR
        if started:
            started.ask("make", names, case.tensors, task.vectors)
        return [_contender(name, started) for name in names]

    return build


def _contender(name: str, started: _Started | None) -> Contender:
    def seconds(repeats: int) -> float:
        return float(started.ask("time", name, repeats)) if started else 0.0

    return Contender(f"intel_{name}", [], lambda: None, elsewhere=seconds)


class _Started:
    """Ranks under the mpirun of an environment. They end with this process."""

    def __init__(self, prefix: Path, ranks: int) -> None:
        command = [prefix / "bin" / "mpirun", "-n", str(ranks), prefix / "bin" / "python"]
        self._process = subprocess.Popen(
            [*command, "-m", "mpi4py", "-m", "benchmarks.intel_mpi_ranks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=TOP,
            env=intel_environment(without_rank_marks(os.environ), prefix),
            preexec_fn=partial(die_with_parent, SIGKILL, os.getpid()),
        )
        atexit.register(self._end)
        library = self.ask("library")
        if "Intel" not in library:
            raise ImportError(f"{prefix} has {library}, not Intel MPI: {HOW}")

    def ask(self, *words: Any) -> Any:
        print(json.dumps(words), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise RuntimeError(f"the ranks of Intel MPI ended with status {self._process.wait()}")
        return json.loads(line)

    def _end(self) -> None:
        with suppress(OSError):  # writing to ranks that are gone
            # The end is also written: Open MPI's mpirun does not pass on the end of its input.
            print("null", file=self._process.stdin)
            self._process.stdin.close()  # type: ignore[union-attr]
        end_within(self._process, END_SECONDS)


def intel_environment(environ: Mapping[str, str], prefix: Path) -> dict[str, str]:
    """Return the variables with which the environment's Python uses its Intel MPI, over shared memory."""
    return dict(environ) | {
        "PATH": f"{prefix / 'bin'}{os.pathsep}{environ.get('PATH', '')}",
        "LD_LIBRARY_PATH": str(prefix / "lib"),
        "I_MPI_ROOT": str(prefix),
        "I_MPI_FABRICS": "shm",
    }
