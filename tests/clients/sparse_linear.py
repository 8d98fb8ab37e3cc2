"""A linear model of sparse features. Its weight is row-sparse, and each batch pulls the rows that it needs."""

import mxnet as mx
import numpy as np
from common import part, save, start

BATCH, FEATURES, CLASSES = 16, 40, 3
SETTINGS = {
    "sgd": {"learning_rate": 0.5},
    "momentum": {"learning_rate": 0.2, "momentum": 0.9, "wd": 1e-3},
    "adagrad": {"learning_rate": 0.2, "eps": 1e-3},
    "adam": {"learning_rate": 0.05, "epsilon": 1e-3},
    "ftrl": {"learning_rate": 0.3},
}


def network():
    data = mx.sym.Variable("data", stype="csr")
    weight = mx.sym.Variable("weight", stype="row_sparse", shape=(FEATURES, CLASSES), init=mx.init.Normal(0.1))
    bias = mx.sym.Variable("bias", shape=(CLASSES,))
    scores = mx.sym.broadcast_add(mx.sym.sparse.dot(data, weight), bias)
    return mx.sym.SoftmaxOutput(scores, name="softmax")


def examples(count):
    """Each has three of the features, of the first ones in the first batches and of all in the last ones."""
    random = np.random.RandomState(3)
    features = np.zeros((count, FEATURES), "float32")
    for number, row in enumerate(features):
        row[random.choice(10 + (FEATURES - 10) * number // count, 3, replace=False)] = random.rand(3) + 0.5
    return features, (features @ random.standard_normal((FEATURES, CLASSES))).argmax(1).astype("float32")


def rows_of(batch):
    return {"weight": batch.data[0].indices}


given, kv = start(optimizer="sgd")
features, labels = examples(12 * BATCH)
module = mx.mod.Module(network())
size = BATCH // kv.num_workers
module.bind([("data", (size, FEATURES))], [("softmax_label", (size,))])
module.init_params()
module.init_optimizer(kv, "sgd" if given.optimizer == "momentum" else given.optimizer, SETTINGS[given.optimizer])
metric = mx.metric.create("acc")
for at in range(0, len(features), BATCH):
    data, label = (part(each[at : at + BATCH], kv) for each in (features, labels))
    batch = mx.io.DataBatch([mx.nd.array(data).tostype("csr")], [mx.nd.array(label)])
    module.prepare(batch, sparse_row_id_fn=rows_of)
    module.forward_backward(batch)
    module.update()
    module.update_metric(metric, batch.label)
print(f"accuracy {metric.get()[1]:.2f}", flush=True)
# All rows of the weight come from the store.
save(given.out, kv, [value.tostype("default") for _, value in sorted(module.get_params()[0].items())])
