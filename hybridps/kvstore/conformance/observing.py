"""What checks are made of."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import nd

Create = Callable[[], Any]
"""Makes a store."""

Observed = tuple[str, Any, Any]
"""What was observed, its value, and the expected value. Arrays are nested lists."""

Check = Callable[[Create], Iterator[Observed]]

SHAPE = (2, 3)
_numbers = itertools.count(1000)


def new_keys(count: int = 1) -> list[int]:
    """Return keys that no check has used: some types keep keys beyond the life of a store."""
    return [next(_numbers) for _ in range(count)]


def filled(value: float, shape: tuple[int, ...] = SHAPE, dtype: str = "float32") -> Any:
    return nd.full(shape, value, dtype=dtype)


def pulled(store: Any, key: Any, shape: tuple[int, ...] = SHAPE, dtype: str = "float32") -> list[Any]:
    """Return the stored value of a key."""
    out = filled(7, shape, dtype)
    store.pull(key, out=out)
    return values(out)


def values(array: Any) -> list[Any]:
    """Return an array as nested lists."""
    return array.asnumpy().tolist()  # type: ignore[no-any-return]


def whole(value: float, shape: tuple[int, ...] = SHAPE) -> list[Any]:
    """Return what `values` returns for an array that has this value everywhere."""
    return np.full(shape, value).tolist()  # type: ignore[no-any-return]


def error_of(call: Callable[[], Any]) -> str:
    """Return the name of the error that a call raises, MXNetError for its subclasses; empty if the call returns."""
    try:
        call()
    except mx.MXNetError:
        return "MXNetError"
    except Exception as error:
        return type(error).__name__
    return ""
