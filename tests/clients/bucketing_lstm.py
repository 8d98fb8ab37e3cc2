"""An LSTM for sentences of several lengths, with `BucketingModule`."""

import mxnet as mx
import numpy as np
from common import part, save, sentences, start

BATCH, WORDS, LENGTHS = 16, 12, (5, 8, 3)


def symbol_of(length):
    data, label = mx.sym.Variable("data"), mx.sym.Variable("softmax_label")
    embedded = mx.sym.Embedding(data, input_dim=WORDS, output_dim=8, name="embed")
    cells = mx.rnn.SequentialRNNCell()
    for layer in range(2):
        cells.add(mx.rnn.LSTMCell(num_hidden=10, prefix=f"lstm{layer}_"))
    outputs, _ = cells.unroll(length, inputs=embedded, merge_outputs=True)
    scores = mx.sym.FullyConnected(mx.sym.Reshape(outputs, shape=(-1, 10)), num_hidden=WORDS, name="scores")
    return mx.sym.SoftmaxOutput(scores, mx.sym.Reshape(label, shape=(-1,)), name="softmax"), ("data",), (label.name,)


def batches(kv):
    """In turn of each length, this worker's part."""
    for number in range(9):
        length = LENGTHS[number % len(LENGTHS)]
        text = part(sentences(BATCH, length + 1, WORDS, seed=number), kv)
        yield mx.io.DataBatch(
            [mx.nd.array(text[:, :-1])],
            [mx.nd.array(text[:, 1:])],
            bucket_key=length,
            provide_data=[("data", (len(text), length))],
            provide_label=[("softmax_label", (len(text), length))],
        )


given, kv = start(optimizer="adam")
mx.random.seed(7 + kv.rank)
module = mx.mod.BucketingModule(symbol_of, default_bucket_key=max(LENGTHS))
size = BATCH // kv.num_workers
module.bind([("data", (size, max(LENGTHS)))], [("softmax_label", (size, max(LENGTHS)))])
module.init_params(mx.init.Xavier(factor_type="in", magnitude=2.34))
settings = {"learning_rate": 0.02, "epsilon": 1e-3} if given.optimizer == "adam" else {"learning_rate": 0.05}
module.init_optimizer(kv, given.optimizer, settings)
perplexity = mx.metric.Perplexity(None)
for number, batch in enumerate(batches(kv)):
    module.forward_backward(batch)
    module.update()
    module.update_metric(perplexity, batch.label)
    if number % 3 == kv.rank:
        print(f"batch {number}: perplexity {perplexity.get()[1]:.2f}", flush=True)
assert np.isfinite(perplexity.get()[1])
save(given.out, kv, [value for _, value in sorted(module.get_params()[0].items())])
