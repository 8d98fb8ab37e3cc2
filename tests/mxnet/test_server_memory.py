"""What a job under MXNet holds at its servers, from its first initial value to its end."""

from __future__ import annotations

import threading

import pytest
from worlds import mpirun

from hybridps.ps.server import Server

pytestmark = pytest.mark.mxnet

PARAMETERS = 4 * (1024 * 512 + 1024 + 1024 * 256 + 256)
"""Bytes."""

SCRIPT = """
import sys
import mxnet as mx
from mxnet import autograd, gluon

network = gluon.nn.HybridSequential()
network.add(gluon.nn.Dense(1024, in_units=512), gluon.nn.Dense(256, in_units=1024))
network.initialize()
trainer = gluon.Trainer(network.collect_params(), "adam", kvstore=sys.argv[1])
for step in range(24):
    with autograd.record():
        loss = network(mx.nd.ones((4, 512))).sum()
    loss.backward()
    trainer.step(4)
mx.nd.waitall()
"""


@pytest.mark.parametrize("kind", ["dist_hybridps_sync", "dist_hybridps_elastic"])
def test_a_job_holds_at_most_three_times_its_parameters(tmp_path, kind):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    server, used, over = Server(stop_after_groups=2), [0], threading.Event()

    def look():
        used.append(server._jobs.budget.used_bytes)
        return over.is_set()

    thread = threading.Thread(target=server.run, args=(look,))
    thread.start()
    try:
        extra = {"HYBRIDPS_GROUPS": "2", "HYBRIDPS_SERVERS": server.address}
        done = mpirun(2, ["-m", "hybridps", str(script), kind], extra, timeout=100)
        assert done.returncode == 0, done.stderr
    finally:
        over.set()
        server.stop()
        thread.join()
    assert PARAMETERS <= max(used) <= 3 * PARAMETERS
