"""Codecs against NumPy's casts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hybridps.codecs import CODECS, codec_of
from hybridps.errors import ConfigError, LayoutError

HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
"""All of them."""

PAIRS = [(codec, dtype) for codec in CODECS.values() for dtype in codec.dtypes]

FLOATS = st.sampled_from(("float32", "float64")).flatmap(
    lambda dtype: arrays.arrays(dtype, st.integers(0, 50), elements=st.floats(width=int(dtype[5:])))
)


def payload_of(name: str, values: np.ndarray) -> np.ndarray:
    codec = CODECS[name]
    payload = np.empty(codec.nbytes(values.size, values.dtype), np.uint8)
    codec.encode(values, payload)
    return payload


def assert_same_halves(found: np.ndarray, wanted: np.ndarray) -> None:
    """The same bits, but that any NaN is as good as another."""
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found.view(np.uint16)[~nan], wanted.view(np.uint16)[~nan])


def cast(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return values.astype(np.float16)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_float16_rounds_as_numpy_between_all_neighbours(dtype: str) -> None:
    """Every tie, and the values beside it: subnormals, overflow and both zeros among them."""
    positive = HALVES[:0x7C00].astype(dtype)
    ties = np.append((positive[:-1] + positive[1:]) / 2, 65520).astype(dtype)
    beside = [np.nextafter(ties, np.array(towards, dtype)) for towards in (-np.inf, np.inf)]
    values = np.concatenate([positive, ties, *beside, np.array([np.inf, np.nan, 1e30], dtype)])
    values = np.concatenate([values, -values])
    assert_same_halves(payload_of("float16", values).view(np.float16), cast(values))


@given(FLOATS)
def test_float16_rounds_as_numpy(values: np.ndarray) -> None:
    assert_same_halves(payload_of("float16", values).view(np.float16), cast(values))


def test_float16_rounds_float64_once() -> None:
    """As float32 this value is a tie, which would go down; it lies above the tie."""
    value = np.array([1 + 2.0**-11 + 2.0**-40])
    assert payload_of("float16", value).view(np.float16)[0] == np.float16(1 + 2.0**-10)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_float16_decodes_as_numpy(dtype: str) -> None:
    out = np.empty(HALVES.size, dtype)
    CODECS["float16"].decode(HALVES.view(np.uint8), out)
    np.testing.assert_array_equal(out, HALVES.astype(dtype))
    np.testing.assert_array_equal(np.signbit(out), np.signbit(HALVES))


@pytest.mark.parametrize(("codec", "dtype"), PAIRS, ids=lambda value: getattr(value, "name", value))
def test_payloads_may_be_read_only_and_unaligned(codec, dtype: str) -> None:
    values = np.arange(-50, 50).astype(dtype)
    payload = payload_of(codec.name, values)
    shifted = np.empty(payload.size + 1, np.uint8)[1:]
    shifted[:] = payload
    for given_payload in (
        payload,
        payload.tobytes(),
        memoryview(payload),
        memoryview(b"x" + payload.tobytes())[1:],
        shifted,
    ):
        out = np.zeros(values.size, dtype)
        codec.decode(given_payload, out)
        np.testing.assert_array_equal(out, values)
        codec.add(given_payload, out)
        np.testing.assert_array_equal(out, 2 * values)


@pytest.mark.parametrize(("codec", "dtype"), PAIRS, ids=lambda value: getattr(value, "name", value))
def test_nothing_is_encoded_as_nothing(codec, dtype: str) -> None:
    codec.prepare()
    codec.decode(payload_of(codec.name, np.zeros(0, dtype)), np.zeros(0, dtype))
    assert codec.nbytes(0, dtype) == 0


@given(FLOATS)
def test_exact_keeps_the_bits(values: np.ndarray) -> None:
    out = np.empty_like(values)
    CODECS["exact"].decode(payload_of("exact", values), out)
    assert out.tobytes() == values.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bfloat16_rounds_to_the_nearest(dtype: str) -> None:
    """All neighbours, the ties between them, which go to the even one, and the values beside the ties."""
    brains = np.arange(0x7F80, dtype=np.uint32)
    exact = (brains << 16).view(np.float32).astype(dtype)
    ties = exact[:-1] + (exact[1:] - exact[:-1]) / 2
    for values, wanted in (
        (exact, brains),
        (ties, brains[:-1] + brains[:-1] % 2),
        (np.nextafter(ties, np.array(-np.inf, dtype)), brains[:-1]),
        (np.nextafter(ties, np.array(np.inf, dtype)), brains[1:]),
    ):
        np.testing.assert_array_equal(payload_of("bfloat16", values).view(np.uint16), wanted)
        np.testing.assert_array_equal(payload_of("bfloat16", -values).view(np.uint16), wanted + 0x8000)
    out = np.empty_like(exact)
    CODECS["bfloat16"].decode(payload_of("bfloat16", exact), out)
    np.testing.assert_array_equal(out, exact)
    odd = payload_of("bfloat16", np.array([np.inf, -np.inf, np.nan], dtype))
    CODECS["bfloat16"].decode(odd, out[:3])
    np.testing.assert_array_equal(out[:3], [np.inf, -np.inf, np.nan])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="'float8' is unknown: use one of exact, float16"):
        codec_of("float8")
    half = codec_of("float16")
    for operation in (
        lambda: half.encode(np.zeros(3), np.zeros(5, np.uint8)),
        lambda: half.decode(b"123", np.zeros(3)),
    ):
        with pytest.raises(LayoutError, match="3 values of float64 take 6 bytes with the codec 'float16', not [35]"):
            operation()
    with pytest.raises(LayoutError, match="'float16' does not take int32: use one of float32, float64"):
        half.nbytes(3, "int32")
