"""Gradient compression in MXNet's own store and in ours: both are held against the same equations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rightness import assert_right
from worlds import environment, mpirun

from benchmarks.clusters import mxnet_serving

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(150)]

PROGRAM = str(Path(__file__).with_name("compressed.py"))
SMALL = {"HYBRIDPS_CHUNK_BYTES": "1024", "HYBRIDPS_BUCKET_BYTES": "2048", "HYBRIDPS_DEADLINE_SECONDS": "40"}
USES = ["sums", "sums_one_bit", "sums_in_steps", "trainer", "module"]
WORLDS = {
    "one": (1, {}),
    "a group of two": (2, {}),
    "two groups of one": (2, {"HYBRIDPS_GROUPS": "2"}),
    "groups of two and one": (3, {"HYBRIDPS_GROUPS": "2"}),
    "groups of one": (4, {"HYBRIDPS_ALGORITHM": "dist-sgd"}),
    "nodes": (4, {"HYBRIDPS_RANKS_PER_NODE": "2", "HYBRIDPS_COLLECTIVE": "ring"}),
}

NIGHTLY = {"two groups of one", "groups of one", "a group of two", "nodes"}
"""The others go the same ways; between nodes the sums are those of tests/contract/test_levels.py."""


@pytest.mark.parametrize(
    "world", [pytest.param(world, marks=pytest.mark.nightly if world in NIGHTLY else ()) for world in WORLDS]
)
def test_the_numbers_are_those_of_the_equations(world: str) -> None:
    ranks, given = WORLDS[world]
    uses = ["refusals", *USES] if ranks < 3 else USES
    done = mpirun(ranks, ["-m", "hybridps", PROGRAM, *uses], SMALL | given, timeout=120)
    assert_right(done, uses, ranks)


@pytest.mark.parametrize("wire", [pytest.param("float16", marks=pytest.mark.nightly), "bfloat16"])
def test_half_precision_on_the_way_to_servers(wire: str) -> None:
    given = SMALL | {"HYBRIDPS_GROUPS": "2", "HYBRIDPS_WIRE": wire}
    done = mpirun(2, ["-m", "hybridps", PROGRAM, "sums_in_half_precision"], given, timeout=60)
    assert_right(done, ["sums_in_half_precision"], 2)
    assert "has no effect" not in done.stderr


WEIGHTS_FROM_SERVERS = """
import mxnet as mx
kv = mx.kv.create("{kind}")
kv.init(0, mx.nd.zeros(2))
kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
out = mx.nd.zeros(2)
for _ in range(2):
    kv.pushpull(0, mx.nd.ones(2), out=out)
out.wait_to_read()
"""


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("dist_hybridps_sync", "the servers send weights: let the workers update (update_on_kvstore=False)\n"),
        ("dist_hybridps_async", "the servers send weights\n"),
        ("dist_hybridps_elastic", "elastic sends weights\n"),
    ],
)
def test_half_precision_without_effect_is_told_once(tmp_path: Path, kind: str, said: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(WEIGHTS_FROM_SERVERS.format(kind=kind))
    given = SMALL | {"HYBRIDPS_GROUPS": "2", "HYBRIDPS_WIRE": "float16"}
    done = mpirun(2, ["-m", "hybridps", str(script)], given, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("HYBRIDPS_WIRE=float16 has no effect") == done.stderr.count(said) == 1, done.stderr


@pytest.mark.parametrize("groups", [pytest.param("1", marks=pytest.mark.nightly), "2"])
def test_workers_that_compress_differently_are_an_error_on_all(groups: str) -> None:
    given = SMALL | {"HYBRIDPS_GROUPS": groups}
    done = mpirun(2, ["-m", "hybridps", PROGRAM, "different_thresholds"], given, timeout=60)
    assert done.returncode != 0
    assert "is right" not in done.stdout
    assert "threshold=1.5" in done.stderr, done.stderr


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_the_numbers_are_those_of_mxnets_own_servers(workers: int) -> None:
    with mxnet_serving("dist_sync", "", workers, workers) as servers:
        told = environment({**servers.environment, "STORE": "dist_sync"})
        command = [sys.executable, PROGRAM, "sums"]
        running = [subprocess.Popen(command, env=told, stdout=subprocess.PIPE, text=True) for _ in range(workers)]
        for process in running:
            said, _ = process.communicate(timeout=60)
            assert process.returncode == 0
            assert "sums is right" in said
