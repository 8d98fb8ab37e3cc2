"""A Gluon script that divides by `kv.num_workers` in each step, while a group of its job dies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from worlds import environment

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(120)]

SCRIPT = """
import os, signal, sys, time
import mxnet as mx
from mxnet import autograd, gluon

wanted, named = int(sys.argv[1]), sys.argv[2] == "named"
kv = mx.kv.create("dist_hybridps")
weight = gluon.Parameter("weight", shape=(4,))
weight.initialize(mx.init.Zero())
trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.5}, kvstore="dist_hybridps" if named else kv)


def step():
    with autograd.record():
        loss = weight.data().sum()
    loss.backward()
    workers = kv.num_workers
    trainer.step(workers)
    return workers


for _ in range(3):
    step()
mx.nd.waitall()
if kv.rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
end = time.monotonic() + 60
while step() != wanted:
    assert time.monotonic() < end
for _ in range(20):  # the sums of groups in step lack the dead one's part from the first of these on
    step()
before = weight.data().asnumpy()[0]
for _ in range(10):
    step()
print(f"worker {kv.rank} of {kv.num_workers} moved by {before - weight.data().asnumpy()[0]:.4f}", flush=True)
"""


@pytest.mark.parametrize(
    ("algorithm", "store", "workers", "moved"),
    [
        pytest.param(
            *("elastic", "given", 2, "5.0000"),
            id="elastic: the number follows, and so does the divisor",
            marks=pytest.mark.nightly,
        ),
        pytest.param("elastic", "named", 2, "5.0000", id="elastic: so it does if the Trainer creates its own store"),
        pytest.param("sync", "given", 3, "3.3333", id="sync: the number stays, and the sum has fewer terms"),
    ],
)
def test_the_others_go_on(algorithm: str, store: str, workers: int, moved: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "hybridps.cli", "run", "-n", "3", "--groups", "3", "--algorithm", algorithm]
    command += ["--tau", "1000000"] if algorithm == "elastic" else []
    words = [*command, "--", "python", str(script), str(workers), store]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=100)
    assert done.returncode == 137, done.stderr
    for worker in (0, 1):
        assert f"worker {worker} of {workers} moved by {moved}" in done.stdout, done.stdout + done.stderr
