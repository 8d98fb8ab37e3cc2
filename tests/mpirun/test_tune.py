"""`hybridps tune` measures, keeps a table, and a job uses it and says so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from worlds import environment, mpirun

USES = """
import sys
from hybridps.job import open_job
from hybridps.tensor_collectives import allreduce_
with open_job() as job:
    levels = job.algorithm().levels
    tensor = levels.tensor(1000, "float32")
    tensor.vectors[0][:] = 1
    allreduce_(tensor, levels.group)
    assert (tensor.vectors[0] == levels.group.size).all()
"""


def chosen(folder: Path) -> list[dict]:
    lines = (folder / "hybridps-0.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == "Chosen"]


@pytest.mark.parametrize("nodes", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_tune(tmp_path: Path, nodes: int) -> None:
    command = [sys.executable, "-m", "hybridps", "tune", "-n", "2", "--ranks-per-node", str(2 // nodes)]
    settings = environment({"XDG_CACHE_HOME": str(tmp_path)})
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (table,) = (tmp_path / "hybridps").glob("tuning-*.json")
    assert f"wrote {table}" in done.stderr
    entries = json.loads(table.read_text())["entries"]
    assert {(entry["ranks"], entry["nodes"]) for entry in entries} == {(2, nodes)}
    assert all(entry["microseconds"] > 0 for entry in entries)
    per_node = str(2 // nodes)

    def run(name: str, **more: str) -> list[dict]:
        given = {"XDG_CACHE_HOME": str(tmp_path), "HYBRIDPS_RUN_FOLDER": str(tmp_path / name)}
        given |= {"HYBRIDPS_RANKS_PER_NODE": per_node} | more
        done = mpirun(2, ["-m", "mpi4py", "-c", USES], given, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return chosen(tmp_path / name)

    (measured,) = run("measured")
    assert (measured["source"], measured["ranks"], measured["nodes"]) == ("measured", 2, nodes)
    assert measured["algorithm"] == min(entries, key=lambda entry: entry["up_to_bytes"])["algorithm"]
    (built_in,) = run("built-in", HYBRIDPS_TUNING="built-in")
    assert built_in["source"] == "built-in"
    (forced,) = run("forced", HYBRIDPS_COLLECTIVE="ring", HYBRIDPS_COLLECTIVE_CHUNK_BYTES="2048")
    done_by = "ring" if nodes > 1 else "node"
    assert (forced["algorithm"], forced["chunk_bytes"], forced["source"]) == (done_by, 2048, "forced")
    (own,) = run("own", HYBRIDPS_DETERMINISTIC="true")
    assert own["algorithm"] in ("node", "ring", "halving_doubling")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"HYBRIDPS_COLLECTIVE": "node", "HYBRIDPS_RANKS_PER_NODE": "1"}, "'node' is for one node, and there are 2"),
        ({"HYBRIDPS_COLLECTIVE": "flat", "HYBRIDPS_DETERMINISTIC": "true"}, "the order of summation shall be the same"),
        ({"HYBRIDPS_TUNING": "/nowhere/table.json"}, "the table /nowhere/table.json cannot be used"),
    ],
)
def test_what_cannot_be_had_is_said_once(settings: dict[str, str], message: str) -> None:
    done = mpirun(2, ["-m", "mpi4py", "-c", USES], settings, timeout=30)
    assert done.returncode != 0
    assert done.stderr.count(message) == 1, done.stderr
