"""Gluon's Estimator, with metrics, validation and checkpoints."""

import os
import tempfile

import mxnet as mx
from common import digits, parts, save, start
from mxnet import gluon
from mxnet.gluon.contrib.estimator import CheckpointHandler, Estimator, StoppingHandler

BATCH = 32
given, kv = start(on_store=1)
images, labels = digits(6 * BATCH)
train = gluon.data.ArrayDataset(parts(images, BATCH, kv), parts(labels, BATCH, kv))
validation = gluon.data.ArrayDataset(*digits(BATCH, seed=1))
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(24, activation="tanh"), gluon.nn.Dense(10))
net.initialize(mx.init.Xavier())
net.hybridize()
net(mx.nd.array(images[:1]))
# The Estimator divides by the worker's own batch.
settings = {"learning_rate": 0.01, "epsilon": 1e-3, "rescale_grad": 1 / kv.num_workers}
trainer = gluon.Trainer(net.collect_params(), "adam", settings, kvstore=kv, update_on_kvstore=bool(given.on_store))
estimator = Estimator(
    net, gluon.loss.SoftmaxCrossEntropyLoss(), train_metrics=mx.metric.Accuracy(), trainer=trainer, context=mx.cpu()
)
with tempfile.TemporaryDirectory(dir=os.path.dirname(given.out)) as folder:
    estimator.fit(
        gluon.data.DataLoader(train, BATCH // kv.num_workers, num_workers=1),
        gluon.data.DataLoader(validation, BATCH),
        epochs=2,
        event_handlers=[StoppingHandler(max_epoch=2), CheckpointHandler(folder, epoch_period=1)],
    )
save(given.out, kv, [parameter.data() for parameter in net.collect_params().values()])
