"""The kernels in `pack.cu`, and the names under which they are compiled."""

from __future__ import annotations

from pathlib import Path

SOURCE = Path(__file__).with_name("pack.cu")

OPTIONS = ("-std=c++14",)

TYPES = {
    "float16": ("Half", "float"),
    "bfloat16": ("BFloat16", "float"),
    "float32": ("float", "float"),
    "float64": ("double", "double"),
    "int32": ("int", "int"),
    "int64": ("long long", "long long"),
}
"""For each dtype, the C++ type of the arrays (T) and the type in which they are combined (E)."""


def kernel_names(dtype: str) -> dict[str, str]:
    """Return the C++ names of the kernels for vectors of `dtype`, by operation; 'unpack' is one of them.

    >>> kernel_names("float16")["sum"]
    'pack<Half, float, Sum>'
    """
    types = ", ".join(TYPES[dtype])
    packs = {op: f"pack<{types}, {op.capitalize()}>" for op in ("sum", "max", "min")}
    return packs | {"unpack": f"unpack<{types}>"}
