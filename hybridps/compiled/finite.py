"""Whether arrays have NaN or Inf."""

from __future__ import annotations

import numpy as np

from hybridps.compiled.compiler import compiled


def is_finite(values: np.ndarray) -> bool:
    """Whether a flat array has neither NaN nor Inf. One of integers never has.

    The bits of NaN and Inf without the sign, read as an integer, are not below those of Inf. The largest integer is
    found with vector instructions; a sum of floats may not be reordered, and it may overflow.
    """
    if values.dtype.kind != "f":
        return True
    bits = values.view(f"i{values.itemsize}")
    infinite = np.array(np.inf, values.dtype).view(bits.dtype)
    return bool(_largest_magnitude(bits, bits.dtype.type(np.iinfo(bits.dtype).max)) < infinite)


@compiled
def _largest_magnitude(bits, without_sign):  # type: ignore[no-untyped-def]
    largest = bits.dtype.type(0)
    for i in range(bits.size):
        largest = max(largest, bits.dtype.type(bits[i] & without_sign))
    return largest
