"""Loops compiled to machine code, and those that several rooms use: copies past the caches, a search for NaN and Inf.

Callers compile functions with `compiled`, and pass any number of arrays by their `addresses`.
"""

from hybridps.compiled.compiler import (
    addresses,
    array_at,
    at,
    compiled,
    compiled_callback,
    compiled_for,
    compiled_sums,
    seen,
    words_at,
)

__all__ = [
    "addresses",
    "array_at",
    "at",
    "compiled",
    "compiled_callback",
    "compiled_for",
    "compiled_sums",
    "seen",
    "words_at",
]
