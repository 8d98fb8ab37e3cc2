"""Numbers, counts and times as text for people, without exponents."""

from __future__ import annotations

from decimal import Decimal

_LEAST_MS = 1e-4
"""In seconds. Shorter times are given in microseconds."""


def rounded(value: float, digits: int = 3) -> str:
    """Return a number with this many significant digits. A larger number is given in full, as a whole number.

    >>> rounded(1234.5), rounded(0.12345), rounded(99.6, 2), rounded(0.000012)
    ('1234', '0.123', '100', '0.000012')
    """
    text = f"{value:.{digits}g}"
    if "e+" in text:
        return f"{value:.0f}"
    return format(Decimal(text), "f") if "e-" in text else text


def counted(number: int, noun: str) -> str:
    """Return a number of things with their noun.

    >>> counted(1, "group"), counted(0, "server")
    ('1 group', '0 servers')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float, digits: int = 3) -> str:
    """Return a time with its unit.

    >>> duration(1.234), duration(0.0996, 2), duration(0.00029), duration(2e-5), duration(0.0)
    ('1.23 s', '100 ms', '0.29 ms', '20 us', '0 ms')
    """
    if seconds >= 1:
        return f"{rounded(seconds, digits)} s"
    if seconds >= _LEAST_MS or not seconds:
        return f"{rounded(1e3 * seconds, digits)} ms"
    return f"{rounded(1e6 * seconds, digits)} us"
