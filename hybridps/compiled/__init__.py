"""Loops compiled to machine code, and those that several rooms use: copies past the caches, a search for NaN and Inf.

Callers compile functions with `compiled`, and pass any number of arrays by their `addresses`.
"""

from hybridps.compiled.compiler import addresses, at, compiled, compiled_callback, compiled_sums, seen

__all__ = ["addresses", "at", "compiled", "compiled_callback", "compiled_sums", "seen"]
