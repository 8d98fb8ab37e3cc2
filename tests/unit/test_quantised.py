"""Gradient compression: quantising with error feedback, and the packed form of what is left."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridps.algorithms import MpiSGD, choose_row, make_algorithm
from hybridps.codecs import CodecSpec, Encoded, Quantised, Residuals, codec_of, decoded, spec_for
from hybridps.config import Settings
from hybridps.errors import ConfigError, LayoutError
from hybridps.memory import Layout
from hybridps.mpi_groups import SoloGroup, ThreadGroup
from hybridps.ps.rules import add_up_
from hybridps.tensor_collectives import Levels
from hybridps.tiers import NoTier

BITS = st.sampled_from((1, 2))
WORKERS = st.sampled_from((1, 2, 3, 7, 8, 127))
FLOATS = st.sampled_from(("float32", "float64"))


def expected_(bits: int, threshold: float, gradient: np.ndarray, residual: np.ndarray) -> np.ndarray:
    """The equations of MXNet, in NumPy: what is contributed. `residual` changes."""
    t, one = gradient.dtype.type(threshold), gradient.dtype.type(1)
    residual += gradient
    if bits == 2:
        sent = np.where(residual >= t, t, np.where(residual <= -t, -t, 0 * t))
    else:
        sent = np.where(residual > t, one, -one)
    residual -= sent
    return sent


@settings(deadline=None)  # the first example compiles
@given(BITS, FLOATS, st.integers(1, 70), st.floats(1e-3, 2), st.integers(0, 1 << 30))
def test_quantised_as_mxnet_does_with_spans_that_begin_anywhere(
    bits: int, dtype: str, length: int, threshold: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    residuals, residual = Residuals(Quantised(bits, threshold)), np.zeros(length, dtype)
    residuals.add("w", length, dtype)
    for _ in range(4):
        gradient = rng.standard_normal(length).astype(dtype)
        found, middle = gradient.copy(), int(rng.integers(0, length + 1))
        residuals.quantise_("w", [found[middle:]], middle)
        residuals.quantise_("w", [found[:middle]], 0)
        np.testing.assert_array_equal(found, expected_(bits, threshold, gradient, residual))


def test_nothing_is_lost_in_the_long_run() -> None:
    residuals, total = Residuals(Quantised(2, 0.25)), np.zeros(100, np.float32)
    residuals.add("w", 100, "float32")
    gradient = np.linspace(-0.2, 0.2, 100, dtype=np.float32)
    for _ in range(50):
        sent = gradient.copy()
        residuals.quantise_("w", [sent], 0)
        total += sent
    np.testing.assert_allclose(total, 50 * gradient, atol=0.25)


def test_devices_are_added_up_exactly_before() -> None:
    residuals = Residuals(Quantised(2, 0.5))
    residuals.add("w", 3, "float32")
    vectors = [np.array([0.2, 0.6, -0.6], np.float32), np.array([0.35, -0.6, -0.6], np.float32)]
    residuals.quantise_("w", vectors, 0)
    np.testing.assert_array_equal(vectors[0], np.array([0.5, 0, -0.5], np.float32))
    assert not vectors[1].any()


def test_what_is_not_finite_does_not_stay() -> None:
    """MXNet keeps it for ever: an element that was NaN once contributes nothing any more."""
    residuals = Residuals(Quantised(2, 0.5))
    residuals.add("w", 3, "float32")
    first = np.array([np.nan, np.inf, -np.inf], np.float32)
    residuals.quantise_("w", [first], 0)
    np.testing.assert_array_equal(first, np.array([0, 0.5, -0.5], np.float32))
    second = np.array([0.7, 0, 0], np.float32)
    residuals.quantise_("w", [second], 0)
    np.testing.assert_array_equal(second, np.array([0.5, 0, 0], np.float32))


def multiples(spec: Quantised, length: int, dtype: str, rng: np.random.Generator) -> np.ndarray:
    """What a group of so many workers contributes."""
    has_zero = spec.bits == 2 or spec.workers > 1
    steps = rng.integers(-spec.workers, spec.workers + 1, length) if has_zero else rng.choice((-1, 1), length)
    return steps.astype(dtype) * np.dtype(dtype).type(spec.unit)


@settings(deadline=None)
@given(BITS, WORKERS, FLOATS, st.integers(0, 70), st.sampled_from((0.5, 0.1, 1 / 3)), st.integers(0, 1 << 30))
def test_packed_values_keep_their_bits_and_are_cut_anywhere(
    bits: int, workers: int, dtype: str, length: int, threshold: float, seed: int
) -> None:
    rng, spec = np.random.default_rng(seed), Quantised(bits, threshold, workers)
    codec, values = codec_of(spec), multiples(spec, length, dtype, rng)
    payload = np.empty(codec.nbytes(length, dtype), np.uint8)
    codec.encode(values, payload)
    out = np.empty_like(values)
    codec.decode(payload.tobytes(), out)
    np.testing.assert_array_equal(out, values)
    codec.add(payload, out)
    np.testing.assert_array_equal(out, 2 * values)
    start, stop = sorted(int(edge) for edge in rng.integers(0, length + 1, 2))
    part = Encoded(codec, payload, length, values.dtype)[start:stop]
    np.testing.assert_array_equal(decoded(part), values[start:stop])
    np.testing.assert_array_equal(decoded(part[1:]), values[start:stop][1:])
    if stop > start:
        total, plain = np.empty(stop - start, dtype), rng.standard_normal(stop - start).astype(dtype)
        add_up_(total, [plain, part, part])
        np.testing.assert_array_equal(total, (plain + values[start:stop]) + values[start:stop])
        add_up_(total, [part, plain])
        np.testing.assert_array_equal(total, values[start:stop] + plain)


@pytest.mark.parametrize(
    ("bits", "workers", "elements", "nbytes"),
    [(1, 1, 17, 3), (2, 1, 17, 5), (1, 2, 17, 9), (2, 7, 17, 9), (2, 8, 17, 17), (1, 127, 17, 17), (2, 128, 17, 68)],
)
def test_packed_sizes(bits: int, workers: int, elements: int, nbytes: int) -> None:
    assert codec_of(Quantised(bits, 0.5, workers)).nbytes(elements, "float32") == nbytes


def test_answers_are_exact_and_memory_may_be_shared() -> None:
    packed, half = codec_of(Quantised(2, 0.5)), codec_of("float16")
    assert packed.answers.exact
    assert packed.shares
    assert half.answers is half
    assert not half.shares


def test_other_values_become_the_nearest_multiple() -> None:
    codec = codec_of(Quantised(2, 0.5, 2))
    values = np.array([0.2, 0.3, -0.74, 7, -7], np.float32)
    payload, out = np.empty(codec.nbytes(5, "float32"), np.uint8), np.empty_like(values)
    codec.encode(values, payload)
    codec.decode(payload, out)
    np.testing.assert_array_equal(out, np.array([0, 0.5, -0.5, 1, -1], np.float32))


def test_codes_that_stand_for_nothing_are_zero() -> None:
    out = np.ones(8, np.float32)
    codec_of(Quantised(2, 0.5)).decode(b"\xff\xff", out)
    assert not out.any()


def test_payloads_of_another_size_and_other_dtypes_are_refused() -> None:
    codec = codec_of(Quantised(2, 0.5))
    with pytest.raises(LayoutError, match="5 values of float32 take 2 bytes with the codec '2bit', not 1"):
        codec.decode(b"x", np.zeros(5, np.float32))
    with pytest.raises(LayoutError, match="'2bit' does not take float16"):
        codec.nbytes(5, "float16")
    assert spec_for(Quantised(2, 0.5), "float16") == "exact"
    assert spec_for(Quantised(2, 0.5), "float32") == Quantised(2, 0.5)


@pytest.mark.parametrize(
    ("bits", "threshold", "workers"),
    [(2, 0.0, 1), (2, -1.0, 1), (2, float("nan"), 1), (1, float("inf"), 1), (3, 0.5, 1), (2, 0.5, 0), (2, 1e31, 1)],
)
def test_what_comes_in_a_message_is_checked(bits: int, threshold: float, workers: int) -> None:
    told = msgspec.msgpack.encode({"bits": bits, "threshold": threshold, "workers": workers})
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(told, type=CodecSpec)


def test_specs_travel() -> None:
    for spec in ("exact", "bfloat16", Quantised(1, -0.5, 3)):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=CodecSpec) == spec


def test_each_worker_of_a_group_quantises_before_the_sum() -> None:
    def work(group: ThreadGroup) -> None:
        levels = Levels(group, [0, 0])
        algorithm = MpiSGD(levels, NoTier(group))
        algorithm.compress(Quantised(2, 0.5, 2))
        floats, integers = Layout.of("float32", {"w": (100,)}), Layout.of("int32", {"n": (3,)})
        algorithm.join_gradients("floats", floats)
        algorithm.join_gradients("integers", integers)
        gradients, counts = levels.tensor(floats.length, "float32"), levels.tensor(integers.length, "int32")
        residuals = [np.zeros(floats.length, np.float32) for _ in range(2)]
        for step in range(3):
            each = [
                np.random.default_rng([step, rank]).standard_normal(floats.length).astype("float32") for rank in (0, 1)
            ]
            gradients.vectors[0][:], counts.vectors[0][:] = each[group.rank], 7
            group.barrier()
            algorithm.reduce_("floats", gradients, 0, 37)
            algorithm.reduce_("floats", gradients, 37, floats.length)
            algorithm.reduce_("integers", counts, 0, integers.length)
            sent = [expected_(2, 0.5, *of) for of in zip(each, residuals, strict=True)]
            np.testing.assert_array_equal(gradients.vectors[0], sent[0] + sent[1])
            assert (counts.vectors[0] == 14).all()
            group.barrier()

    ThreadGroup.run(2, work)


def test_ranks_that_compress_differently_are_told_on_both() -> None:
    def work(group: ThreadGroup) -> None:
        algorithm = MpiSGD(Levels(group, [0, 0]), NoTier(group))
        algorithm.compress(Quantised(1, 0.5 + group.rank, 2))
        with pytest.raises(LayoutError, match="threshold=1.5.*threshold=0.5.*the same gradient compression"):
            algorithm.join_gradients("w", Layout.of("float32", {"w": (3,)}))

    ThreadGroup.run(2, work)


def test_weights_are_not_compressed() -> None:
    row = choose_row("elastic", Settings(), 1, False, None, None)
    elastic = make_algorithm(row, Levels(SoloGroup(), [0]), NoTier(SoloGroup()), workers=1)
    with pytest.raises(ConfigError, match="elastic sends weights"):
        elastic.compress(Quantised(2, 0.5))
