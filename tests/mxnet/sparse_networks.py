"""Networks with row-sparse gradients and weights, each trained by all workers and against MXNet's `local`."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from row_sparse import OPTIMIZERS, STEPS, TYPE, close, optimizer, rank, workers

ROWS, WORDS, BATCH = 20, 5, 24


class Words(gluon.Block):
    """An embedding whose gradient is row-sparse, or whose weight is too."""

    def __init__(self, sparse_weight):
        super().__init__()
        self.sparse_weight = sparse_weight
        with self.name_scope():
            if sparse_weight:
                self.table = self.params.get("table", shape=(ROWS, 4), stype="row_sparse", grad_stype="row_sparse")
            else:
                self.embedding = gluon.nn.Embedding(ROWS, 4, sparse_grad=True)
            self.hidden = gluon.nn.Dense(6, in_units=4 * WORDS, activation="relu")
            self.last = gluon.nn.Dense(3, in_units=6)

    def forward(self, x):
        if self.sparse_weight:
            table = self.table.row_sparse_data(x.reshape((-1,)).astype("int64"))
            found = nd.Embedding(x, table, input_dim=ROWS, output_dim=4, sparse_grad=True)
        else:
            found = self.embedding(x)
        return self.last(self.hidden(found.reshape((x.shape[0], -1))))


def train(kvstore, name, sparse_weight, devices=1, **more):
    mx.random.seed(3)
    np.random.seed(3)
    net = Words(sparse_weight)
    net.initialize(mx.init.Normal(0.5), ctx=[mx.cpu(device) for device in range(devices)])
    # A store that is made in the first forward pass keeps the optimizer as it is: `step` cannot divide any more.
    made = optimizer(name, rescale_grad=1 / BATCH, **more)
    trained = gluon.Trainer(net.collect_params(), made, kvstore=kvstore, update_on_kvstore=True)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    parts, mine = (workers, rank) if kvstore == TYPE else (1, 0)
    size = BATCH // parts // devices
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        # Few words are used often, most of them seldom.
        words, labels = np.floor(ROWS * rng.random((BATCH, WORDS)) ** 3), rng.integers(0, 3, BATCH)
        values = []
        with autograd.record():
            for device in range(devices):
                part = slice((mine * devices + device) * size, (mine * devices + device + 1) * size)
                x, y = (nd.array(each[part], ctx=mx.cpu(device)) for each in (words, labels))
                values.append(loss(net(x), y))
        autograd.backward(values)
        trained.step(1)
    result = []
    for parameter in net.collect_params().values():
        if parameter._stype == "row_sparse":
            result.append(parameter.row_sparse_data(nd.arange(ROWS, dtype="int64")).asnumpy())
        else:
            result += [array.asnumpy() for array in parameter.list_data()]
    return result


def gluon_trains(*cases, **more):
    for name, sparse_weight in cases:
        got, want = (train(kind, name, sparse_weight, **more) for kind in (TYPE, mx.kv.create("local")))
        for number, (one, other) in enumerate(zip(got, want, strict=True)):
            close(one, other, (name, sparse_weight, number))


def gluon_gradients():
    gluon_trains(*((name, False) for name in OPTIMIZERS))


def gluon_weights():
    gluon_trains(*((name, True) for name in OPTIMIZERS))


def gluon_devices():
    gluon_trains(("adam", False), ("momentum", True), devices=2)


def module():
    """A linear model of sparse data with a row-sparse weight, as MXNet's example has it."""
    rng = np.random.default_rng(0)
    features = (rng.random((STEPS * BATCH, 30)) < 0.1) * rng.standard_normal((STEPS * BATCH, 30))
    labels = rng.integers(0, 2, STEPS * BATCH).astype("float32")
    start = {"w": nd.array(rng.standard_normal((30, 2))).tostype("row_sparse"), "b": nd.array([0.5, -0.5])}
    x, y = mx.sym.Variable("x", stype="csr"), mx.sym.Variable("y")
    weight, bias = mx.sym.Variable("w", stype="row_sparse", shape=(30, 2)), mx.sym.Variable("b", shape=(2,))
    symbol = mx.sym.SoftmaxOutput(mx.sym.broadcast_add(mx.sym.sparse.dot(x, weight), bias), y, name="softmax")
    for name in OPTIMIZERS:
        results = []
        for kind in (TYPE, "local"):
            size = BATCH // workers if kind == TYPE else BATCH
            model = mx.mod.Module(symbol, data_names=["x"], label_names=["y"])
            model.bind([mx.io.DataDesc("x", (size, 30))], [mx.io.DataDesc("y", (size,))])
            model.init_params(arg_params=start)
            model.init_optimizer(mx.kv.create(kind), optimizer(name, rescale_grad=1 / BATCH))
            for step in range(STEPS):
                begin = step * BATCH + (rank * size if kind == TYPE else 0)
                data = nd.array(features[begin : begin + size]).tostype("csr")
                batch = mx.io.DataBatch([data], [nd.array(labels[begin : begin + size])])
                model.prepare(batch, sparse_row_id_fn=lambda batch: {"w": batch.data[0].indices})
                model.forward_backward(batch)
                model.update()
            results.append({key: value.asnumpy() for key, value in model.get_params()[0].items()})
        for key, want in results[1].items():
            close(results[0][key], want, (name, key))
        assert np.abs(results[0]["w"] - start["w"].asnumpy()).max() > 0.01
