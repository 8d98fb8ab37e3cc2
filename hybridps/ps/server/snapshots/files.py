"""The files of one snapshot: arrays of NumPy, and JSON that describes them. Nothing is unpickled.

A file `table-<index>-centre.npy` has the centre of the chunks that the server owns, in order, and
`table-<index>-state-<number>.npy` a state of the rule. `complete.json` is written last; a folder without it is no
snapshot. The files may come from anybody. The names are therefore chosen here, and a file is used only if it has the
size and the dtype that the group's own spec of the table requires.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.lib import format as npy

from hybridps.errors import HybridPSError, ServerError
from hybridps.ps.model import TableSpec

MARKER = "complete.json"

_LARGEST_MARKER_BYTES = 1 << 28
_LARGEST_HEADER_BYTES = 1 << 12

_Number = Annotated[int, Meta(ge=0, le=1 << 62)]


class DamagedError(HybridPSError):
    """A folder is not a complete snapshot. The message says what is wrong with it."""


class TableContents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table of a snapshot. Its values were taken for snapshot `number`: this one, or an earlier one."""

    name: str
    number: _Number
    spec: TableSpec
    steps: list[_Number]
    """For each chunk, the number of its last round for the rule."""
    checks: list[_Number]
    """For each chunk, the CRC-32 of its centre and its states."""

    def arrays(self, index: int) -> list[str]:
        """Return the names of the files of the table with that index: of the centre, and of each state."""
        return [f"table-{index}-{_array_name(number)}.npy" for number in range(1 + self.spec.rule.states)]


class Contents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the marker: which snapshot it is, and its tables."""

    format: Literal[1]
    number: _Number
    written_at: float
    """Seconds since 1970."""
    job: str
    server: int
    servers: int
    tables: list[TableContents]


class TableFiles:
    """The files of a table that are being written to `folder`. Raises OSError."""

    def __init__(self, folder: Path, index: int, name: str, number: int, spec: TableSpec) -> None:
        self.name = name
        self._chunk_map = spec.chunk_map()
        chunks = len(self._chunk_map.owned_between(spec.server, 0, spec.layout.length))
        self.contents = TableContents(name, number, spec, [0] * chunks, [0] * chunks)
        dtype, elements = np.dtype(spec.layout.dtype), self._chunk_map.length_of(spec.server)
        header = _header(dtype, elements)
        self._offset, self._itemsize = len(header), dtype.itemsize
        self._descriptors: list[int] = []
        for file in self.contents.arrays(index):
            self._descriptors.append(os.open(folder / file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
            os.ftruncate(self._descriptors[-1], len(header) + elements * dtype.itemsize)
            _write(self._descriptors[-1], memoryview(header), 0)

    def write(self, place: int, arrays: Sequence[np.ndarray], step: int) -> None:
        """Write the centre and the states of the chunk in a place, after its round number `step`."""
        at = self._offset + place * self._chunk_map.step * self._itemsize
        for descriptor, array in zip(self._descriptors, arrays, strict=True):
            _write(descriptor, array.view(np.uint8).data, at)
        self.contents.steps[place], self.contents.checks[place] = step, _check(arrays)

    def sync(self) -> None:
        """Wait until the disk has all of it."""
        for descriptor in self._descriptors:
            os.fsync(descriptor)

    def close(self) -> None:
        """Close the files. A second call does nothing."""
        while self._descriptors:
            os.close(self._descriptors.pop())


class FoundTable:
    """A table of a complete snapshot to start from. `number`: the snapshot that its values were taken for."""

    def __init__(self, folder: Path, index: int, contents: TableContents, written_at: float) -> None:
        self.number = contents.number
        self.written_at = written_at
        self._folder = folder
        self._contents = contents
        self._files = [folder / name for name in contents.arrays(index)]
        self._dtype = np.dtype(contents.spec.layout.dtype)
        self._step = contents.spec.chunk_map().step

    def read(self, place: int, length: int) -> tuple[list[np.ndarray], int]:
        """Read the centre and the states of the chunk in a place, of `length` elements, and its last round's number.

        Raises ServerError if they are not what was written.
        """
        first, arrays = place * self._step, []
        try:
            for path in self._files:
                descriptor, offset = _open_array(path, self._dtype, None)
                try:
                    arrays.append(_read(descriptor, offset + first * self._dtype.itemsize, length, self._dtype))
                finally:
                    os.close(descriptor)
            if _check(arrays) != self._contents.checks[place]:
                raise DamagedError(f"the values of its chunk {place} are not those that were written")
        except (OSError, DamagedError) as error:
            raise ServerError(
                f"table {self._contents.name!r} cannot start from the snapshot in {self._folder}: {reason_of(error)}. "
                "Remove that folder on all servers: the job then starts from the snapshot before it"
            ) from None
        return arrays, self._contents.steps[place]


def write_marker(folder: Path, contents: Contents) -> None:
    """Complete a snapshot whose files the disk has. Raises OSError."""
    sync(folder)
    with (folder / MARKER).open("xb", buffering=0) as file:
        _write(file.fileno(), memoryview(msgspec.json.encode(contents)), 0)
        os.fsync(file.fileno())
    sync(folder)


def read_contents(folder: Path) -> Contents:
    """Read what a snapshot has. Raises DamagedError unless it is complete, and its files have the right sizes."""
    try:
        contents = msgspec.json.decode(_read_marker(folder / MARKER), type=Contents)
        for index, table in enumerate(contents.tables):
            spec = table.spec
            elements, chunk_map = spec.chunk_map().length_of(spec.server), spec.chunk_map()
            chunks = len(chunk_map.owned_between(spec.server, 0, spec.layout.length))
            if len(table.steps) != chunks or len(table.checks) != chunks:
                raise DamagedError(f"table {table.name!r:.80} has other chunks than its spec")
            for name in table.arrays(index):
                os.close(_open_array(folder / name, np.dtype(spec.layout.dtype), elements)[0])
        return contents
    # NumPy and msgspec raise many types of errors for a damaged file, and a spec from anybody may cause any.
    except Exception as error:
        raise DamagedError(f"{folder} is not a complete snapshot: {reason_of(error)}") from None


def sync(path: Path) -> None:
    """Wait until the disk has the content of a file, or the names in a folder. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reason_of(error: Exception) -> str:
    """Return what went wrong, in a few words."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def _array_name(number: int) -> str:
    return f"state-{number}" if number else "centre"


def _check(arrays: Sequence[np.ndarray]) -> int:
    check = 0
    for array in arrays:
        check = zlib.crc32(array.view(np.uint8).data, check)
    return check


def _header(dtype: np.dtype, elements: int) -> bytes:
    """Return the beginning of a file with `elements` numbers."""
    file = BytesIO()
    about = {"descr": dtype.str, "fortran_order": False, "shape": (elements,)}
    npy.write_array_header_1_0(file, about)  # type: ignore[no-untyped-call]
    return file.getvalue()


def _write(descriptor: int, content: memoryview, at: int) -> None:
    while len(content):
        written = os.pwrite(descriptor, content, at)
        content, at = content[written:], at + written


def _read(descriptor: int, at: int, length: int, dtype: np.dtype) -> np.ndarray:
    array = np.empty(length, dtype)
    left = memoryview(array.view(np.uint8).data)
    while len(left):
        got = os.preadv(descriptor, [left], at)
        if not got:
            raise DamagedError("a file is shorter than it was")
        left, at = left[got:], at + got
    return array


def _open_regular(path: Path) -> int:
    """Open a regular file. Links, pipes and devices are refused, because a stranger's could lead anywhere."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise DamagedError(f"{path.name} is not a regular file")


def _read_marker(path: Path) -> bytes:
    with os.fdopen(_open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > _LARGEST_MARKER_BYTES:
            raise DamagedError(f"{path.name} has more than {_LARGEST_MARKER_BYTES} bytes")
        return file.read()


def _open_array(path: Path, dtype: np.dtype, elements: int | None) -> tuple[int, int]:
    """Open a file of numbers. Returns its descriptor and where they begin.

    `elements`: how many it must have; None: any number. Raises DamagedError for another dtype, number or size.
    """
    descriptor = _open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        head = BytesIO(os.pread(descriptor, _LARGEST_HEADER_BYTES, 0))
        if npy.read_magic(head) != (1, 0):  # type: ignore[no-untyped-call]
            raise DamagedError(f"{path.name} is of another version of NumPy's format")
        shape, fortran, has = npy.read_array_header_1_0(head)  # type: ignore[no-untyped-call]
        offset = head.tell()
        expected = shape if elements is None else (elements,)
        if has != dtype or len(shape) != 1 or shape != expected or size != offset + shape[0] * dtype.itemsize:
            raise DamagedError(
                f"{path.name} has {size} bytes, shape {shape} and dtype {has}, not {expected} of {dtype}"
            )
        return descriptor, offset
    except BaseException:
        os.close(descriptor)
        raise
