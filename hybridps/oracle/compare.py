"""Predictions against measurements: accuracy = 1 - |predicted - measured| / measured (Kahira et al., 2021)."""

from __future__ import annotations

import msgspec

from hybridps.oracle.live import PHASES, Phases

LEAST_PART = 0.01
"""A phase below this part of a step has no accuracy: it is too short to be measured."""


class Row(msgspec.Struct, frozen=True):
    """One phase of a step. `accuracy` is None where the phase is too short."""

    phase: str
    predicted_seconds: float
    measured_seconds: float
    accuracy: float | None


def accuracy(predicted: float, measured: float) -> float:
    """1 - |predicted - measured| / measured; 1 is exact, and it has no lower end."""
    return 1 - abs(predicted - measured) / measured


def compare(predicted: Phases, measured: Phases) -> list[Row]:
    """Phase by phase; the first is the whole step."""
    rows = []
    for phase in PHASES:
        expected, found = getattr(predicted, phase), getattr(measured, phase)
        long_enough = found >= LEAST_PART * measured.step > 0
        rows.append(Row(phase, expected, found, accuracy(expected, found) if long_enough else None))
    return rows
