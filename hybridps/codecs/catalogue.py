"""The codecs, by their specs in settings, messages and tables."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from hybridps.codecs.codec import Codec, Exact
from hybridps.codecs.halves import BFloat16, Float16
from hybridps.codecs.quantised import Quantised
from hybridps.errors import ConfigError

CodecSpec = Literal["exact", "float16", "bfloat16"] | Quantised
"""Identifies a codec: its name, or how gradients are compressed."""

EXACT = Exact("float16", "float32", "float64", "int32", "int64")

CODECS: dict[str, Codec] = {"exact": EXACT, "float16": Float16(), "bfloat16": BFloat16()}


def codec_of(spec: CodecSpec | str) -> Codec:
    """Return the codec of a spec. Raises ConfigError for an unknown name."""
    if isinstance(spec, Quantised):
        return _quantised(spec)
    if spec not in CODECS:
        raise ConfigError(f"the codec {spec!r} is unknown: use one of {', '.join(CODECS)}")
    return CODECS[spec]


def spec_for(spec: CodecSpec, dtype: str) -> CodecSpec:
    """Return `spec`, or 'exact' if its codec does not take values of `dtype`."""
    return spec if dtype in codec_of(spec).dtypes else "exact"


@lru_cache(maxsize=64)
def _quantised(spec: Quantised) -> Codec:
    return spec.codec(EXACT)
