"""Copies past the caches are copies: every byte, and no other, wherever the arrays begin."""

from __future__ import annotations

import numpy as np
import pytest

from hybridps.ps.uncached import LEAST_BYTES, copy_


@pytest.mark.parametrize("begin", [0, 1, 63])
@pytest.mark.parametrize("length", [0, 5, LEAST_BYTES - 1, LEAST_BYTES, LEAST_BYTES + 97])
def test_copies_exactly_the_target(begin: int, length: int) -> None:
    given = np.random.default_rng(length).integers(1, 256, LEAST_BYTES + 256).astype(np.uint8)
    memory = np.zeros_like(given)
    copy_(memory[begin : begin + length], given[7 : 7 + length])
    assert np.array_equal(memory[begin : begin + length], given[7 : 7 + length])
    assert not memory[:begin].any()
    assert not memory[begin + length :].any()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_copies_what_came_in_a_message(dtype: str) -> None:
    message = np.arange(LEAST_BYTES, dtype=dtype).tobytes()
    target = np.zeros(LEAST_BYTES, dtype)
    copy_(target, np.frombuffer(message, dtype))
    assert target.tobytes() == message
