"""Arrays and JSON as bytes, in the form of NumPy's `.npz`. Nothing is unpickled."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from zipfile import BadZipFile

import numpy as np

from hybridps.errors import HybridPSError, LayoutError


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return arrays as bytes."""
    file = BytesIO()
    np.savez(file, **{f"array {name}": array for name, array in arrays.items()})
    return file.getvalue()


def read_arrays(content: bytes) -> dict[str, np.ndarray]:
    """Return the arrays that were packed. Raises HybridPSError if a part is missing, because the group that gave them
    has died meanwhile.
    """
    try:
        with np.load(BytesIO(content), allow_pickle=False) as file:
            return {name.removeprefix("array "): file[name] for name in file}
    except (BadZipFile, EOFError, OSError, ValueError):
        raise HybridPSError(
            "what another group hands over is incomplete: that group has died meanwhile; this one must be started again"
        ) from None


def unpack_arrays(content: bytes, arrays: Mapping[str, np.ndarray]) -> None:
    """Replace the values of arrays by those that were packed.

    Raises LayoutError, and changes nothing, unless they have the same names, dtypes and shapes, and the errors of
    `read_arrays`.
    """
    found = read_arrays(content)
    forms = [{name: (array.dtype.name, array.shape) for name, array in each.items()} for each in (found, arrays)]
    if forms[0] != forms[1]:
        name = next(name for name in [*found, *arrays] if forms[0].get(name) != forms[1].get(name))
        given, own = (form.get(name, "missing") for form in forms)
        raise LayoutError(
            f"array {name!r} is {own} in this group and {given} in the group that hands it over: give the same arrays "
            "in all groups"
        )
    for name, array in arrays.items():
        array[...] = found[name]
