"""`hybridps run --snapshots` of a script whose store updates: the same command again goes on with the weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from worlds import environment

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(150)]

SCRIPT = """
import sys, time
import mxnet as mx
from mxnet import autograd, gluon

mx.random.seed(7)
kv = mx.kv.create("dist_hybridps")
net = gluon.nn.Dense(1, in_units=3)
net.initialize(mx.init.Uniform())
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": float(sys.argv[1])}, kvstore=kv)
data = mx.nd.array([[1, 2, 3], [3, 1, 2]]) + kv.rank
for step in range(5):
    with autograd.record():
        loss = (net(data) - 1) ** 2
    loss.backward()
    trainer.step(2 * kv.num_workers)
    if step in (0, 4):
        print("weights", step, kv.rank, net.weight.data().asnumpy().tolist(), net.bias.data().asnumpy(), flush=True)
time.sleep(1)
"""


def train(folder: Path, momentum: float) -> tuple[dict[tuple[str, str], str], str]:
    """Return the weights by step and worker, and what was printed."""
    (folder / "train.py").write_text(SCRIPT)
    words = ["run", "-n", "2", "--groups", "2", "--snapshots", str(folder / "snapshots"), "--snapshot-seconds", "0.2"]
    words += ["--", "python", str(folder / "train.py"), str(momentum)]
    run = [sys.executable, "-m", "hybridps", *words]
    done = subprocess.run(run, env=environment(), capture_output=True, text=True, timeout=140, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = [line.split(maxsplit=5)[3:] for line in done.stdout.splitlines() if "] weights " in line]
    return {(step, rank): weights for step, rank, weights in printed}, done.stdout + done.stderr


def test_groups_go_on_with_the_weights_of_the_snapshot(tmp_path: Path) -> None:
    """The first gradients belong to the weights that the script began with: they count as zeros."""
    weights, said = train(tmp_path, 0.0)
    assert "starts from its snapshot" not in said
    last = weights["4", "0"]
    weights, said = train(tmp_path, 0.0)
    assert "starts from its snapshot" in said
    assert weights["0", "0"] == last
    assert weights["4", "0"] != last


@pytest.mark.nightly
def test_the_momentum_of_the_snapshot_counts(tmp_path: Path) -> None:
    last = train(tmp_path, 0.9)[0]["4", "0"]
    weights, _ = train(tmp_path, 0.9)
    assert weights["0", "0"] == weights["0", "1"] != last
