"""Straight lines fitted to measured times, and their residuals."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from hybridps.errors import OracleError


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """seconds = `start_seconds` + `seconds_per_unit` * units, where a unit is a byte, an image, or the like."""

    start_seconds: float
    seconds_per_unit: float
    residual: float = 0.0
    """The root mean square of (measured - line) / measured over the fitted points."""

    def __call__(self, units: float) -> float:
        return self.start_seconds + self.seconds_per_unit * units

    def scaled(self, factor: float) -> Line:
        """Return the line of `factor` times these seconds."""
        return Line(factor * self.start_seconds, factor * self.seconds_per_unit, self.residual)


def fit_cost(nbytes: Sequence[float], seconds: Sequence[float]) -> Line:
    """Fit the cost of messages, a + b bytes.

    If noise makes a negative, or b not positive, a is 0 and b is the mean time of a byte. Raises OracleError as
    `fit_line`.
    """
    line = fit_line(nbytes, seconds)
    if line.start_seconds >= 0 and line.seconds_per_unit > 0:
        return line
    return Line(0.0, sum(seconds) / sum(nbytes))


def fit_line(units: Sequence[float], seconds: Sequence[float], *, relative: bool = False) -> Line:
    """Fit the least-squares line. `relative` weighs each point with 1 / seconds, for sizes over orders of magnitude.

    Raises OracleError if there are fewer than two different `units`, which determine no line.
    """
    x, y = np.asarray(units, float), np.asarray(seconds, float)
    if len(np.unique(x)) < 2:
        raise OracleError(
            f"a start-up time and a time per unit cannot be told apart: {len(x)} points with "
            f"{len(np.unique(x))} different sizes, at least 2 are needed"
        )
    if relative and not (y > 0).all():
        raise OracleError(f"a relative fit needs positive times; the smallest is {y.min():g} s")
    slope, start = np.polyfit(x, y, 1, w=1 / y if relative else None)
    timed = y > 0
    errors = (y - start - slope * x)[timed] / y[timed]
    return Line(float(start), float(slope), float(np.sqrt(np.mean(errors**2))) if timed.any() else 0.0)
