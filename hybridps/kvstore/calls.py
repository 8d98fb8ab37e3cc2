"""The forms in which MXNet accepts the arguments of a KVStore's calls, such as keys and the parameters of gradient
compression, and the errors that they raise."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, wraps
from typing import Any, Literal, TypeVar

import msgspec
import mxnet as mx
from mxnet import MXNetError, autograd
from mxnet.ndarray import NDArray

from hybridps.codecs import Quantised
from hybridps.errors import HybridPSError
from hybridps.kvstore.arrays import dtype_of, same_arrays

Method = TypeVar("Method", bound=Callable[..., Any])

BITS: dict[str, Literal[1, 2]] = {"1bit": 1, "2bit": 2}
"""The number of bits of each compression type. MXNet 1.9.1 itself knows only `2bit`, MXNet 2 both."""

_NUMPY_ARRAY = mx.np.ndarray

DEFAULT_THRESHOLD = 0.5
"""MXNet's default threshold."""


class KeyArrays(msgspec.Struct):
    """A key with its arrays, one for each device. `others` is empty if the call left them out."""

    key: int | str
    name: str
    values: list[NDArray]
    others: list[NDArray]

    @property
    def is_in_place(self) -> bool:
        """Whether the result replaces the values."""
        return not self.others or same_arrays(self.others, self.values)


def calls(key: Any, value: Any, other: Any = None) -> list[KeyArrays]:
    """Return the keys of a call, each once. As in MXNet, the arrays of a key that is given twice are combined.

    Raises AssertionError, as MXNet does, for lists of different lengths.
    """
    if not isinstance(key, (list, tuple)):
        return [KeyArrays(key, name_of(key), _as_list(value), [] if other is None else _as_list(other))]
    others = [None] * len(key) if other is None else other
    assert len(key) == len(value) == len(others), f"{len(key)} keys have {len(value)} values and {len(others)} others"
    found: dict[str, KeyArrays] = {}
    for each in (call for of in zip(key, value, others, strict=True) for call in calls(*of)):
        known = found.setdefault(each.name, each)
        if known is not each:
            known.values.extend(each.values)
            known.others.extend(each.others)
    return list(found.values())


@lru_cache(maxsize=None, typed=True)
def name_of(key: int | str) -> str:
    """Return the name of a key: always the same object, which is found faster than an equal one."""
    return str(key)


def key_kind(key: Any) -> type | None:
    """Return the kind of a key or of a list of keys, int or str; None for an empty list.

    Raises AssertionError, as MXNet does, for any other kind and for a mixture.
    """
    if isinstance(key, (list, tuple)):
        kinds = {key_kind(each) for each in key}
        assert len(kinds) <= 1, f"the keys {key!r} are not of one kind: use int or str for all"
        return next(iter(kinds), None)
    assert isinstance(key, (int, str)), f"unexpected type for keys: {type(key)}"
    return str if isinstance(key, str) else int


def common_kind(key: Any, known: type | None) -> type | None:
    """Return the kind of a key or keys, or `known` for an empty list.

    Raises HybridPSError unless it is the `known` kind of a store's other keys, if there is one.
    """
    kind = key_kind(key)
    if kind is not None and known is not None and kind is not known:
        raise HybridPSError(f"key {key!r} is not {known.__name__}, as the other keys of this store: use one kind")
    return kind or known


def compression_of(params: Any, workers: int) -> Quantised:
    """Return the codec that `compression_params` describe. `workers`: the number of workers in the largest group.

    Raises HybridPSError; AssertionError, as MXNet does, if `compression_params` is not a dict.
    """
    assert isinstance(params, dict), f"unexpected type for compression_params: {type(params)}"
    kind, threshold = params.get("type"), params.get("threshold", DEFAULT_THRESHOLD)
    if kind not in BITS:
        raise HybridPSError(f"gradient compression of the type {kind!r} is unknown: use one of {', '.join(BITS)}")
    try:
        return Quantised(BITS[kind], float(threshold), workers)
    except (TypeError, ValueError) as error:
        raise HybridPSError(f"gradient compression cannot use threshold={threshold!r}: {error}") from None


def check_compressible(name: str, array: NDArray) -> None:
    """Raise HybridPSError if a key, or a gradient of it, cannot be compressed. As in MXNet: only dense float32 can."""
    if array.stype != "default" or dtype_of(array) != "float32":
        raise HybridPSError(
            f"gradient compression needs dense arrays of float32, and key {name!r} has {array.stype} of "
            f"{dtype_of(array)}: leave the compression out, or train this key with a store of its own"
        )


def as_mxnet_does(method: Method) -> Method:
    """Wrap a method of a store: autograd does not record its work, and its errors are also MXNetErrors."""

    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        if not autograd.is_recording():
            return method(*args, **options)
        with autograd.pause(train_mode=autograd.is_training()):
            return method(*args, **options)

    return fails_as_mxnet_does(call)  # type: ignore[return-value]


def fails_as_mxnet_does(method: Method) -> Method:
    """Wrap a method of a store: its errors are also MXNetErrors."""

    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        try:
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
    """Return a class of errors that is also an MXNetError."""
    return type(kind.__name__, (kind, MXNetError), {})


def _as_list(arrays: Any) -> list[NDArray]:
    """Return a list of the arrays. Those of MXNet's NumPy interface become NDArray views, as the kinds do not mix."""
    listed = arrays if isinstance(arrays, (list, tuple)) else [arrays]
    return [each.as_nd_ndarray() if isinstance(each, _NUMPY_ARRAY) else each for each in listed]
