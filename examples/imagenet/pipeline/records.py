"""Reads RecordIO files, and reports exactly what is damaged: in which file, and in which record.

A record has one part, or several if it contains the magic number. A part has the magic number, a word with its length
in the lower 29 bits and its place in the record in the upper 3 (0: whole, 1: first, 2: middle, 3: last), and the
payload, padded to 4 bytes.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

MAGIC = 0xCED7230A
WHOLE, FIRST, LAST = 0, 1, 3


class DataError(Exception):
    """The data cannot be used as requested. The message says why, and what to do."""


class ImageError(Exception):
    """An image is damaged, or is not an image. The message names it."""


class RecordFile:
    """The records of a file. Several threads may read at the same time.

    Without the `.idx` file beside it, the file is searched once for the positions of the records. Raises DataError for
    a file that is cut short, or is not a RecordIO file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb", buffering=0)
        self._size = path.stat().st_size
        index = path.with_suffix(".idx")
        try:
            self.offsets = _read_index(index) if index.exists() else self._find_records()
            if not self.offsets:
                raise DataError(f"{path} has no records")
            self.read(self.offsets.index(max(self.offsets)))  # the last one is incomplete if the file is cut short
        except ImageError as damage:
            raise DataError(str(damage)) from None

    def __len__(self) -> int:
        return len(self.offsets)

    def read(self, number: int) -> bytes:
        """Return the record at this position in the file or its index. Raises ImageError if it is damaged."""
        parts: list[bytes] = []
        offset = self.offsets[number]
        while True:
            place, length = self._part(number, offset)
            if (place in (WHOLE, FIRST)) == bool(parts):
                raise ImageError(f"record {number} of {self._path} is damaged at byte {offset}")
            parts.append(os.pread(self._file.fileno(), length, offset + 8))
            if place in (WHOLE, LAST):
                return struct.pack("<I", MAGIC).join(parts)
            offset += 8 + _padded(length)

    def _find_records(self) -> list[int]:
        offsets, offset = [], 0
        while offset < self._size:
            place, length = self._part(len(offsets), offset)
            if place in (WHOLE, FIRST):
                offsets.append(offset)
            offset += 8 + _padded(length)
        return offsets

    def _part(self, number: int, offset: int) -> tuple[int, int]:
        """Return the place and the length of a part of record `number`. Raises ImageError if the part is incomplete."""
        header = os.pread(self._file.fileno(), 8, offset)
        if len(header) == 8 and struct.unpack("<I", header[:4])[0] != MAGIC:
            raise ImageError(f"record {number} of {self._path} is damaged at byte {offset}: it has no RecordIO there")
        word = struct.unpack("<I", header[4:])[0] if len(header) == 8 else 0
        length = word & 0x1FFFFFFF
        if len(header) < 8 or offset + 8 + length > self._size:
            raise ImageError(
                f"{self._path} is cut short: it has {self._size} bytes, and record {number} ends later; copy or pack "
                "it again"
            )
        return word >> 29, length


def _padded(length: int) -> int:
    return (length + 3) // 4 * 4


def _read_index(path: Path) -> list[int]:
    offsets = []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        key, _, offset = line.partition("\t")
        if not (offset.isdecimal() and len(offset) < 16):
            raise DataError(
                f"{path} is damaged in line {number}: expected a key and a position with a tab between; "
                "remove the file to have the positions looked up"
            )
        offsets.append(int(offset))
    return offsets
