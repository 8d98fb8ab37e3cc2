"""The oldest interface, FeedForward; its results are predictions."""

import mxnet as mx
from common import digits, parts, save, start

BATCH = 32
given, kv = start()
data = mx.sym.FullyConnected(mx.sym.Flatten(mx.sym.Variable("data")), num_hidden=24, name="hidden")
data = mx.sym.FullyConnected(mx.sym.Activation(data, act_type="tanh"), num_hidden=10, name="out")
model = mx.model.FeedForward(
    mx.sym.SoftmaxOutput(data, name="softmax"),
    ctx=mx.cpu(),
    num_epoch=2,
    optimizer="nag",
    initializer=mx.init.Xavier(),
    learning_rate=0.1,
    momentum=0.9,
)
images, labels = digits(6 * BATCH)
size = BATCH // kv.num_workers
train = mx.io.NDArrayIter(parts(images, BATCH, kv), parts(labels, BATCH, kv), size)
model.fit(
    mx.io.PrefetchingIter(train),
    eval_data=mx.io.NDArrayIter(*digits(BATCH, seed=1), size),
    kvstore=kv,
    batch_end_callback=mx.callback.Speedometer(BATCH, 2),
)
predictions = mx.nd.array(model.predict(mx.io.NDArrayIter(digits(BATCH, seed=1)[0], None, BATCH)))
save(given.out, kv, [*(value for _, value in sorted(model.arg_params.items())), predictions])
