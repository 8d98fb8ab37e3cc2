"""What a job under MXNet holds at its servers, from its first initial value to its end."""

from __future__ import annotations

import threading
import time

import pytest
from worlds import mpirun

from hybridps.ps.server import Server
from hybridps.ps.server.admission import Budget

pytestmark = pytest.mark.mxnet

PARAMETERS = 4 * (2048 * 1024 + 2048 + 1024 * 2048 + 1024)
"""Bytes."""

BESIDE = 1 << 17
"""Bytes of what a server keeps of messages and tables beside their values."""

ON_THE_WAY = 2 * (4 << 20)
"""Bytes of messages with initial values that wait, or whose answers are not sent yet: one for each group."""

SCRIPT = """
import os, sys, time
import mxnet as mx
from mxnet import autograd, gluon
from hybridps.config import world_rank
from hybridps.tiers.servers import ServersTier

def register(*arguments, join=ServersTier.register):
    time.sleep(0.3 * world_rank())  # the second group comes later, to each table
    return join(*arguments)

ServersTier.register = register
network = gluon.nn.HybridSequential()
network.add(gluon.nn.Dense(2048, in_units=1024), gluon.nn.Dense(1024, in_units=2048))
network.initialize()
trainer = gluon.Trainer(network.collect_params(), sys.argv[2], kvstore=sys.argv[1])
for step in range(8):
    with autograd.record():
        loss = network(mx.nd.ones((4, 1024))).sum()
    loss.backward()
    trainer.step(4)
mx.nd.waitall()
"""


@pytest.mark.parametrize(
    ("kind", "optimizer", "most"),  # the initial values, the weights, and the states that the servers keep
    [
        pytest.param("dist_hybridps_sync", "lamb", 3, marks=pytest.mark.nightly),
        pytest.param("dist_hybridps_sync", "nag", 3, marks=pytest.mark.nightly),
        ("dist_hybridps_sync", "adam", 4),
        ("dist_hybridps_elastic", "adam", 2),
    ],
)
def test_a_job_holds_at_most_so_many_times_its_parameters(tmp_path, monkeypatch, kind, optimizer, most):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    server, used, take = Server(stop_after_groups=2), [0], Budget.take

    def noting(budget, nbytes):
        take(budget, nbytes)
        if server._loop.jobs.budget.used_bytes > used[0]:
            time.sleep(0.05)  # a thread of ZeroMQ returns the memory of answers that are sent
            used[0] = max(used[0], server._loop.jobs.budget.used_bytes)

    monkeypatch.setattr(Budget, "take", noting)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        extra = {"HYBRIDPS_GROUPS": "2", "HYBRIDPS_SERVERS": server.address}
        done = mpirun(2, ["-m", "hybridps", str(script), kind, optimizer], extra, timeout=100)
        assert done.returncode == 0, done.stderr
    finally:
        server.stop()
        thread.join()
    assert PARAMETERS <= used[0] <= most * PARAMETERS + BESIDE + ON_THE_WAY
