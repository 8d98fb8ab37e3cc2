"""A trained network gets a new last layer. The others are frozen first, thawed midway, and learn more slowly."""

import mxnet as mx
from common import digits, part, save, start
from mxnet import autograd, gluon, nd

BATCH, STEPS, THAWED_AT = 32, 9, 4


def network(last):
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Conv2D(4, 3, in_channels=1), gluon.nn.BatchNorm(use_global_stats=True, in_channels=4))
        net.add(gluon.nn.Activation("tanh"), gluon.nn.Flatten(), gluon.nn.Dense(16, activation="tanh"))
        net.add(gluon.nn.Dense(last))
    net.initialize(mx.init.Xavier())
    net(nd.zeros((1, 1, 8, 8)))
    return net


given, kv = start(on_store=1, freeze_again=0)
trained = network(20)
trained.save_parameters(f"{given.out}.{kv.rank}.params")
net = network(20)
net.load_parameters(f"{given.out}.{kv.rank}.params")
features = gluon.ParameterDict("net_")
for layer in list(net)[:-1]:
    features.update(layer.collect_params())
with net.name_scope():
    last = gluon.nn.Dense(10, in_units=16, weight_initializer=mx.init.Xavier())
last.initialize()
tuned = gluon.nn.HybridSequential()
tuned.add(*list(net)[:-1], last)
tuned.hybridize()
wanted = {name: parameter.grad_req for name, parameter in features.items()}  # running statistics have none
features.setattr("grad_req", "null")
features.setattr("lr_mult", 0.1)
settings = {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-4}
trainer = gluon.Trainer(tuned.collect_params(), "sgd", settings, kvstore=kv, update_on_kvstore=bool(given.on_store))
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
images, labels = digits(STEPS * BATCH)
frozen = features["net_conv0_weight"].data().asnumpy()
for step in range(STEPS):
    if step == THAWED_AT or (given.freeze_again and step == THAWED_AT + 3):
        assert (features["net_conv0_weight"].data().asnumpy() == frozen).all()
        for name, parameter in features.items():
            parameter.grad_req = wanted[name]
    elif given.freeze_again and step == THAWED_AT + 2:
        features.setattr("grad_req", "null")
        frozen = features["net_conv0_weight"].data().asnumpy()
    at = slice(step * BATCH, (step + 1) * BATCH)
    data, label = (nd.array(part(each[at], kv)) for each in (images, labels))
    with autograd.record():
        loss = loss_of(tuned(data), label)
    loss.backward()
    trainer.step(BATCH)
assert (features["net_conv0_weight"].data().asnumpy() != frozen).any()
save(given.out, kv, [parameter.data() for parameter in tuned.collect_params().values()])
