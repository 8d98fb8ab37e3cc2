"""The codecs that round to two bytes: float16 and bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridps.codecs.bits import rounded_to_odd, to_brain, to_half
from hybridps.codecs.codec import Codec
from hybridps.codecs.loops import BRAIN, HALF
from hybridps.compiled import compiled


class _Halves(Codec):
    """Base class of codecs that write two bytes for each value of float32 or float64."""

    _encode: Any

    def __init__(self) -> None:
        super().__init__("float32", "float64")

    def encode(self, values: np.ndarray, out: np.ndarray) -> None:
        type(self)._encode(values, self._bytes(out, values).view(np.uint16))

    def _nbytes(self, elements: int, dtype: np.dtype) -> int:
        return 2 * elements


@compiled
def _encode_halves(values, halves):  # type: ignore[no-untyped-def]
    for i in range(halves.size):
        halves[i] = to_half(rounded_to_odd(values[i]))


@compiled
def _encode_brains(values, brains):  # type: ignore[no-untyped-def]
    for i in range(brains.size):
        brains[i] = to_brain(rounded_to_odd(values[i]))


class Float16(_Halves):
    """Half precision: each value becomes the nearest float16, ties go to even. Larger values become infinite."""

    name = "float16"
    form = HALF
    _encode = staticmethod(_encode_halves)


class BFloat16(_Halves):
    """The upper half of a float32: each value becomes the nearest bfloat16, ties go to even."""

    name = "bfloat16"
    form = BRAIN
    _encode = staticmethod(_encode_brains)
