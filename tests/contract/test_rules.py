"""What every rule does: its bits are those of its equation in NumPy, for any number of groups and any length."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from hybridps.errors import HybridPSError
from hybridps.memory import Layout
from hybridps.ps import wire
from hybridps.ps.clocks import BoundedStale, BulkSynchronous, FreeRunning
from hybridps.ps.model import TableSpec
from hybridps.ps.rules import (
    SGD,
    Adam,
    AnyRule,
    Elastic,
    ElasticTogether,
    Foreign,
    Mean,
    Momentum,
    Nesterov,
    Outer,
    Sum,
    add_up_,
    apply_,
)
from hybridps.ps.rules.kernel import BLOCK

RULES = [
    Sum(),
    Mean(),
    SGD(rate=0.1, rescale=0.25, weight_decay=1e-3),
    Momentum(rate=0.1, rescale=0.25, weight_decay=1e-3),
    Nesterov(rate=0.1, rescale=0.25, weight_decay=1e-3),
    Adam(rate=0.01, rescale=0.25, weight_decay=1e-3),
    SGD(rate=0.1, rescale=0.25, weight_decay=1e-3, clip=0.1),
    Momentum(rate=0.1, rescale=0.25, weight_decay=1e-3, clip=0.1),
    Nesterov(rate=0.1, rescale=0.25, weight_decay=1e-3, clip=0.1),
    Adam(rate=0.01, rescale=0.25, weight_decay=1e-3, clip=0.1, update=5),
    Elastic(0.3),
    ElasticTogether(0.3),
    Outer(),
]


def sum_(total, centre, state, groups):
    centre[:] = total
    return centre


def mean(total, centre, state, groups):
    centre[:] = total / groups
    return centre


def sgd(g, w, state, rate, rescale, decay, clip):
    w -= rate * (np.clip(rescale * g, -clip, clip) + decay * w)
    return w


def momentum(g, w, state, rate, rescale, decay, clip, momentum):
    state[0][:] = momentum * state[0] - rate * (np.clip(rescale * g, -clip, clip) + decay * w)
    w += state[0]
    return w


def nesterov(g, w, state, rate, rescale, decay, clip, momentum):
    scaled = np.clip(rescale * g, -clip, clip)
    kept, down = momentum * state[0], rate * (scaled + decay * w)
    w += momentum * (kept - down) - down
    state[0][:] = kept - rate * (scaled + decay * w)
    return w


def adam(g, w, state, rate, rescale, decay, clip, beta1, beta2, rest1, rest2, epsilon):
    m, v = state
    h = np.clip(rescale * g + decay * w, -clip, clip)
    m[:] = beta1 * m + rest1 * h
    v[:] = beta2 * v + rest2 * h * h
    w -= rate * m / (np.sqrt(v) + epsilon)
    return w


def elastic(total, centre, state, alpha, groups):
    d = times(total - centre, alpha)
    centre += d
    return d


def elastic_together(total, centre, state, alpha, groups):
    before = centre.copy()
    wide = np.result_type(centre.dtype, np.float32)
    change = (total - before * np.full(1, groups, wide)) * np.full(1, alpha, wide)
    centre[:] = (before + change).astype(centre.dtype)
    state[0][:] = before
    return before


def outer(total, centre, state, rate, momentum, groups):
    d = centre - total / groups
    state[0][:] = momentum * state[0] + d
    centre -= rate * (d + momentum * state[0])
    return centre


def times(array, number):
    """The product in at least float32, rounded to the array's dtype."""
    return (array * np.full(1, number, np.result_type(array.dtype, np.float32))).astype(array.dtype)


EQUATIONS = {
    Sum: sum_,
    Mean: mean,
    SGD: sgd,
    Momentum: momentum,
    Nesterov: nesterov,
    Adam: adam,
    Elastic: elastic,
    ElasticTogether: elastic_together,
    Outer: outer,
}
LENGTHS = (0, 1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 13)
ROUNDS = 4


def test_every_rule_is_here():
    """But for those that a framework computes."""
    assert {type(rule) for rule in RULES} == set(AnyRule.__args__) - {Foreign}


def groups_of(rule):
    return (1,) if rule.separate else (1, 2, 3, 4, 5, 7)


def numpy_round(rule, sources, centre, state, step):
    """The round by the rule's equation; returns the answer."""
    total = sources[0].copy()
    for source in sources[1:]:
        total += source
    wide = np.result_type(centre.dtype, np.float32).type
    return EQUATIONS[type(rule)](total, centre, state, *map(wide, rule.numbers(step, len(sources)))).copy()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("dtype", ["float16", "float32", pytest.param("float64", marks=pytest.mark.nightly)])
def test_compiled_and_numpy_have_the_same_bits(rule, dtype):
    if dtype not in rule.dtypes:
        pytest.skip(f"{type(rule).__name__} is not computed in {dtype}")
    rng = np.random.default_rng(0)
    for length in LENGTHS:
        for groups in groups_of(rule):
            centre = rng.standard_normal(length).astype(dtype)
            state = [np.zeros(length, dtype) for _ in range(rule.states)]
            expected, memory = centre.copy(), [array.copy() for array in state]
            for step in range(1, ROUNDS + 1):
                sources = [rng.standard_normal(length).astype(dtype) for _ in range(groups)]
                answer = numpy_round(rule, sources, expected, memory, step)
                apart = np.empty(length, dtype)
                # Each group's values are overwritten by the answer, as in shared memory.
                apply_(rule, sources, [*sources, apart], centre, state, step=step, contributions=groups)
                for found in (*sources, apart):
                    np.testing.assert_array_equal(found, answer)
                np.testing.assert_array_equal(centre, expected)
                for found, wanted in zip(state, memory, strict=True):
                    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_nothing_but_the_chunk_is_touched(rule):
    guard, length = 64, 5000
    arrays = [np.full(length + 2 * guard, 3, np.float32) for _ in range(3 + rule.states)]
    chunk = [array[guard:-guard] for array in arrays]
    source, target, centre, *state = chunk
    apply_(rule, [source], [target], centre, state, step=1, contributions=1)
    for array in arrays:
        assert (array[:guard] == 3).all()
        assert (array[-guard:] == 3).all()
    assert (source == 3).all()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_sums_made_before_change_no_bit(rule):
    """Values that are streamed are added up four at a time, and the rest at the end."""
    if rule.separate:
        pytest.skip("every value is a round of its own")
    rng = np.random.default_rng(1)
    sources = [rng.standard_normal(999).astype(np.float32) for _ in range(9)]
    results = []
    for streamed in (0, 4, 8):
        total = np.empty(999, np.float32)
        left = sources
        for begin in range(0, streamed, 4):
            add_up_(total, [total] * bool(begin) + sources[begin : begin + 4])
            left = [total, *sources[begin + 4 :]]
        centre, state = np.ones(999, np.float32), [np.ones(999, np.float32) for _ in range(rule.states)]
        apply_(rule, left, [], centre, state, step=3, contributions=9)
        results.append((centre, state))
    for centre, state in results[1:]:
        np.testing.assert_array_equal(centre, results[0][0])
        np.testing.assert_array_equal(state, results[0][1])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_replacing_answer_is_absorbed_as_it_is(rule):
    values, answer = np.arange(5, dtype=np.float32), np.full(5, 2, np.float32)
    expected = answer.copy()
    rule.apply_answer_(values, answer)
    assert np.array_equal(values, expected) == rule.answer_is_new_value


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("clock", [BulkSynchronous(), BoundedStale(2), FreeRunning()], ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_terms_travel_or_are_refused(rule, clock, dtype):
    spec = TableSpec(Layout.of(dtype, {"w": (5,)}), rule, clock, 1024, 0, 1)
    if isinstance(clock, rule.clocks) and dtype in rule.dtypes:
        spec.check()
    else:
        with pytest.raises(HybridPSError, match=type(rule).__name__):
            spec.check()
    request = wire.Register(1, "w", spec, False)
    assert msgspec.msgpack.decode(wire.encode(request), type=wire.Request) == request
