"""Module: `fit` trains a small network, with the KVStore as its argument."""

import mxnet as mx
from digits import TRAINED, load

BATCH, EPOCHS = 16, 4
images, labels = load()

kv = mx.kv.create("dist_hybridps")
part = slice(kv.rank, TRAINED - TRAINED % kv.num_workers, kv.num_workers)  # this worker's images
train = mx.io.NDArrayIter(images[part], labels[part], BATCH, last_batch_handle="discard")
held_out = mx.io.NDArrayIter(images[TRAINED:], labels[TRAINED:], BATCH)

layer = mx.sym.FullyConnected(mx.sym.Flatten(mx.sym.Variable("data")), num_hidden=64)
layer = mx.sym.FullyConnected(mx.sym.Activation(layer, act_type="relu"), num_hidden=10)
model = mx.mod.Module(mx.sym.SoftmaxOutput(layer, name="softmax"))
model.fit(
    train,
    num_epoch=EPOCHS,
    kvstore=kv,
    optimizer_params={"learning_rate": 0.1, "momentum": 0.9, "rescale_grad": 1 / (BATCH * kv.num_workers)},
    initializer=mx.init.Xavier(),
)
accuracy = dict(model.score(held_out, "acc"))["accuracy"]
print(f"hybridps: epoch={EPOCHS} accuracy={accuracy:.4f} worker={kv.rank}", flush=True)
