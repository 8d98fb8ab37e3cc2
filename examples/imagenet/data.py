"""Images for training and validation: where they come from, who sees which, and how they are changed."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import mxnet as mx
import numpy as np
from mxnet import gluon

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp"}
SMALL = 64  # images with a shorter side up to this are trained on whole, with small shifts
RGB_MEAN, RGB_STD = (123.68, 116.78, 103.94), (58.39, 57.12, 57.38)
DIGIT_MEAN, DIGIT_STD = (4.88,), (6.02,)


class DataError(Exception):
    """The data cannot be used as asked. The message says why, and what to do."""


class ImageError(Exception):
    """An image is damaged, or is none."""


class Source(Protocol):
    """Images as uint8 arrays of shape (height, width, channels), each with the number of its class."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]: ...

    def labels(self) -> np.ndarray: ...


Transform = Callable[[np.ndarray, np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Part:
    """Some of the images of a source, and what is done to each of them."""

    source: Source
    indices: np.ndarray
    transform: Transform


@dataclass(frozen=True)
class Data:
    """What training needs to know of the data. Mean and standard deviation are per channel, of 0..255."""

    train: Part
    val: Part
    classes: int
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalise(self, images: mx.nd.NDArray, dtype: str) -> mx.nd.NDArray:
        """uint8 (batch, height, width, channels) to `dtype` (batch, channels, height, width)."""
        mean, std = (mx.nd.array(values, ctx=images.context) for values in (self.mean, self.std))
        return ((images.astype("float32") - mean) / std).transpose((0, 3, 1, 2)).astype(dtype)


# Sources


class FolderImages:
    """A folder with one folder of images for each class, as ILSVRC has it."""

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
        path = self._paths[index]
        return decode(path.read_bytes(), str(path)), int(self._labels[index])

    def labels(self) -> np.ndarray:
        return self._labels

    def encoded(self, index: int) -> tuple[bytes, int]:
        """The file as it is, and the number of its class."""
        return self._paths[index].read_bytes(), int(self._labels[index])


class RecordImages:
    """A RecordIO file. Without the `.idx` file beside it, the positions of the records are looked up once."""

    def __init__(self, path: Path) -> None:
        index = path.with_suffix(".idx")
        self._path = path
        self._lock = threading.Lock()  # the reader seeks and reads in two steps
        self._records = _open_records(path, index) if index.exists() else _open_without_index(path)
        self._labels: np.ndarray | None = None
        if not self._records.keys:
            raise DataError(f"{path} has no records")

    def __len__(self) -> int:
        return len(self._records.keys)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        header, encoded = self._read(index)
        return decode(encoded, f"record {index} of {self._path}"), _first_label(header)

    def labels(self) -> np.ndarray:
        if self._labels is None:
            self._labels = np.array([_first_label(self._read(i)[0]) for i in range(len(self))], dtype=np.int64)
        return self._labels

    def _read(self, index: int) -> tuple[mx.recordio.IRHeader, bytes]:
        with self._lock:
            record = self._records.read_idx(self._records.keys[index])
        return mx.recordio.unpack(record)


class ArrayImages:
    """Images in memory. With `length`, they repeat."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, length: int | None = None) -> None:
        self._images, self._labels = images, np.resize(labels, length or len(images))

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self._images[index % len(self._images)], int(self._labels[index])

    def labels(self) -> np.ndarray:
        return self._labels


def decode(encoded: bytes, name: str) -> np.ndarray:
    """An encoded image as uint8 (height, width, 3) in the order red, green, blue."""
    try:
        return mx.image.imdecode(encoded).asnumpy()
    except Exception:  # MXNet raises different types for empty, truncated and unknown files
        raise ImageError(f"{name} cannot be decoded as an image") from None


def _image_paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def _first_label(header: mx.recordio.IRHeader) -> int:
    return int(np.ravel(header.label)[0])


def _open_records(path: Path, index: Path) -> mx.recordio.MXIndexedRecordIO:
    return mx.recordio.MXIndexedRecordIO(str(index), str(path), "r")


def _open_without_index(path: Path) -> mx.recordio.MXIndexedRecordIO:
    with tempfile.NamedTemporaryFile("w", suffix=".idx") as index:
        index.writelines(f"{key}\t{offset}\n" for key, offset in enumerate(record_offsets(path)))
        index.flush()
        return _open_records(path, Path(index.name))


def record_offsets(path: Path) -> list[int]:
    """Where the records of a RecordIO file begin.

    A part is the magic number, a word with its length in the lower 29 bits and its place in the record
    in the upper 3 (0: whole, 1: first, 2: middle, 3: last), and the payload, padded to 4 bytes.
    """
    offsets, offset, size = [], 0, path.stat().st_size
    with path.open("rb") as file:
        while offset < size:
            file.seek(offset)
            words = np.frombuffer(file.read(8), dtype="<u4")
            if len(words) < 2 or words[0] != 0xCED7230A:
                raise DataError(f"{path} is no RecordIO file, or is damaged at byte {offset}")
            if int(words[1]) >> 29 < 2:
                offsets.append(offset)
            offset += 8 + (int(words[1] & 0x1FFFFFFF) + 3) // 4 * 4
    return offsets


# What is done to an image


def shift_crop(pad: int, flip: bool) -> Transform:
    """Move the image by up to `pad` pixels, and mirror every other one."""

    def transform(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
        height, width = image.shape[:2]
        padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)))
        top, left = random.integers(0, 2 * pad + 1, size=2)
        return _maybe_mirror(padded[top : top + height, left : left + width], flip, random)

    return transform


def resized_crop(size: int, jitter: float) -> Transform:
    """A random part of 8 to 100 % of the area, scaled to `size`; mirrored; colours changed by up to `jitter`."""

    def transform(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
        left, top, width, height = _random_box(image.shape[0], image.shape[1], random)
        part = _resize(image[top : top + height, left : left + width], size, size)
        part = _maybe_mirror(part, True, random)
        return colour_jitter(part, jitter, random) if jitter else part

    return transform


def centre_crop(size: int, margin: float) -> Transform:
    """Scale the shorter side to `size * margin`, and take the middle."""

    def transform(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
        height, width = image.shape[:2]
        scale = size * margin / min(height, width)
        if scale != 1:
            image = _resize(image, max(size, round(width * scale)), max(size, round(height * scale)))
        top, left = (image.shape[0] - size) // 2, (image.shape[1] - size) // 2
        return image[top : top + size, left : left + size]

    return transform


def unchanged(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return image


def colour_jitter(image: np.ndarray, amount: float, random: np.random.Generator) -> np.ndarray:
    """Change brightness, contrast and saturation each by a factor in 1 - amount .. 1 + amount."""
    brightness, contrast, saturation = random.uniform(1 - amount, 1 + amount, size=3)
    values = image.astype(np.float32) * brightness
    grey = values @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
    values = grey.mean() + (values - grey.mean()) * contrast
    grey = (grey.mean() + (grey - grey.mean()) * contrast)[..., None]
    values = grey + (values - grey) * saturation
    return np.clip(values, 0, 255).astype(np.uint8)


def _random_box(height: int, width: int, random: np.random.Generator) -> tuple[int, int, int, int]:
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1.0)
        ratio = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1)), w, h
    side = min(height, width)
    return (width - side) // 2, (height - side) // 2, side, side


def _resize(image: np.ndarray, width: int, height: int) -> np.ndarray:
    # Bilinear on the way up, area on the way down: what interpolation 9 chooses by the sizes.
    method = mx.image.image._get_interp_method(9, (image.shape[0], image.shape[1], height, width))
    return mx.image.imresize(mx.nd.array(image, dtype=np.uint8), width, height, interp=method).asnumpy()


def _maybe_mirror(image: np.ndarray, flip: bool, random: np.random.Generator) -> np.ndarray:
    return image[:, ::-1] if flip and random.random() < 0.5 else image


# Who sees which images, and batches of them


def train_shard(count: int, worker: int, workers: int, batch_size: int, seed: int) -> np.ndarray:
    """The images of this worker, in order: its part of a permutation that depends on the seed alone.

    Every worker gets the same number of full batches, as they wait for each other in every step; what
    is left over differs with the seed.
    """
    steps = count // workers // batch_size
    if steps == 0:
        raise DataError(
            f"{count} training images are less than one batch of {batch_size} for each of {workers} workers; "
            f"use --batch-size {max(1, count // workers)} or less"
        )
    order = np.random.default_rng(seed).permutation(count)
    return order[worker::workers][: steps * batch_size]


def val_shard(count: int, worker: int, workers: int) -> np.ndarray:
    """The images that this worker validates on: all workers together have each image once."""
    return np.arange(count)[worker::workers]


class _View(gluon.data.Dataset):
    def __init__(self, part: Part, chosen: np.ndarray, seed: int) -> None:
        self._part, self._chosen, self._seed = part, chosen, seed

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, position: int) -> tuple[np.ndarray, np.float32]:
        index = int(self._part.indices[self._chosen[position]])
        image, label = self._part.source[index]
        # Seeded by the image, so that the result is the same whichever thread reads it.
        return self._part.transform(image, np.random.default_rng((self._seed, index))), np.float32(label)


def batches(part: Part, chosen: np.ndarray, batch_size: int, seed: int, threads: int) -> Iterator:
    """Batches of uint8 images (batch, height, width, channels) and float32 labels."""
    # Threads, not processes: a process forked from an MPI rank inherits connections that it must not use.
    return gluon.data.DataLoader(
        _View(part, chosen, seed),
        batch_size,
        last_batch="keep",
        num_workers=threads,
        thread_pool=True,
        batchify_fn=gluon.data.dataloader.default_batchify_fn,
    )


# From the command line to data


def open_data(
    name: str,
    *,
    image_size: int | None = None,
    classes: int | None = None,
    val_fraction: float = 0.0,
    jitter: float = 0.0,
    synthetic_images: int = 1280,
) -> Data:
    """Data from its name on the command line: `digits`, `synthetic`, or a folder."""
    if name == "digits":
        return _digits()
    if name == "synthetic":
        return _synthetic(synthetic_images, image_size or 224, classes or 1000)
    folder = Path(name)
    if not folder.is_dir():
        raise DataError(f"--data {name}: expected digits, synthetic, or a folder with train/ or train.rec")
    train, val, found = _open_records_of(folder, classes) if (folder / "train.rec").exists() else _open_folder(folder)
    if classes is not None and classes < found:
        raise DataError(f"--classes {classes} is less than the {found} classes of {folder}")
    return _photographs(train, val, classes or found, image_size, val_fraction, jitter)


def split(labels: np.ndarray, fraction: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Indices of a training and a held-out part, the latter with `fraction` of each class."""
    random = np.random.default_rng(seed)
    held = []
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        held.append(members[: round(fraction * len(members))])
    held_out = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(len(labels)), held_out), held_out


def _digits() -> Data:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DataError("--data digits needs scikit-learn: pip install scikit-learn") from None
    digits = load_digits()
    source = ArrayImages(digits.images.astype(np.uint8)[..., None], digits.target.astype(np.int64))
    train, val = split(source.labels(), 0.2)
    transform = shift_crop(1, flip=False)
    return Data(Part(source, train, transform), Part(source, val, unchanged), 10, 8, DIGIT_MEAN, DIGIT_STD)


def _synthetic(count: int, size: int, classes: int) -> Data:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, size=(32, size, size, 3), dtype=np.uint8)
    labels = random.integers(0, classes, size=count)
    train, val = (ArrayImages(images, labels, length) for length in (count, max(1, count // 10)))
    parts = (Part(source, np.arange(len(source)), unchanged) for source in (train, val))
    return Data(*parts, classes, size, RGB_MEAN, RGB_STD)


def _open_folder(folder: Path) -> tuple[Source, Source | None, int]:
    if not (folder / "train").is_dir():
        raise DataError(f"{folder} has neither train.rec nor train/<class>/<image>")
    train = FolderImages(folder / "train")
    val = FolderImages(folder / "val", train.names) if (folder / "val").is_dir() else None
    return train, val, len(train.names)


def _open_records_of(folder: Path, classes: int | None) -> tuple[Source, Source | None, int]:
    train = RecordImages(folder / "train.rec")
    val = RecordImages(folder / "val.rec") if (folder / "val.rec").exists() else None
    names = folder / "classes.txt"
    if names.exists():
        return train, val, len(names.read_text().splitlines())
    # Reading every label of the records takes long: the option saves it.
    return train, val, classes or int(train.labels().max()) + 1


def _photographs(
    train: Source, val: Source | None, classes: int, size: int | None, val_fraction: float, jitter: float
) -> Data:
    shorter = min(train[0][0].shape[:2])
    size = size or (shorter if shorter <= SMALL else 224)
    train_indices = np.arange(len(train))
    if val is None:
        val, val_indices = train, np.arange(0)
        if val_fraction:
            train_indices, val_indices = split(train.labels(), val_fraction)
    else:
        val_indices = np.arange(len(val))
    small = size <= SMALL
    changed = _small_training(size) if small else resized_crop(size, jitter)
    cropped = centre_crop(size, 1.0 if small else 256 / 224)
    return Data(Part(train, train_indices, changed), Part(val, val_indices, cropped), classes, size, RGB_MEAN, RGB_STD)


def _small_training(size: int) -> Transform:
    crop, shift = centre_crop(size, 1.0), shift_crop(size // 8, flip=True)
    return lambda image, random: shift(crop(image, random), random)
