"""A search for NaN and Inf."""

from __future__ import annotations

import numpy as np

from hybridps.compiled.compiler import compiled


def is_finite(values: np.ndarray) -> bool:
    """Return whether a flat array has neither NaN nor Inf. Arrays of integers never have.

    Without the sign, the bits of NaN and Inf, read as an integer, are at least those of Inf. Vector instructions find
    the largest integer. A sum of floats could not be reordered, and could overflow.
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
