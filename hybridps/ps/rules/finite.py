"""Whether values are numbers: one NaN or Inf in a push would be in the centre for ever."""

from __future__ import annotations

import numpy as np

from hybridps.compiled import compiled
from hybridps.errors import ServerError


class NotFiniteError(ServerError):
    """Values that a group brought have NaN or Inf; the server did not use them."""


def is_finite(values: np.ndarray) -> bool:
    """Whether a flat array of float16, float32 or float64 has neither NaN nor Inf.

    Their exponent is all ones, so that without the sign their bits are not below those of Inf, read as an integer. The
    largest of integers is found with vector instructions; a sum of floats may not be reordered, and may overflow.
    """
    bits = values.view(f"i{values.itemsize}")
    infinite = np.array(np.inf, values.dtype).view(bits.dtype)
    return bool(_largest_magnitude(bits, bits.dtype.type(np.iinfo(bits.dtype).max)) < infinite)


def check_finite(values: np.ndarray, what: str) -> None:
    """Raise NotFiniteError, with the first element that is none."""
    if not is_finite(values):
        raise NotFiniteError(not_finite(values, what))


def not_finite(values: np.ndarray, what: str, start: int = 0) -> str:
    """What to tell the group that brought such values, the first of them at `start` or behind it."""
    first = start + int(np.argmin(np.isfinite(values[start:])))
    return (
        f"the values brought to {what} were refused: element {first} of it is {values[first]}; "
        "look for a loss that diverges, or let servers take such values with HYBRIDPS_CHECK_FINITE=false"
    )


@compiled
def _largest_magnitude(bits, without_sign):  # type: ignore[no-untyped-def]
    largest = bits.dtype.type(0)
    for i in range(bits.size):
        largest = max(largest, bits.dtype.type(bits[i] & without_sign))
    return largest
