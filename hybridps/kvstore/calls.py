"""The calls of a KVStore, in the forms that MXNet takes them, and its errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, NamedTuple, TypeVar

import mxnet as mx
from mxnet import MXNetError, autograd
from mxnet.ndarray import NDArray

from hybridps.errors import HybridPSError

Method = TypeVar("Method", bound=Callable[..., Any])


class KeyArrays(NamedTuple):
    """A key with the arrays given for it: one for each device, or none for `others` that were left out."""

    key: int | str
    name: str
    values: list[NDArray]
    others: list[NDArray]


def calls(key: Any, value: Any, other: Any = None) -> list[KeyArrays]:
    """The keys of a call, each once: arrays of a key that comes twice are taken together, as MXNet does.

    Raises AssertionError, as MXNet does, for lists whose lengths differ.
    """
    if not isinstance(key, (list, tuple)):
        return [KeyArrays(key, str(key), _as_list(value), [] if other is None else _as_list(other))]
    others = [None] * len(key) if other is None else other
    assert len(key) == len(value) == len(others), f"{len(key)} keys have {len(value)} values and {len(others)} others"
    found: dict[str, KeyArrays] = {}
    for each in (call for of in zip(key, value, others, strict=True) for call in calls(*of)):
        known = found.setdefault(each.name, each)
        if known is not each:
            known.values.extend(each.values)
            known.others.extend(each.others)
    return list(found.values())


def key_kind(key: Any) -> type | None:
    """Of what kind a key, or a list of keys, is: int or str; None for an empty list.

    Raises AssertionError, as MXNet does, for another kind, or for several.
    """
    if isinstance(key, (list, tuple)):
        kinds = {key_kind(each) for each in key}
        assert len(kinds) <= 1, f"the keys {key!r} are not of one kind: use int or str for all"
        return next(iter(kinds), None)
    assert isinstance(key, (int, str)), f"unexpected type for keys: {type(key)}"
    return str if isinstance(key, str) else int


def as_mxnet_does(method: Method) -> Method:
    """A method of a store: autograd does not record what it does, and its errors are of MXNet too."""

    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        try:
            if not autograd.is_recording():
                return method(*args, **options)
            with autograd.pause(train_mode=autograd.is_training()):
                return method(*args, **options)
        except HybridPSError as error:
            if isinstance(error, MXNetError):
                raise
            told = _of_mxnet(type(error))(*error.args)  # type: ignore[arg-type]
            told.everywhere = error.everywhere
            raise told from error

    return call  # type: ignore[return-value]


@cache
def _of_mxnet(kind: type[HybridPSError]) -> type[HybridPSError]:
    """A class of errors that is also MXNet's."""
    return type(kind.__name__, (kind, MXNetError), {})


def _as_list(arrays: Any) -> list[NDArray]:
    """Return a list of the arrays. Those of MXNet's NumPy interface become NDArray views, as the kinds do not mix."""
    listed = arrays if isinstance(arrays, (list, tuple)) else [arrays]
    return [each.as_nd_ndarray() if isinstance(each, mx.np.ndarray) else each for each in listed]
