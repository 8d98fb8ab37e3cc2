"""Which rank has been silent, and for how long, as seen by the rank that watches."""

from __future__ import annotations

import ctypes
import time

import numpy as np

from hybridps.tensor_collectives.signs_of_life import _Beats, _Silences


def silences(*watched: bool) -> _Silences:
    return _Silences(np.array(watched), 1.0, 0.0)


def test_only_a_rank_whose_word_stays_is_silent() -> None:
    seen = silences(True, True, True)
    for now in range(1, 11):
        seen.look(np.array([now, min(now, 4), 2 * now]), float(now))
    assert seen.longest() == (1, 6.0)
    seen.look(np.array([11, 5, 22]), 11.0)
    assert seen.longest()[1] == 0.0


def test_a_few_signs_of_life_may_be_late() -> None:
    seen = silences(True, True)
    words = np.array([1, 1])
    seen.look(words, 1.0)
    found = []
    for now in (2.0, 3.0, 4.0):
        seen.look(words, now)
        found.append(seen.longest()[1])
    assert found == [0.0, 0.0, 3.0]


def test_who_was_stopped_itself_accuses_nobody() -> None:
    """All were stopped for 100 s, and the one that looks is the first to go on."""
    seen = silences(True, True)
    seen.look(np.array([1, 1]), 1.0)
    seen.look(np.array([2, 1]), 101.0)
    assert seen.longest()[1] == 0.0


def test_ranks_that_are_not_watched_are_never_silent() -> None:
    seen = silences(True, False)
    for now in range(1, 20):
        seen.look(np.array([now, 0]), float(now))
    assert seen.longest()[1] == 0.0


def test_signs_of_life_need_no_python() -> None:
    words = np.zeros(16, np.int64)
    beats = _Beats(words, 8, 0.01)
    try:
        end = time.monotonic() + 20
        while not words[8]:
            assert time.monotonic() < end
            time.sleep(0.01)
        before = words[8]
        ctypes.PyDLL(None).usleep(500_000)  # holds the interpreter's lock
        assert words[8] > before + 5
        assert not words[:8].any()
        assert not words[9:].any()
    finally:
        beats.stop()
    after = words[8]
    time.sleep(0.05)
    assert words[8] == after
