"""Compares predictions with measurements: accuracy = 1 - |predicted - measured| / measured (Kahira et al., 2021)."""

from __future__ import annotations

import msgspec

from hybridps.oracle.ssgd import PHASES, Phases

LEAST_PART = 0.01
"""A phase shorter than this fraction of a step is too short to measure, and gets no accuracy."""


class Row(msgspec.Struct, frozen=True):
    """One phase of a step. `accuracy` is None if the phase is too short to measure."""

    phase: str
    predicted_seconds: float
    measured_seconds: float
    accuracy: float | None


def accuracy(predicted: float, measured: float) -> float:
    """1 - |predicted - measured| / measured; 1 is exact; there is no lower bound."""
    return 1 - abs(predicted - measured) / measured


def compare(predicted: Phases, measured: Phases) -> list[Row]:
    """One row per phase; the first row is the whole step."""
    rows = []
    for phase in PHASES:
        expected, found = getattr(predicted, phase), getattr(measured, phase)
        long_enough = found >= LEAST_PART * measured.step > 0
        rows.append(Row(phase, expected, found, accuracy(expected, found) if long_enough else None))
    return rows
