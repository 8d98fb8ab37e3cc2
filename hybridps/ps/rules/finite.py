"""Refusal of NaN and Inf: a contribution that has one would spoil the centre for good."""

from __future__ import annotations

import numpy as np

from hybridps.compiled import compiled
from hybridps.errors import ServerError


class NotFiniteError(ServerError):
    """A group's contribution has NaN or Inf, and the server did not use it."""


def is_finite(values: np.ndarray) -> bool:
    """Whether a flat array of float16, float32 or float64 has neither NaN nor Inf.

    The bits of NaN and Inf without the sign, read as an integer, are not below those of Inf. The largest integer is
    found with vector instructions; a sum of floats may not be reordered, and it may overflow.
    """
    bits = values.view(f"i{values.itemsize}")
    infinite = np.array(np.inf, values.dtype).view(bits.dtype)
    return bool(_largest_magnitude(bits, bits.dtype.type(np.iinfo(bits.dtype).max)) < infinite)


def check_finite(values: np.ndarray, what: str) -> None:
    """Raise NotFiniteError, which names the first element that is NaN or Inf."""
    if not is_finite(values):
        raise NotFiniteError(not_finite(values, what))


def not_finite(values: np.ndarray, what: str, begins: int = 0) -> str:
    """The message for a group that brought such `values` to `what`: they begin with its element number `begins`."""
    first = int(np.argmin(np.isfinite(values)))
    return (
        f"the values brought to {what} were refused: element {begins + first} is {values[first]}; the loss may diverge"
    )


@compiled
def _largest_magnitude(bits, without_sign):  # type: ignore[no-untyped-def]
    largest = bits.dtype.type(0)
    for i in range(bits.size):
        largest = max(largest, bits.dtype.type(bits[i] & without_sign))
    return largest
