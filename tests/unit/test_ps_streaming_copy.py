"""Copies past the caches are copies: every byte, and no other, wherever the arrays begin."""

from __future__ import annotations

import numpy as np
import pytest

from hybridps.ps import streaming_copy
from hybridps.ps.streaming_copy import LEAST_BYTES, copy_, prepare

LINE = 64


@pytest.mark.parametrize("begin", [0, 1, 63])
@pytest.mark.parametrize("length", [0, 5, LEAST_BYTES - 1, LEAST_BYTES, LEAST_BYTES + 97])
def test_copies_exactly_the_target(begin: int, length: int) -> None:
    given = np.random.default_rng(length).integers(1, 256, length + 7).astype(np.uint8)
    memory = np.zeros(length + 3 * LINE, np.uint8)
    first = -memory.ctypes.data % LINE + begin
    assert (memory.ctypes.data + first) % LINE == begin
    copy_(memory[first : first + length], given[7:])
    assert np.array_equal(memory[first : first + length], given[7:])
    assert not memory[:first].any()
    assert not memory[first + length :].any()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_copies_what_came_in_a_message(dtype: str) -> None:
    message = np.arange(LEAST_BYTES, dtype=dtype).tobytes()
    target = np.zeros(LEAST_BYTES, dtype)
    copy_(target, np.frombuffer(message, dtype))
    assert target.tobytes() == message


def test_nothing_is_compiled_when_answers_come(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, target = streaming_copy._copy_lines_, np.zeros(LEAST_BYTES, np.uint8)
    prepare(LEAST_BYTES)
    known = list(lines.signatures)
    calls: list[int] = []
    monkeypatch.setattr(streaming_copy, "_copy_lines_", lambda to, address: (calls.append(to.size), lines(to, address)))
    copy_(target, np.frombuffer(bytes(LEAST_BYTES), np.uint8))
    copy_(target[1:], target[1:].copy())
    prepare(LEAST_BYTES - 1)
    assert calls == [LEAST_BYTES]
    assert lines.signatures == known
