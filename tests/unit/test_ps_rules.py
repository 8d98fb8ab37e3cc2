"""What single rules do; that all of them keep the contract is in tests/contract/test_rules.py."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from hybridps.ps.rules import Adam, Elastic, ElasticTogether, Mean, Outer, Sum, apply_
from hybridps.ps.rules.kernel import BLOCK


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_elastic_does_not_round_alpha_to_the_dtype(dtype):
    rng = np.random.default_rng(0)
    value, centre = (rng.standard_normal(10_000).astype(dtype) for _ in range(2))
    wide = np.result_type(dtype, np.float32)
    expected = ((value - centre).astype(wide) * wide.type(0.1)).astype(dtype)
    answer, after = np.empty_like(value), centre.copy()
    apply_(Elastic(0.1), [value], [answer], after, [], step=1, contributions=1)
    np.testing.assert_array_equal(answer, expected)
    np.testing.assert_array_equal(after, centre + expected)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_mean_is_over_the_values_of_the_round(dtype):
    centre, answer = np.full(3, np.nan, dtype), np.empty(3, dtype)
    values = [np.full(3, value, dtype) for value in (1, 2, 6)]
    apply_(Mean(), values, [answer], centre, [], step=1, contributions=3)
    np.testing.assert_array_equal(answer, [3, 3, 3])
    apply_(Sum(), values, [answer], centre, [], step=2, contributions=3)
    np.testing.assert_array_equal(answer, [9, 9, 9])
    np.testing.assert_array_equal(centre, [9, 9, 9])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_elastic_together_conserves_and_is_its_equation(dtype):
    rng = np.random.default_rng(1)
    before, groups, alpha = rng.standard_normal(1000).astype(dtype), 3, 0.2
    weights = [rng.standard_normal(1000).astype(dtype) for _ in range(groups)]
    mean, total = np.mean(weights, axis=0), np.sum([before, *weights], axis=0)
    rule, centre, answers = ElasticTogether(alpha), before.copy(), [np.empty(1000, dtype) for _ in weights]
    apply_(rule, weights, answers, centre, [np.zeros(1000, dtype)], step=1, contributions=groups)
    for weight, answer in zip(weights, answers, strict=True):
        far = np.linalg.norm(weight - before) / np.linalg.norm(weight)
        assert rule.distance(weight, answer) == pytest.approx(far, rel=1e-5)
        rule.apply_answer_(weight, answer)
    np.testing.assert_allclose(centre, (1 - groups * alpha) * before + groups * alpha * mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.sum([centre, *weights], axis=0), total, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("groups", "tau"), [(1, 1), (2, 1), (2, 5), (4, 3)])
def test_elastic_groups_go_as_far_as_the_learning_rate_and_the_centre_let_them(groups, tau):
    """docs/algorithms.md: C / (C + 1) of the way, as the centre takes no gradient step."""
    rule, centre, weights = Elastic(0.9 / groups), np.zeros(1), [np.zeros(1) for _ in range(groups)]
    places = []
    for _ in range(200):
        for weight in weights:
            answer = np.empty(1)
            apply_(rule, [weight], [answer], centre, [], step=1, contributions=1)
            rule.apply_answer_(weight, answer)
            weight -= tau  # so many steps of gradient 1 and rate 1
        places.append(centre.item())
    assert (places[-1] - places[-51]) / (50 * tau) == pytest.approx(-groups / (groups + 1), rel=1e-6)


def test_outer_without_momentum_at_full_rate_is_the_mean():
    rng = np.random.default_rng(2)
    weights = [rng.standard_normal(100) for _ in range(3)]
    centre, answer = rng.standard_normal(100), np.empty(100)
    apply_(Outer(rate=1.0, momentum=0.0), weights, [answer], centre, [np.zeros(100)], step=1, contributions=3)
    np.testing.assert_allclose(centre, np.mean(weights, axis=0), rtol=1e-12)
    np.testing.assert_array_equal(answer, centre)


def test_outer_is_nesterov_on_the_difference():
    """As torch.optim.SGD(lr, momentum, nesterov=True) with centre - mean as the gradient."""
    rule, centre, velocity = Outer(rate=0.7, momentum=0.9), np.array([2.0]), np.zeros(1)
    expected, buffer = 2.0, 0.0
    for step, value in enumerate((1.0, -1.0, 0.5), 1):
        gradient = expected - value
        buffer = 0.9 * buffer + gradient
        expected -= 0.7 * (gradient + 0.9 * buffer)
        apply_(rule, [np.array([value])], [], centre, [velocity], step=step, contributions=1)
        assert centre[0] == pytest.approx(expected, rel=1e-12)


def test_adam_without_epsilon_divides_as_numpy_does():
    centre, state, answer = np.ones(4, np.float32), [np.zeros(4, np.float32) for _ in range(2)], np.empty(4, np.float32)
    apply_(Adam(epsilon=0.0), [np.zeros(4, np.float32)], [answer], centre, state, step=1, contributions=1)
    assert np.isnan(answer).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_update_stops_before_the_first_block_that_is_not_finite(value):
    values, centre = np.ones(2 * BLOCK + 100, np.float32), np.zeros(2 * BLOCK + 100, np.float32)
    values[BLOCK + 904] = value
    assert apply_(Sum(), [values], [values], centre, [], step=1, contributions=1, check_finite=True) == BLOCK
    assert centre.sum() == BLOCK
    assert Sum.transparent
    assert apply_(Sum(), [values], [values], centre, [], step=1, contributions=1) == 2 * BLOCK + 100
    assert np.array_equal(centre, values, equal_nan=True)


@pytest.mark.nightly  # `test_compiled_cache.py` has a function that compiles sooner
def test_a_second_process_loads_the_compiled_rule(tmp_path):
    program = "from hybridps.ps.rules import Elastic, warm_up; warm_up(Elastic(0.5), 'float32')"
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_DEBUG_CACHE": "1"}
    first, second = (
        subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
        for _ in range(2)
    )
    assert "data saved" in first.stdout, first.stderr
    assert "Elastic.update_.blocks" in second.stdout
    assert "data saved" not in second.stdout
