"""MXNet's parameters of gradient compression, translated to a codec."""

from __future__ import annotations

from typing import Any, Literal

from mxnet.ndarray import NDArray

from hybridps.codecs import Quantised
from hybridps.errors import HybridPSError
from hybridps.kvstore.arrays import dtype_of

BITS: dict[str, Literal[1, 2]] = {"1bit": 1, "2bit": 2}
"""The number of bits of each compression type. MXNet 1.9.1 itself knows only `2bit`, MXNet 2 both."""

DEFAULT_THRESHOLD = 0.5
"""MXNet's default threshold."""


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
