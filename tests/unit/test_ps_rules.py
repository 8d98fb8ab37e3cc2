from __future__ import annotations

import numpy as np
import pytest

from hybridps.ps.rules import Elastic, Sum


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_elastic_does_not_round_alpha_to_the_dtype(dtype):
    rng = np.random.default_rng(0)
    value, centre = (rng.standard_normal(10_000).astype(dtype) for _ in range(2))
    wide = np.result_type(dtype, np.float32)
    expected = ((value - centre).astype(wide) * wide.type(0.1)).astype(dtype)
    total, after = np.empty_like(value), centre.copy()
    rule = Elastic(0.1)
    rule.arrive_(total, value, True)
    rule.complete_(after, total)
    np.testing.assert_array_equal(total, expected)
    np.testing.assert_array_equal(after, centre + expected)


def test_sum_takes_the_first_as_it_is():
    total, centre = np.full(3, np.nan, np.float32), np.zeros(3, np.float32)
    for first, value in ((True, 1), (False, 2), (False, 4)):
        Sum().arrive_(total, np.full(3, value, np.float32), first)
    Sum().complete_(centre, total)
    np.testing.assert_array_equal(centre, [7, 7, 7])
    np.testing.assert_array_equal(total, [7, 7, 7])
