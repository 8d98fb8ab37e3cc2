"""`launch/slurm.sbatch` and `--launcher slurm` on a real SLURM of two nodes.

It skips where slurm-wlm, munge or openssh-server are not installed, and without root.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import namespaces
import pytest
import slurm_cluster
from namespaces import ROOT, TRAIN, Host, Program, wait_for

MISSING = namespaces.missing() or slurm_cluster.missing()
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300), pytest.mark.skipif(bool(MISSING), reason=MISSING)]

PATH = f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin"
"""As after `source .venv/bin/activate`: a job inherits the environment of sbatch."""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    (tmp_path / "train.py").write_text(TRAIN)
    with slurm_cluster.slurm(str(tmp_path)) as hosts:
        yield hosts


def submit(nodes: tuple[Host, Host], folder: Path, steps: str, *options: str, **variables: str) -> Program:
    """A job of two nodes and four tasks; its output is in the file `out` of the folder."""
    words = ["sbatch", *options, f"--output={folder}/out", "--nodes=2", "--ntasks-per-node=2", "--time=10"]
    words += [f"{ROOT}/launch/slurm.sbatch", "python", f"{folder}/train.py", steps]
    return Program(nodes[0], *words, PATH=PATH, RUN=f"{folder}/run", **variables)


def test_the_script_makes_each_node_a_group(nodes: tuple[Host, Host], tmp_path: Path) -> None:
    job = submit(nodes, tmp_path, "50", "--wait", ALGORITHM="sync")
    assert job.end(200) == 0, (tmp_path / "out").read_text()
    said = (tmp_path / "out").read_text()
    for worker, host in enumerate(("hosta", "hosta", "hostb", "hostb")):
        assert f"[group {worker // 2}] worker {worker} of 4 trains on {host}\n" in said
        assert f"worker {worker} has 4\n" in said
    assert "serving at tcp://10.77.0.1:" in said
    assert (tmp_path / "run" / "summary.json").exists()
    for node in nodes:
        wait_for(lambda: not node.leftovers())  # noqa: B023


def test_the_warning_before_the_time_limit_ends_the_job_in_order(nodes: tuple[Host, Host], tmp_path: Path) -> None:
    assert submit(nodes, tmp_path, "100000").end() == 0
    out = tmp_path / "out"
    wait_for(lambda: out.exists() and out.read_text().count("trains on") == 4, 150)
    nodes[0].do("scancel --signal=TERM --batch 1")  # as SLURM does by --signal=B:TERM@60
    wait_for(lambda: not nodes[0].do("squeue --noheader"))
    assert "hybridps: SIGTERM: stopping 2 groups and 1 server" in out.read_text()
    for node in nodes:
        wait_for(lambda: not node.leftovers())  # noqa: B023


def test_a_cancelled_job_leaves_nothing(nodes: tuple[Host, Host], tmp_path: Path) -> None:
    assert submit(nodes, tmp_path, "100000").end() == 0
    out = tmp_path / "out"
    wait_for(lambda: out.exists() and out.read_text().count("trains on") == 4, 150)
    nodes[0].do("scancel 1")
    for node in nodes:
        wait_for(lambda: not node.leftovers())  # noqa: B023


def test_groups_may_share_a_node_of_an_allocation(nodes: tuple[Host, Host], tmp_path: Path) -> None:
    words = ["salloc", "--nodes=2", "--ntasks-per-node=2", "hybridps", "run", "--launcher", "slurm"]
    words += ["--group-sizes", "1,3", "--algorithm", "sync", "--", "python", f"{tmp_path}/train.py", "5"]
    job = Program(nodes[0], *words, PATH=PATH)
    assert job.end(200) == 0, str(job)
    assert all(job.has(f"worker {worker} has 4") for worker in range(4)), str(job)
    assert job.has("[group 1] worker 1 of 4 trains on hosta"), str(job)
    assert job.has("[group 1] worker 3 of 4 trains on hostb"), str(job)
