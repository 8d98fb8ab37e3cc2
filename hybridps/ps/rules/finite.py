"""Refusal of NaN and Inf: a contribution that has one would spoil the centre for good."""

from __future__ import annotations

import numpy as np

from hybridps.compiled.finite import is_finite
from hybridps.errors import ServerError


class NotFiniteError(ServerError):
    """A group's contribution has NaN or Inf, and the server did not use it."""


def check_finite(values: np.ndarray, what: str) -> None:
    """Raise NotFiniteError, which names the first element that is NaN or Inf."""
    if not is_finite(values):
        raise NotFiniteError(not_finite(values, what))


def find_not_finite(values: np.ndarray) -> int:
    """The number of the first element that is NaN or Inf, of values that have some."""
    return int(np.argmin(np.isfinite(values)))


def not_finite(values: np.ndarray, what: str, begins: int = 0) -> str:
    """The message for a group that brought such `values` to `what`: they begin with its element number `begins`."""
    first = find_not_finite(values)
    return (
        f"the values brought to {what} were refused: element {begins + first} is {values[first]}; the loss may diverge"
    )


def refused_error(what: str) -> NotFiniteError:
    """The error for values that a server refused before it was killed, brought again."""
    return NotFiniteError(f"the values brought to {what} were refused: some are NaN or Inf; the loss may diverge")
