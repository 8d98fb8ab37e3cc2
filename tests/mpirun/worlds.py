"""Starting MPI worlds for tests."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from hybridps.cli.run.mpirun import OPEN_MPI, WITHOUT_OFI, find_mpirun

_SESSIONS = tempfile.mkdtemp(prefix="hybridps-tests-")
"""Holds mpirun's own files, a folder for each start: a killed one leaves its files to the next with its process id."""
atexit.register(shutil.rmtree, _SESSIONS, ignore_errors=True)
_QUICK_START = Path(__file__).with_name("quick_start")


SUM = """
import os
import numpy as np
from hybridps.job import open_job
from hybridps.memory import Arena, Layout
from hybridps.tensor_collectives import Tensor

layout = Layout.of("float32", {"w": (8,)})
gradients = Arena(layout)
with open_job() as job:
    algorithm = job.algorithm("sync")
    algorithm.initialise("model", layout, Tensor([gradients.flat]))
    algorithm.join_gradients("model", layout)
    gradients.flat[:] = float(os.environ.get("SUMMAND", "1"))
    algorithm.finish_(algorithm.reduce_("model", Tensor([gradients.flat]), 0, layout.length))
    print(f"sum {gradients.flat[0]}, {os.environ.get('USER')}")
"""
"""A program of each rank: the sum over all workers of what each is given as SUMMAND, or of ones."""


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of the tests without settings of hybridps and without traces of an MPI world."""
    kept = {
        name: text for name, text in os.environ.items() if not name.startswith(("HYBRIDPS_", "OMPI_", "PMIX_", "PRTE_"))
    }
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}
    root |= WITHOUT_OFI | {"SETUPTOOLS_USE_DISTUTILS": "stdlib"}  # a world starts a second sooner, and MXNet a tenth
    session = {"PRTE_MCA_prte_local_tmpdir_base": tempfile.mkdtemp(dir=_SESSIONS)}
    session["PYTHONPATH"] = os.pathsep.join([str(_QUICK_START), *filter(None, [kept.get("PYTHONPATH")])])
    return kept | root | session | {"OMP_NUM_THREADS": "1"} | dict(extra or {})


installed = cache(find_mpirun)
"""Returns the mpirun of this environment: Open MPI's, MPICH's or Intel MPI's. It takes a process to find out."""


def is_open_mpi() -> bool:
    """Whether this environment has Open MPI."""
    return installed().flavour == OPEN_MPI


def command(ranks: int, arguments: Sequence[str]) -> list[str]:
    """The mpirun command that starts Python with `arguments` on each rank."""
    return [*installed().command(ranks, (), {}, [sys.executable, *arguments])]


def mpirun(
    ranks: int, arguments: Sequence[str], extra: Mapping[str, str] | None = None, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Start Python with `arguments` on each rank, and wait."""
    return subprocess.run(
        command(ranks, arguments), env=environment(extra), capture_output=True, text=True, timeout=timeout, check=False
    )


def after_first_line(errors: str) -> str:
    """What follows, on standard error, the line in which a launcher says what it has chosen."""
    first, _, rest = errors.partition("\n")
    assert re.match(r"hybridps: \d+ workers? \(", first), errors
    return rest
