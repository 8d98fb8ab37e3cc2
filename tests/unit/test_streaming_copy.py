"""Copies past the caches are copies: every byte, and no other, wherever the arrays begin."""

from __future__ import annotations

import numpy as np
import pytest

from hybridps.compiled import streaming_copy
from hybridps.compiled.streaming_copy import LEAST_BYTES, copy_, prepare

LINE = 64


@pytest.mark.parametrize("begin", [0, 1, 63])
@pytest.mark.parametrize("length", [0, 5, 64, 1000, 4096, 100_000])
@pytest.mark.parametrize("whole", [0, LEAST_BYTES])
def test_copies_exactly_the_target(begin: int, length: int, whole: int) -> None:
    given = np.random.default_rng(length).integers(1, 256, length + 7).astype(np.uint8)
    memory = np.zeros(length + 3 * LINE, np.uint8)
    first = -memory.ctypes.data % LINE + begin
    assert (memory.ctypes.data + first) % LINE == begin
    copy_(memory[first : first + length], given[7:], whole)
    assert np.array_equal(memory[first : first + length], given[7:])
    assert not memory[:first].any()
    assert not memory[first + length :].any()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_copies_what_came_in_a_message(dtype: str) -> None:
    message = np.arange(1000, dtype=dtype).tobytes()
    target = np.zeros(1000, dtype)
    copy_(target, np.frombuffer(message, dtype), LEAST_BYTES)
    assert target.tobytes() == message


def test_nothing_is_compiled_when_answers_come(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, target = streaming_copy._copy_lines_, np.zeros(64, np.uint8)
    prepare(LEAST_BYTES)
    known = list(lines.signatures)
    calls: list[int] = []
    monkeypatch.setattr(streaming_copy, "_copy_lines_", lambda to, address: (calls.append(to.size), lines(to, address)))
    copy_(target, np.frombuffer(bytes(64), np.uint8), LEAST_BYTES)
    copy_(target, np.frombuffer(bytes(64), np.uint8), LEAST_BYTES - 1)
    prepare(LEAST_BYTES - 1)
    assert calls == [64]
    assert lines.signatures == known
