"""Sources of images: folders, RecordIO files, memory."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Protocol

import cv2
import mxnet as mx
import numpy as np

from pipeline.records import DataError, ImageError, RecordFile

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp"}
UNKNOWN = -1
"""The label of a record that cannot be read."""


class Source(Protocol):
    """Images as uint8 arrays of shape (height, width, channels), each with the number of its class.

    Reading a damaged image raises ImageError, which names the image.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]: ...

    def labels(self) -> np.ndarray: ...


class FolderImages:
    """A folder with one folder of images for each class, as in ILSVRC."""

    def __init__(self, folder: Path, names: list[str] | None = None) -> None:
        found = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
        self.names = found if names is None else names
        if unknown := sorted(set(found) - set(self.names)):
            raise DataError(f"{folder} has the class {unknown[0]}, which the training images do not have")
        number = {name: index for index, name in enumerate(self.names)}
        self._paths = [path for name in found for path in _image_paths(folder / name)]
        self._labels = np.array([number[path.parent.name] for path in self._paths], dtype=np.int64)
        if not self._paths:
            raise DataError(f"{folder} has no images: expected <class>/<image> with the suffixes {sorted(SUFFIXES)}")

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        encoded, label = self.encoded(index)
        return decode(encoded, str(self._paths[index])), label

    def labels(self) -> np.ndarray:
        return self._labels

    def encoded(self, index: int) -> tuple[bytes, int]:
        """Return the contents of the file, and the number of its class. Raises ImageError."""
        try:
            return self._paths[index].read_bytes(), int(self._labels[index])
        except OSError as error:
            raise ImageError(f"{self._paths[index]} cannot be read: {error.strerror}") from None


class RecordImages:
    """A RecordIO file."""

    classes: float = math.inf
    """The number of classes. A record whose label is not below it counts as damaged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records = RecordFile(path)
        self._labels: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        encoded, label = self._unpacked(index)
        return decode(encoded, self._name(index)), label

    def labels(self) -> np.ndarray:
        if self._labels is None:
            self._labels = np.array([self._label(index) for index in range(len(self))], dtype=np.int64)
        return self._labels

    def _label(self, index: int) -> int:
        try:
            return self._unpacked(index)[1]
        except ImageError:  # reading the image itself will raise this again
            return UNKNOWN

    def _unpacked(self, index: int) -> tuple[bytes, int]:
        try:
            header, encoded = mx.recordio.unpack(self._records.read(index))
            label = int(np.ravel(header.label)[0])
        except (struct.error, ValueError, OverflowError, IndexError):
            raise ImageError(f"{self._name(index)} has no image and label") from None
        if label < 0:
            raise ImageError(f"{self._name(index)} has the label {label}")
        if label >= self.classes:
            raise ImageError(f"{self._name(index)} has the label {label}, and there are {self.classes} classes")
        return encoded, label

    def _name(self, index: int) -> str:
        return f"record {index} of {self._path}"


class ArrayImages:
    """Images in memory. With `length`, they repeat up to that number."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, length: int | None = None) -> None:
        self._images, self._labels = images, np.resize(labels, length or len(images))

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self._images[index % len(self._images)], int(self._labels[index])

    def labels(self) -> np.ndarray:
        return self._labels


def decode(encoded: bytes, name: str) -> np.ndarray:
    """Return an encoded image as uint8 (height, width, 3), in the order red, green, blue. Raises ImageError."""
    if _is_cut_short(encoded):  # the decoder would fill the missing part with grey
        raise ImageError(f"{name} is cut short")
    try:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error:  # the file is empty
        image = None
    if image is None:
        raise ImageError(f"{name} cannot be decoded as an image")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def _is_cut_short(encoded: bytes) -> bool:
    """Return whether a JPEG or PNG file ends before its end marker."""
    if encoded.startswith(b"\x89PNG"):
        return b"IEND" not in encoded
    if not encoded.startswith(b"\xff\xd8"):
        return False
    at = 2
    while encoded[at : at + 1] == b"\xff" and encoded[at : at + 2] != b"\xff\xda":  # segments before the pixels
        is_fill = encoded[at : at + 2] == b"\xff\xff"
        at += 1 if is_fill else 2 + int.from_bytes(encoded[at + 2 : at + 4], "big")
    return encoded.find(b"\xff\xd9", at) < 0


def _image_paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
