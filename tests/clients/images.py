"""Images are classified with a symbol and `Module.fit`, by any optimizer, on one device or several."""

import mxnet as mx
from common import digits, parts, save, start

BATCH = 32
SETTINGS = {
    "sgd": {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-4, "clip_gradient": 0.5},
    "lbsgd": {"learning_rate": 0.1, "momentum": 0.9, "warmup_strategy": "lars", "warmup_epochs": 1},
    "adagrad": {"learning_rate": 0.05, "eps": 1e-4},
    "adadelta": {"epsilon": 1e-3},
    "ftrl": {"learning_rate": 0.1},
}
WITH_EPSILON = ("adam", "nadam", "lamb", "ftml", "rmsprop")
"""They divide by the size of a gradient: without this, rounding decides where a gradient is almost nothing."""


def network():
    data = mx.sym.Variable("data")
    body = mx.sym.Convolution(data, kernel=(3, 3), num_filter=6, name="conv")
    body = mx.sym.Pooling(mx.sym.Activation(body, act_type="tanh"), pool_type="max", kernel=(2, 2), stride=(2, 2))
    body = mx.sym.FullyConnected(mx.sym.Flatten(body), num_hidden=24, name="hidden")
    body = mx.sym.FullyConnected(mx.sym.Activation(body, act_type="tanh"), num_hidden=10, name="out")
    return mx.sym.SoftmaxOutput(body, name="softmax")


given, kv = start(optimizer="sgd", devices=1, epochs=2)
mx.random.seed(7 + kv.rank)  # the store gives all workers the weights of the first one
settings = SETTINGS.get(given.optimizer, {"learning_rate": 0.01})
if given.optimizer in WITH_EPSILON:
    settings["epsilon"] = 1e-3
if given.optimizer == "sgd":
    settings["lr_scheduler"] = mx.lr_scheduler.FactorScheduler(step=5, factor=0.5)
images, labels = digits(8 * BATCH)
train = mx.io.NDArrayIter(parts(images, BATCH, kv), parts(labels, BATCH, kv), BATCH // kv.num_workers)
seen = mx.mon.Monitor(3, pattern=".*weight", sort=True)
module = mx.mod.Module(network(), context=[mx.cpu(number) for number in range(given.devices)])
module.fit(
    train,
    eval_data=mx.io.NDArrayIter(*digits(BATCH, seed=1), BATCH),
    eval_metric=["acc", "ce"],
    kvstore=kv,
    optimizer=given.optimizer,
    optimizer_params=settings,
    initializer=mx.init.Xavier(),
    batch_end_callback=mx.callback.Speedometer(BATCH, 4),
    epoch_end_callback=mx.callback.do_checkpoint(given.out) if kv.rank == 0 else None,
    monitor=seen if given.devices == 1 else None,
    num_epoch=given.epochs,
)
if kv.rank == 0:
    _, saved, _ = mx.model.load_checkpoint(given.out, given.epochs)
    assert all((saved[name].asnumpy() == value.asnumpy()).all() for name, value in module.get_params()[0].items())
save(given.out, kv, [value for _, value in sorted(module.get_params()[0].items())])
