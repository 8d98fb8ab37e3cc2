"""A word language model: an LSTM with truncated backpropagation, tied weights, and clipping by the global norm."""

import mxnet as mx
from common import part, save, sentences, start
from mxnet import autograd, gluon, nd

BATCH, WORDS, SIZE, LENGTH, STEPS = 16, 14, 10, 6, 8


class Words(gluon.Block):
    """The matrix that embeds the words also scores them."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.embed = gluon.nn.Embedding(WORDS, SIZE)
            self.lstm = gluon.rnn.LSTM(SIZE, num_layers=2, input_size=SIZE)
            self.scores = gluon.nn.Dense(WORDS, in_units=SIZE, params=self.embed.params)

    def forward(self, words, state):
        outputs, state = self.lstm(self.embed(words), state)
        return self.scores(outputs.reshape((-1, SIZE))), state


given, kv = start()
net = Words()
net.initialize(mx.init.Xavier())
trainer = gluon.Trainer(
    net.collect_params(), "sgd", {"learning_rate": 2.0, "momentum": 0.5}, kvstore=kv, update_on_kvstore=False
)
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
text = part(sentences(BATCH, STEPS * LENGTH + 1, WORDS), kv)
state = net.lstm.begin_state(len(text))
for step in range(STEPS):
    words = nd.array(text[:, step * LENGTH : (step + 1) * LENGTH].T)
    following = nd.array(text[:, step * LENGTH + 1 : (step + 1) * LENGTH + 1].T)
    state = [each.detach() for each in state]
    with autograd.record():
        scores, state = net(words, state)
        loss = loss_of(scores, following.reshape((-1,)))
    loss.backward()
    trainer.allreduce_grads()
    gradients = [parameter.grad() for parameter in net.collect_params().values()]
    norm = gluon.utils.clip_global_norm(gradients, 0.2 * BATCH * LENGTH)
    trainer.update(BATCH * LENGTH)
    if kv.rank == 0:
        print(f"step {step}: loss {loss.mean().asscalar():.3f}, norm {norm:.1f}", flush=True)
save(given.out, kv, [parameter.data() for parameter in net.collect_params().values()])
