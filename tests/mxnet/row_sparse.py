"""What the uses of row-sparse gradients share: optimizers, gradients of all workers, and comparisons."""

import os

import mxnet as mx
import numpy as np
from mxnet import nd

TYPE = os.environ.get("TYPE", "dist_hybridps_sync")
first = mx.kv.create(TYPE)
rank, workers = first.rank, first.num_workers
STEPS = 6
OPTIMIZERS = {
    "sgd": {"learning_rate": 0.1, "wd": 0.01},
    "momentum": {"learning_rate": 0.1, "wd": 0.01, "momentum": 0.9},
    "adam": {"learning_rate": 0.1, "wd": 0.01},
    "adagrad": {"learning_rate": 0.1},
    "ftrl": {"learning_rate": 0.1, "wd": 0.01},
}


def optimizer(name, **more):
    return mx.optimizer.create({"momentum": "sgd"}.get(name, name), **OPTIMIZERS[name], **more)


def gradients(shape, step, dtype="float32"):
    """The row-sparse gradients of all workers in a step; some have no rows, and in one step nobody has."""
    found = []
    for worker in range(workers):
        rng = np.random.default_rng([step, worker])
        count = {2: 0, 3: shape[0]}.get(step, int(rng.integers(0, shape[0] // 2)))
        if step % 3 == 1 and worker == 0:
            count = 0
        ids = np.sort(rng.choice(shape[0], count, replace=False))
        values = (
            rng.standard_normal((count, *shape[1:]))
            if dtype[:5] == "float"
            else rng.integers(0, 9, (count, *shape[1:]))
        )
        found.append(nd.sparse.row_sparse_array((values.astype(dtype), ids), shape=shape, dtype=dtype))
    return found


def stored(kv, key, shape, sparse, dtype="float32"):
    out = nd.sparse.zeros("row_sparse", shape, dtype=dtype) if sparse else nd.zeros(shape, dtype=dtype)
    if sparse:
        kv.row_sparse_pull(key, out=out, row_ids=nd.arange(shape[0], dtype="int64"))
    else:
        kv.pull(key, out=out)
    return out.asnumpy()


def close(got, want, what, dtype="float32"):
    # Some steps of Adam make more of a rounding: where a gradient is nearly zero, its sign counts.
    tolerance = 1e-2 if dtype == "float16" else 3e-5
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=str(what))
