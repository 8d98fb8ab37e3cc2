"""A generator and a discriminator: two Modules with one store, or two Trainers with a store each."""

import mxnet as mx
import numpy as np
from common import digits, part, save, start
from mxnet import autograd, gluon, nd

BATCH, STEPS, NOISE = 16, 6, 5
images, _ = digits(STEPS * BATCH)
noises = np.random.RandomState(8).standard_normal((STEPS, BATCH, NOISE))


def batches(kv):
    """This worker's parts of noise and images."""
    for step in range(STEPS):
        real = images[step * BATCH : (step + 1) * BATCH].reshape((BATCH, -1))
        yield nd.array(part(noises[step], kv)), nd.array(part(real, kv))


def dense(data, name, size):
    return mx.sym.FullyConnected(data, num_hidden=size, name=name)


def make_modules(kv, settings):
    hidden = mx.sym.Activation(dense(mx.sym.Variable("noise"), "generator_hidden", 16), act_type="tanh")
    generator = mx.mod.Module(dense(hidden, "generator_out", 64), data_names=["noise"], label_names=None)
    hidden = mx.sym.Activation(dense(mx.sym.Variable("image"), "judge_hidden", 12), act_type="tanh")
    judged = mx.sym.LogisticRegressionOutput(dense(hidden, "judge_out", 1), mx.sym.Variable("label"))
    judge = mx.mod.Module(judged, data_names=["image"], label_names=["label"])
    size = BATCH // kv.num_workers
    generator.bind([("noise", (size, NOISE))], inputs_need_grad=False)
    judge.bind([("image", (size, 64))], [("label", (size, 1))], inputs_need_grad=True)
    for module in (generator, judge):
        module.init_params(mx.init.Xavier())
        module.init_optimizer(kv, "adam", settings)
    return generator, judge


def with_one_store(kv, settings):
    """The judge's gradients of made and real images are added up; the generator's come through the judge."""
    generator, judge = make_modules(kv, settings)
    for noise, real in batches(kv):
        ones, zeros = nd.ones((len(real), 1)), nd.zeros((len(real), 1))
        generator.forward(mx.io.DataBatch([noise]), is_train=True)
        made = generator.get_outputs()[0]
        judge.forward_backward(mx.io.DataBatch([made], [zeros]))
        kept = [[gradient.copy() for gradient in each] for each in judge._exec_group.grad_arrays]
        judge.forward_backward(mx.io.DataBatch([real], [ones]))
        for each, others in zip(judge._exec_group.grad_arrays, kept, strict=True):
            for gradient, other in zip(each, others, strict=True):
                gradient += other
        judge.update()
        judge.forward_backward(mx.io.DataBatch([made], [ones]))
        generator.backward(judge.get_input_grads())
        generator.update()
    return [value for module in (generator, judge) for _, value in sorted(module.get_params()[0].items())]


def with_two_stores(kv, settings, other, on_store):
    nets = [gluon.nn.HybridSequential(), gluon.nn.HybridSequential()]
    for net, (hidden, out, inputs) in zip(nets, ((16, 64, NOISE), (12, 1, 64)), strict=True):
        net.add(gluon.nn.Dense(hidden, activation="tanh", in_units=inputs), gluon.nn.Dense(out, in_units=hidden))
        net.initialize(mx.init.Xavier())
        net.hybridize()
    generator, judge = nets
    trainers = [
        gluon.Trainer(net.collect_params(), "adam", settings, kvstore=store, update_on_kvstore=on_store)
        for net, store in zip(nets, (kv, other), strict=True)
    ]
    loss_of = gluon.loss.SigmoidBinaryCrossEntropyLoss()
    for noise, real in batches(kv):
        ones, zeros = nd.ones((len(real), 1)), nd.zeros((len(real), 1))
        with autograd.record():
            loss = loss_of(judge(real), ones) + loss_of(judge(generator(noise).detach()), zeros)
        loss.backward()
        trainers[1].step(BATCH)
        with autograd.record():
            loss = loss_of(judge(generator(noise)), ones)
        loss.backward()
        trainers[0].step(BATCH)
    return [parameter.data() for net in nets for parameter in net.collect_params().values()]


given, kv = start(stores=1, on_store=1)
settings = {"learning_rate": 0.01, "beta1": 0.5, "epsilon": 1e-3}
if given.stores == 1:
    trained = with_one_store(kv, settings)
else:
    trained = with_two_stores(kv, settings, mx.kv.create(given.kv_store), bool(given.on_store))
save(given.out, kv, trained)
