"""What collectives need from a device: it packs its vectors into one buffer and unpacks it, in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridps.errors import LayoutError
from hybridps.mpi_groups.group import UFUNC
from hybridps.tensor_collectives.tensor import EXACT, check_dtype

PIECE_BYTES = 4 << 20
"""Packed vectors are copied to host memory and back in pieces of this size."""

Wait = Callable[[], object]
"""Waits until the operation is complete. Raises its error."""


@dataclass(frozen=True, eq=False)
class Vectors:
    """Vectors of equal length and dtype. Each is the concatenation of one or more arrays.

    `arrays[v][s]` is array s of vector v, flat. Array s has the same length in all vectors. `starts[s]` is the position
    of the first element of array s in its vector; `starts[-1]` is the length of a vector.
    """

    arrays: tuple[tuple[Any, ...], ...]
    starts: tuple[int, ...]

    @staticmethod
    def of(vectors: Sequence[Any]) -> Vectors:
        """Make `Vectors` that use the given arrays in place.

        Each vector is an array of NumPy or CuPy, or a sequence of such arrays: contiguous, of any shape. Raises
        LayoutError if the vectors do not match each other.
        """
        if not vectors:
            raise LayoutError("a tensor needs at least one vector")
        arrays = tuple(tuple(vector) if isinstance(vector, (list, tuple)) else (vector,) for vector in vectors)
        if not arrays[0]:
            raise LayoutError("vector 0 has no arrays: give an empty one for no elements")
        first = arrays[0][0]
        check_dtype(first.dtype.name)
        sizes = [array.size for array in arrays[0]]
        for number, vector in enumerate(arrays):
            if [array.size for array in vector] != sizes:
                raise LayoutError(
                    f"the arrays of vector {number} have {[array.size for array in vector]} elements, "
                    f"those of vector 0 {sizes}: they must be alike"
                )
            for array in vector:
                if array.dtype != first.dtype or not array.flags.c_contiguous:
                    raise LayoutError(
                        f"vector {number} has an array of {array.dtype} with strides {array.strides}: "
                        f"contiguous arrays of {first.dtype} are needed"
                    )
        starts = (0, *np.cumsum(sizes).tolist())
        return Vectors(tuple(tuple(array.reshape(-1) for array in vector) for vector in arrays), starts)

    @property
    def length(self) -> int:
        return self.starts[-1]

    @property
    def dtype(self) -> np.dtype:
        return self.arrays[0][0].dtype

    @property
    def exact(self) -> np.dtype:
        return np.dtype(EXACT[self.dtype.name])


class HostDevice:
    """The CPU as a device, for vectors that are NumPy arrays. A thread of its own does the work.

    This class documents the methods of every device. Operations may run concurrently. A packed buffer is an array of
    dtype `vectors.exact` that holds elements `start:stop` of the vectors. It is allocated by `empty`, or it is a NumPy
    array of at most `PIECE_BYTES`.
    """

    gpu = ""
    """The host and bus address of the GPU; empty for the CPU."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "hybridps-device")

    def reaches(self, array: Any) -> bool:
        """Return whether the device can access `array`, as a vector or a packed buffer."""
        return isinstance(array, np.ndarray)

    def empty(self, length: int, dtype: np.dtype) -> Any:
        """Return an uninitialised array in the device's memory."""
        return np.empty(length, dtype)

    def pin(self, buffers: Sequence[np.ndarray]) -> str:
        """Page-lock packed buffers of one mapping, in order of address. Returns why that failed, or an empty text."""
        return ""  # the CPU copies, so pages need not be locked

    def pack(self, vectors: Vectors, op: str, start: int, stop: int, packed: Any) -> Wait:
        """Begin to set `packed` to `op` ('sum', 'max', 'min') over elements `start:stop` of the vectors."""
        return self._thread.submit(_pack, vectors, op, start, stop, packed).result

    def unpack(self, packed: Any, divisor: int, vectors: Vectors, start: int, stop: int) -> Wait:
        """Begin to set elements `start:stop` of all vectors to `packed` divided by `divisor`."""
        return self._thread.submit(_unpack, packed, divisor, vectors, start, stop).result

    def close(self) -> None:
        """Release threads, streams and page-locked memory."""
        self._thread.shutdown()


def _pack(vectors: Vectors, op: str, start: int, stop: int, packed: np.ndarray) -> None:
    for part, arrays in _segments(vectors, start, stop):
        total = packed[part]
        np.copyto(total, arrays[0], casting="unsafe")
        for array in arrays[1:]:
            UFUNC[op](total, array, out=total)


def _unpack(packed: np.ndarray, divisor: int, vectors: Vectors, start: int, stop: int) -> None:
    if divisor != 1:
        np.divide(packed, divisor, out=packed)
    for part, arrays in _segments(vectors, start, stop):
        for array in arrays:
            np.copyto(array, packed[part], casting="unsafe")


def _segments(vectors: Vectors, start: int, stop: int) -> Iterator[tuple[slice, list[np.ndarray]]]:
    """For each array in `start:stop`, yield its span in the packed buffer, and its elements in each vector."""
    for number, (begin, end) in enumerate(zip(vectors.starts, vectors.starts[1:], strict=False)):
        first, last = max(begin, start), min(end, stop)
        if first < last:
            pieces = [vector[number][first - begin : last - begin] for vector in vectors.arrays]
            yield slice(first - start, last - start), pieces
