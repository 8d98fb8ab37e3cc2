"""Functions compiled to machine code by numba, which keeps what it compiled where it finds a folder for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Any:
    """Compile `function`, without Python's lock and without fast arithmetic: the bits are those of the source.

    A division by zero gives Inf or NaN, as in NumPy: it raises nothing, so that loops with divisions are vectorised.

    Where neither the package nor the user's cache folder can be written, each process compiles anew;
    `NUMBA_CACHE_DIR` names another folder.
    """
    try:
        return njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:
        return njit(nogil=True, error_model="numpy")(function)
