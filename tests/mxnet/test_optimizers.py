"""The optimisers of a server are MXNet's: several steps from the same gradients give the same weights."""

from __future__ import annotations

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from hybridps.ps.rules import SGD, Adam, Momentum, Nesterov, apply_  # noqa: E402

RATE, DECAY, RESCALE, CLIP = 0.05, 1e-3, 0.25, 0.3
OURS = {"rate": RATE, "weight_decay": DECAY, "rescale": RESCALE, "clip": CLIP}
THEIRS = {"learning_rate": RATE, "wd": DECAY, "rescale_grad": RESCALE, "clip_gradient": CLIP}
PAIRS = [
    (SGD(**OURS), lambda: mx.optimizer.SGD(**THEIRS)),
    (Momentum(**OURS, momentum=0.8), lambda: mx.optimizer.SGD(**THEIRS, momentum=0.8)),
    (Nesterov(**OURS, momentum=0.8), lambda: mx.optimizer.NAG(**THEIRS, momentum=0.8)),
    (Adam(**OURS, beta1=0.8, beta2=0.98), lambda: mx.optimizer.Adam(**THEIRS, beta1=0.8, beta2=0.98)),
]
STEPS, LENGTH, GROUPS = 12, 5003, 3


@pytest.mark.parametrize(("rule", "make"), PAIRS, ids=[type(rule).__name__ for rule, _ in PAIRS])
def test_equals_the_optimizer_of_mxnet(rule, make):
    rng = np.random.default_rng(0)
    centre = rng.standard_normal(LENGTH).astype(np.float32)
    state = [np.zeros(LENGTH, np.float32) for _ in range(rule.states)]
    optimizer, weight = make(), mx.nd.array(centre)
    memory = optimizer.create_state(0, weight)
    for step in range(1, STEPS + 1):
        gradients = [rng.standard_normal(LENGTH).astype(np.float32) for _ in range(GROUPS)]
        before = weight.asnumpy()
        optimizer.update(0, weight, mx.nd.array(gradients[0] + gradients[1] + gradients[2]), memory)
        apply_(rule, gradients, [], centre, state, step=step, contributions=GROUPS)
        # float32 rounding of the weights, and of the steps that led here
        scale = np.abs(before).max() + np.abs(weight.asnumpy() - before).max()
        np.testing.assert_allclose(centre, weight.asnumpy(), rtol=0, atol=4 * step * np.finfo(np.float32).eps * scale)
    assert np.abs(centre - np.random.default_rng(0).standard_normal(LENGTH)).max() > 0.05
