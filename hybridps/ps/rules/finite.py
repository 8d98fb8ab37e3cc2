"""Refusal of NaN and Inf. A contribution with NaN or Inf would spoil the centre permanently."""

from __future__ import annotations

import numpy as np

from hybridps.compiled.finite import is_finite
from hybridps.errors import ServerError


class NotFiniteError(ServerError):
    """A group's contribution has NaN or Inf, and the server did not use it."""


def check_finite(values: np.ndarray, what: str) -> None:
    """Raise NotFiniteError, which names the first element, if any element is NaN or Inf."""
    if not is_finite(values):
        raise NotFiniteError(not_finite(values, what))


def find_not_finite(values: np.ndarray) -> int:
    """Return the number of the first element that is NaN or Inf. There must be one."""
    return int(np.argmin(np.isfinite(values)))


def not_finite(values: np.ndarray, what: str, begins: int = 0) -> str:
    """Return the message for a group whose `values` for `what` were refused. They begin with element `begins`."""
    first = find_not_finite(values)
    return (
        f"the values brought to {what} were refused: element {begins + first} is {values[first]}; the loss may diverge"
    )


def refused_error(what: str) -> NotFiniteError:
    """Return the error for values that are sent again after a server refused them and was then killed."""
    return NotFiniteError(f"the values brought to {what} were refused: some are NaN or Inf; the loss may diverge")
