"""Arrays that travel from one group to another."""

from __future__ import annotations

import numpy as np
import pytest

from hybridps.errors import HybridPSError, LayoutError
from hybridps.packing import pack_arrays, read_arrays, unpack_arrays

ARRAYS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "../epoch": np.array([7]), "none": np.zeros((0, 2))}


def test_arrays_come_back_as_they_were() -> None:
    found = read_arrays(pack_arrays(ARRAYS))
    assert {name: (each.dtype, each.tolist()) for name, each in found.items()} == {
        name: (each.dtype, each.tolist()) for name, each in ARRAYS.items()
    }


@pytest.mark.parametrize("other", [{"w": ARRAYS["w"]}, ARRAYS | {"w": np.zeros(6, np.float32)}])
def test_other_arrays_change_nothing(other: dict[str, np.ndarray]) -> None:
    before = {name: each.copy() for name, each in other.items()}
    with pytest.raises(LayoutError, match="give the same arrays"):
        unpack_arrays(pack_arrays(ARRAYS), other)
    for name, each in other.items():
        np.testing.assert_array_equal(each, before[name])


def test_what_is_incomplete_says_that_the_group_has_died() -> None:
    content = pack_arrays({"w": np.random.default_rng(0).normal(size=1000)})
    half = len(content) // 2
    for damaged in (
        b"",
        bytes(len(content)),
        content[:half],
        content[:half] + bytes(len(content) - half),
        content[:1000] + bytes(64) + content[1064:],
    ):
        with pytest.raises(HybridPSError, match="has died meanwhile"):
            read_arrays(damaged)
