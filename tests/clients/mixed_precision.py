"""Automatic mixed precision: the loss is scaled down as long as the gradients in float16 are infinite."""

import mxnet as mx
from common import digits, part, save, start
from mxnet import autograd, gluon, nd
from mxnet.contrib import amp

BATCH, STEPS = 16, 12


class Network(gluon.HybridBlock):
    """MXNet multiplies no matrices in float16 on a CPU: what lies between them is in float16."""

    def __init__(self):
        super().__init__()
        self.hidden = gluon.nn.Dense(24, in_units=64)
        self.scores = gluon.nn.Dense(10, in_units=24)

    def hybrid_forward(self, F, data):  # noqa: N803
        half = F.cast(self.hidden(data), "float16")
        return self.scores(F.cast(F.tanh(half), "float32"))


given, kv = start(devices=1)
amp.init(target_precision_ops=[], conditional_fp32_ops=[], fp32_ops=[])
images, labels = digits(STEPS * BATCH)
devices = [mx.cpu(number) for number in range(given.devices)]
net = Network()
net.initialize(mx.init.Xavier(magnitude=24), ctx=devices)
net.hybridize()
settings = {"learning_rate": 0.1, "momentum": 0.9}
trainer = gluon.Trainer(net.collect_params(), "sgd", settings, kvstore=kv, update_on_kvstore=False)
amp.init_trainer(trainer)
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
scales = []
for step in range(STEPS):
    at = slice(step * BATCH, (step + 1) * BATCH)
    data, label = (gluon.utils.split_and_load(part(each[at], kv), devices) for each in (images, labels))
    with autograd.record():
        losses = [loss_of(net(x), y) for x, y in zip(data, label, strict=True)]
        with amp.scale_loss(losses, trainer) as scaled:
            autograd.backward(scaled)
    trainer.step(BATCH)
    scales.append(trainer._amp_loss_scaler.loss_scale)
print(f"loss scales {scales}", flush=True)
assert len(set(scales)) > 1, "all gradients were finite"
assert scales[-1] == scales[-2], "all gradients were infinite"
save(given.out, kv, [nd.array(scales), *(parameter.data(devices[0]) for parameter in net.collect_params().values())])
