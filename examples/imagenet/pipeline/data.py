"""Images for training and validation: which worker gets which of them, and batches of them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mxnet as mx
import numpy as np

from pipeline.loader import Loader, usual_threads
from pipeline.records import DataError, ImageError
from pipeline.sources import ArrayImages, FolderImages, RecordImages, Source
from pipeline.transforms import Transform, centre_crop, in_turn, resized_crop, shift_crop, unchanged

SMALL = 64  # if the first image's shorter side is at most this, images are used whole in training, with small shifts
RGB_MEAN, RGB_STD = (123.68, 116.78, 103.94), (58.39, 57.12, 57.38)
DIGIT_MEAN, DIGIT_STD = (4.88,), (6.02,)

NONE = -1.0
"""The label of an image that stands in for a corrupt one, and does not count."""


@dataclass(frozen=True)
class Part:
    """Some of the images of a source, with the transform that is applied to each of them.

    `shape`: height, width and channels of an image after the transform.
    """

    source: Source
    indices: np.ndarray
    transform: Transform
    shape: tuple[int, int, int]


@dataclass(frozen=True)
class Data:
    """The data of a training. Mean and standard deviation are per channel, of values from 0 to 255."""

    train: Part
    val: Part
    classes: int
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalise(self, images: mx.nd.NDArray, dtype: str) -> mx.nd.NDArray:
        """Return uint8 (batch, height, width, channels) as normalised `dtype` (batch, channels, height, width)."""
        mean, std = (mx.nd.array(values, ctx=images.context) for values in (self.mean, self.std))
        return ((images.astype("float32") - mean) / std).transpose((0, 3, 1, 2)).astype(dtype)


class Skipped:
    """The corrupt images that a worker skips. Each is named once, on standard error. Threads may add to it."""

    def __init__(self) -> None:
        self._named: set[str] = set()
        self._new: set[str] = set()
        self._lock = threading.Lock()

    def add(self, damage: ImageError) -> None:
        said = str(damage)
        with self._lock:
            self._new.add(said)
            if said not in self._named:
                self._named.add(said)
                print(f"train.py: skipped: {said}", file=sys.stderr, flush=True)

    def take(self) -> int:
        """Return how many were added since the last call."""
        count = len(self._new)
        self._new.clear()
        return count


def train_shard(count: int, worker: int, workers: int, batch_size: int, seed: int) -> np.ndarray:
    """Return the images of this worker, in order: its part of a permutation that depends on the seed alone.

    Every worker gets the same number of full batches, because workers wait for each other in every step. Which images
    are left over depends on the seed. Raises DataError if there is no full batch for each worker.
    """
    steps = count // workers // batch_size
    if steps == 0:
        raise DataError(
            f"{count} training images are less than one batch of {batch_size} for each of {workers} workers; "
            f"use --batch-size {max(1, count // workers)} or less"
        )
    order = np.random.default_rng(seed).permutation(count)
    return order[worker::workers][: steps * batch_size]


def order(count: int, workers: int, batch_size: int, seed: int) -> str:
    """Return, in words, what the order of the training images depends on."""
    return f"{count} images, {workers} workers, batches of {batch_size}, seed {seed}"


def val_shard(count: int, worker: int, workers: int) -> np.ndarray:
    """Return the images that this worker validates on. Together, all workers validate each image once."""
    return np.arange(count)[worker::workers]


class _Chosen:
    """Chosen images of a part, as the network gets them, with their labels.

    With `skipped`, the next image that is not corrupt stands in for a corrupt one, so that their number stays the same.
    """

    def __init__(self, part: Part, chosen: np.ndarray, seed: int, skipped: Skipped | None, each_once: bool) -> None:
        self.shape = part.shape
        self._part, self._chosen, self._seed = part, chosen, seed
        self._skipped, self._each_once = skipped, each_once

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, position: int) -> tuple[np.ndarray, float]:
        for ahead in range(len(self)):
            index = int(self._part.indices[self._chosen[(position + ahead) % len(self)]])
            try:
                image, label = self._part.source[index]
            except ImageError as damage:
                if self._skipped is None:
                    raise
                self._skipped.add(damage)
                continue
            # The image determines the seed, so that the result does not depend on the thread that reads it.
            image = self._part.transform(image, np.random.default_rng((self._seed, index)))
            return image, NONE if ahead and self._each_once else label
        raise ImageError(f"--skip-corrupt leaves no image: all {len(self)} of a worker are corrupt")


def batches(
    part: Part,
    chosen: np.ndarray,
    batch_size: int,
    seed: int,
    threads: int | None,
    skipped: Skipped | None = None,
    each_once: bool = False,
    first: int = 0,
) -> Loader:
    """Return batches of uint8 images (batch, height, width, channels) and float32 labels, starting at batch `first`.

    A corrupt image raises ImageError; with `skipped`, it is added there, and another one stands in for it. With
    `each_once`, that one has the label NONE.
    """
    images = _Chosen(part, chosen, seed, skipped, each_once)
    begins = range(first * batch_size, len(chosen), batch_size)
    return Loader(
        images,
        [range(begin, min(begin + batch_size, len(chosen))) for begin in begins],
        usual_threads() if threads is None else threads,
    )


def open_data(
    name: str,
    *,
    image_size: int | None = None,
    classes: int | None = None,
    val_fraction: float = 0.0,
    jitter: float = 0.0,
    synthetic_images: int = 1280,
    skip_corrupt: bool = False,
    augmentation: Sequence[Transform] = (),
) -> Data:
    """Return the data by its name on the command line: `digits`, `synthetic`, or a folder. Raises DataError.

    `augmentation` is applied to training images once they have their final size.
    """
    if augmentation and name in ("digits", "synthetic"):
        raise DataError(f"--data {name}: --rand-augment and --cutout are for photographs")
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
    try:
        shorter = _shorter_side(train, skip_corrupt)
    except ImageError as damage:
        raise DataError(f"{damage}; use --skip-corrupt to skip such images") from None
    small = shorter <= SMALL
    size = image_size or (shorter if small else 224)
    changed = in_turn(_small_training(size) if small else resized_crop(size, jitter), *augmentation)
    cropped = centre_crop(size, 1.0 if small else 256 / 224)
    return _photographs(train, val, classes or found, size, val_fraction, changed, cropped)


def _shorter_side(images: Source, skip_corrupt: bool) -> int:
    """Return the shorter side of the first image. Raises ImageError if that image is corrupt."""
    for index in range(len(images)):
        try:
            return min(images[index][0].shape[:2])
        except ImageError:
            if not skip_corrupt:
                raise
    raise DataError(f"--skip-corrupt leaves no image: all {len(images)} for training are corrupt")


def split(labels: np.ndarray, fraction: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of a training and a held-out part. The held-out part has `fraction` of each class, rounded.

    Of a class with two images or more, at least one is in each part. A single image is for training.
    """
    random = np.random.default_rng(seed)
    held = []
    for label in np.unique(labels):
        members = random.permutation(np.flatnonzero(labels == label))
        held.append(members[: min(max(1, round(fraction * len(members))), len(members) - 1)])
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
    parts = (Part(source, *which, (8, 8, 1)) for which in ((train, transform), (val, unchanged)))
    return Data(*parts, 10, 8, DIGIT_MEAN, DIGIT_STD)


def _synthetic(count: int, size: int, classes: int) -> Data:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, size=(32, size, size, 3), dtype=np.uint8)
    labels = random.integers(0, classes, size=count)
    train, val = (ArrayImages(images, labels, length) for length in (count, max(1, count // 10)))
    parts = (Part(source, np.arange(len(source)), unchanged, (size, size, 3)) for source in (train, val))
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
    # Reading every label of the records takes long; the file and the option avoid it.
    found = len(names.read_text().splitlines()) if names.exists() else classes or int(train.labels().max()) + 1
    for records in (train, val):
        if records is not None:
            records.classes = classes or found
    return train, val, found


def _photographs(
    train: Source,
    val: Source | None,
    classes: int,
    size: int,
    val_fraction: float,
    changed: Transform,
    cropped: Transform,
) -> Data:
    train_indices = np.arange(len(train))
    if val is None:
        val, val_indices = train, np.arange(0)
        if val_fraction:
            train_indices, val_indices = split(train.labels(), val_fraction)
    else:
        val_indices = np.arange(len(val))
    parts = (Part(*part, (size, size, 3)) for part in ((train, train_indices, changed), (val, val_indices, cropped)))
    return Data(*parts, classes, size, RGB_MEAN, RGB_STD)


def _small_training(size: int) -> Transform:
    crop, shift = centre_crop(size, 1.0), shift_crop(size // 8, flip=True)
    return lambda image, random: shift(crop(image, random), random)
