"""Groups that train in step and hand over what a restarted group needs, with more than a plain network has. Words: a
folder, and `amp` (two devices in each worker, and dynamic loss scaling), `numbers` (each worker has a device with
another number) or `rows` (row-sparse weights and gradients). The group of worker 1 is killed.

Each worker prints its state after each epoch: weights, number of updates, loss scale.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.contrib import amp

from hybridps import resume

EPOCHS, STEPS, ROWS = 7, 6, 40
folder, kind = Path(sys.argv[1]), sys.argv[2]


class Words(gluon.HybridBlock):
    """A network with an embedding, whose weight and gradient are row-sparse for `rows`."""

    def __init__(self) -> None:
        super().__init__()
        stype = "row_sparse" if kind == "rows" else "default"
        with self.name_scope():
            self.table = self.params.get("table", shape=(ROWS, 4), stype=stype, grad_stype=stype)
            self.dense = gluon.nn.Dense(3)

    def forward(self, ids: nd.NDArray) -> nd.NDArray:
        table = self.table.row_sparse_data(ids) if kind == "rows" else self.table.data(ids.context)
        found = nd.Embedding(ids, table, input_dim=ROWS, output_dim=4, sparse_grad=kind == "rows")
        return self.dense(found.reshape((len(ids), -1)))


def main() -> None:
    life = resume().life
    if kind == "amp":
        amp.init(target_precision_ops=[])  # with float32, as CPUs have no layers in float16
    kv = mx.kv.create("dist_hybridps_sync")
    numbers = {"amp": [0, 1], "numbers": [kv.rank]}.get(kind, [0])
    devices = [mx.cpu(number) for number in numbers]
    dies = int(os.environ["HYBRIDPS_GROUP_INDEX"]) == (1 if kv.num_workers == 2 else 0)
    mx.random.seed(1 + 100 * life)
    net = Words()
    net.initialize(mx.init.Xavier(), ctx=devices)
    options = {"learning_rate": 0.01, "wd": 1e-3}
    trainer = gluon.Trainer(net.collect_params(), "adam", options, kvstore=kv, update_on_kvstore=kind == "rows")
    if kind == "amp":
        amp.init_trainer(trainer)
        trainer._amp_loss_scaler._scale_seq_len = 8  # the scale doubles after so many steps
    if life:
        (folder / "back").touch()
    for epoch in kv.epochs(EPOCHS, trainer):
        for step in range(STEPS):
            random = np.random.default_rng((kv.rank, epoch, step))
            losses = []
            with autograd.record():
                for device in devices:
                    ids = nd.array(random.integers(0, ROWS // 2, (8, 3)), ctx=device)
                    target = nd.array(random.integers(0, 3, 8), ctx=device)
                    losses.append(gluon.loss.SoftmaxCrossEntropyLoss()(net(ids), target).mean() / kv.num_workers)
                if kind == "amp":
                    with amp.scale_loss(losses, trainer) as scaled:
                        autograd.backward(scaled)
                else:
                    autograd.backward(losses)
            trainer.step(1)  # MXNet wants the same number from the beginning, if parameters are row-sparse
            if kv.rank == 1 and not life and (epoch, step) == (1, 3):
                nd.waitall()
                os.kill(os.getpid(), signal.SIGKILL)
        say(kv, net, trainer, epoch, devices)
        end = time.monotonic() + 60
        while not dies and epoch == 2 and not (folder / "back").exists() and time.monotonic() < end:
            time.sleep(0.1)
        if not dies and 2 <= epoch < EPOCHS - 2:
            time.sleep(1.0)  # at one of these ends of epochs the restarted group has come to the meeting


def say(kv: mx.kv.KVStore, net: Words, trainer: gluon.Trainer, epoch: int, devices: list[mx.Context]) -> None:
    tables = [net.table.row_sparse_data(nd.arange(ROWS))] if kind == "rows" else net.table.list_data()
    dense = net.dense.collect_params().values()
    arrays = [*tables, *(parameter.data(device) for parameter in dense for device in devices)]
    digest = hashlib.sha256(b"".join(array.asnumpy().tobytes() for array in arrays)).hexdigest()[:16]
    scaler = getattr(trainer, "_amp_loss_scaler", None)
    scale = scaler.loss_scale if scaler is not None else 1
    updates = trainer.optimizer.num_update
    print(f"worker {kv.rank} in life {resume().life}: epoch {epoch} {digest} {updates} {scale:g}", flush=True)


main()
