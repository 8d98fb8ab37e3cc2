"""Changes to the colours and the shape of training images: RandAugment, and cutout.

RandAugment: Cubuk et al., 2020. Cutout: DeVries and Taylor, 2017.
"""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

from pipeline.transforms import Transform

GREY = (124, 117, 104)
"""The colour of areas that the image no longer covers: the mean of ImageNet."""

STRONGEST = 10.0
"""The largest magnitude."""

Operation = Callable[[np.ndarray, float], np.ndarray]
"""Changes a uint8 image of red, green and blue by a strength from -1 to 1."""


def augmentation(rand: tuple[int, float] | None, cut: float) -> list[Transform]:
    """Return the transforms that the command line asks for, in the order in which they are applied."""
    return ([rand_augment(*rand)] if rand else []) + ([cutout(cut)] if cut else [])


def rand_augment(operations: int, magnitude: float) -> Transform:
    """Apply `operations` random operations to each image, each with `magnitude` (0 to 10) in a random direction."""

    def transform(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
        image = np.ascontiguousarray(image)
        for number in random.integers(0, len(OPERATIONS), size=operations):
            image = OPERATIONS[number](image, magnitude / STRONGEST * random.choice((-1.0, 1.0)))
        return image

    return transform


def cutout(part: float) -> Transform:
    """Draw a grey square at a random place, perhaps partly outside. `part`: its side, as a share of the image's."""

    def transform(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
        height, width, channels = image.shape
        half = round(part * min(height, width)) / 2
        y, x = random.uniform(0, height), random.uniform(0, width)
        image = image.copy()
        top, left = max(0, round(y - half)), max(0, round(x - half))
        image[top : max(0, round(y + half)), left : max(0, round(x + half))] = GREY[:channels]
        return image

    return transform


def _unchanged(image: np.ndarray, strength: float) -> np.ndarray:
    return image


def _contrast_to_the_full(image: np.ndarray, strength: float) -> np.ndarray:
    low, high = image.min(axis=(0, 1)).astype(np.float32), image.max(axis=(0, 1)).astype(np.float32)
    scale = np.where(high > low, 255 / np.maximum(high - low, 1), 1)
    return ((image - np.where(high > low, low, 0)) * scale).astype(np.uint8)


def _equalized(image: np.ndarray, strength: float) -> np.ndarray:
    return cv2.merge([cv2.equalizeHist(channel) for channel in cv2.split(image)])


def _solarized(image: np.ndarray, strength: float) -> np.ndarray:
    return np.where(image < 256 * (1 - abs(strength)), image, 255 - image)


def _posterized(image: np.ndarray, strength: float) -> np.ndarray:
    return image & np.uint8(256 - (1 << round(4 * abs(strength))))


def _sharpened(image: np.ndarray, strength: float) -> np.ndarray:
    return cv2.addWeighted(image, 1 + strength, cv2.blur(image, (3, 3)), -strength, 0)


def _brightened(image: np.ndarray, strength: float) -> np.ndarray:
    return cv2.convertScaleAbs(image, alpha=1 + 0.9 * strength)


def _contrasted(image: np.ndarray, strength: float) -> np.ndarray:
    mean = float(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).mean())
    return _blended(image, np.full_like(image, round(mean)), strength)


def _coloured(image: np.ndarray, strength: float) -> np.ndarray:
    return _blended(image, cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB), strength)


def _blended(image: np.ndarray, other: np.ndarray, strength: float) -> np.ndarray:
    return cv2.addWeighted(image, 1 + 0.9 * strength, other, -0.9 * strength, 0)


def _rotated(image: np.ndarray, strength: float) -> np.ndarray:
    height, width = image.shape[:2]
    return _warped(image, cv2.getRotationMatrix2D((width / 2, height / 2), 30 * strength, 1.0))


def _sheared_along(image: np.ndarray, strength: float) -> np.ndarray:
    return _warped(image, np.array([[1, 0.3 * strength, 0], [0, 1, 0]]))


def _sheared_down(image: np.ndarray, strength: float) -> np.ndarray:
    return _warped(image, np.array([[1, 0, 0], [0.3 * strength, 1, 0]]))


def _moved_along(image: np.ndarray, strength: float) -> np.ndarray:
    return _warped(image, np.array([[1, 0, 0.45 * strength * image.shape[1]], [0, 1, 0]]))


def _moved_down(image: np.ndarray, strength: float) -> np.ndarray:
    return _warped(image, np.array([[1, 0, 0], [0, 1, 0.45 * strength * image.shape[0]]]))


def _warped(image: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    return cv2.warpAffine(image, matrix, image.shape[1::-1], borderValue=GREY)


OPERATIONS: tuple[Operation, ...] = (
    _unchanged,
    _contrast_to_the_full,
    _equalized,
    _solarized,
    _posterized,
    _sharpened,
    _brightened,
    _contrasted,
    _coloured,
    _rotated,
    _sheared_along,
    _sheared_down,
    _moved_along,
    _moved_down,
)
