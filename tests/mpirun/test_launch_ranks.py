"""`hybridps run` tells ranks apart: prefixes, files, and cores and GPUs of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from worlds import environment, installed, is_open_mpi

from hybridps.cli.run.mpirun import INTEL_MPI

pytestmark = pytest.mark.timeout(60)

PROGRAM = """
import os, sys
print("cores", *sorted(os.sched_getaffinity(0)))
print("gpus", os.environ["CUDA_VISIBLE_DEVICES"], file=sys.stderr, flush=True)
sys.stdout.write("no end")
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hybridps.cli", "run", *words]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=40)


def test_each_worker_has_lines_a_file_cores_and_gpus_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "program").write_text(PROGRAM)
    words = ["--group-sizes", "1,2", "--prefix", "worker", "--log-dir", str(tmp_path / "logs"), "--bind", "cores,gpus"]
    words += [
        "-x",
        "CUDA_VISIBLE_DEVICES=4,5,6",
        "--mpi-args",
        "--display bind" if is_open_mpi() else "-prot" if installed().flavour == INTEL_MPI else "-print-all-exitcodes",
        "--",
        sys.executable,
        f"{tmp_path}/program",
    ]
    command = [sys.executable, "-m", "hybridps.cli", "run", *words]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=40)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("hybridps: 3 workers (--group-sizes) in 2 groups (1 + 2) on this host; 1 server")
    cores = []
    for worker in range(3):
        name = f"group {min(worker, 1)} worker {worker}"
        lines = (tmp_path / "logs" / f"{name.replace(' ', '-')}.log").read_text().splitlines()
        assert {*lines} >= {f"gpus {4 + worker}", "no end"}
        assert f"[{name}] gpus {4 + worker}\n" in done.stderr
        assert f"[{name}] no end\n" in done.stdout
        cores.append({int(core) for line in lines if line.startswith("cores") for core in line.split()[1:]})
    allowed = os.sched_getaffinity(0)
    assert set().union(*cores) == allowed
    assert sum(map(len, cores)) == max(3, len(allowed))
    assert (tmp_path / "logs" / "server-0.log").read_text().startswith("hybridps: serving at ")


def test_too_few_gpus_end_the_job_and_say_so() -> None:
    words = [
        "-n",
        "2",
        "-x",
        "CUDA_VISIBLE_DEVICES=0",
        "--bind",
        "gpus",
        "--prefix",
        "none",
        "--",
        sys.executable,
        "-c",
        "",
    ]
    command = [sys.executable, "-m", "hybridps.cli", "run", *words]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=40)
    assert done.returncode == 2
    assert "\nhybridps: error: --bind gpus: " in done.stderr
    assert "has 1 GPUs for 2 workers" in done.stderr


def test_what_a_dry_run_prints_runs() -> None:
    words = ["-n", "2", "--prefix", "worker", "-x", "A=a b"]
    done = run(*words, "--dry-run", "--", sys.executable, "-c", "import os; print(os.environ['A'])")
    assert (done.returncode, done.stderr) == (0, "")
    again = subprocess.run(["sh"], input=done.stdout, env=environment(), capture_output=True, text=True, timeout=40)
    said = {line for line in again.stdout.splitlines() if line.endswith("a b")}
    assert said == {"[1,0]<stdout>: a b", "[1,1]<stdout>: a b"}, again.stderr
