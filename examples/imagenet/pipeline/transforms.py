"""Changes an image before the network gets it."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

Transform = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def shift_crop(pad: int, flip: bool) -> Transform:
    """Move the image by up to `pad` pixels and, with `flip`, mirror it with probability 1/2."""

    def transform(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
        height, width = image.shape[:2]
        padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)))
        top, left = random.integers(0, 2 * pad + 1, size=2)
        return _maybe_mirror(padded[top : top + height, left : left + width], flip, random)

    return transform


def resized_crop(size: int, jitter: float) -> Transform:
    """Scale a random part, 8 to 100 % of the area, to `size`; mirror it at random; change colours by up to `jitter`."""

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


def in_turn(*transforms: Transform) -> Transform:
    """Apply the transforms one after the other."""

    def transform(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
        for each in transforms:
            image = each(image, random)
        return image

    return transform


def unchanged(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return image


def colour_jitter(image: np.ndarray, amount: float, random: np.random.Generator) -> np.ndarray:
    """Change brightness, contrast and saturation, each by a factor in 1 - amount .. 1 + amount."""
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
    # Bilinear, as in most pipelines; averages of areas below half the size, where bilinear would miss pixels.
    is_small = 2 * width <= image.shape[1] and 2 * height <= image.shape[0]
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA if is_small else cv2.INTER_LINEAR)


def _maybe_mirror(image: np.ndarray, flip: bool, random: np.random.Generator) -> np.ndarray:
    return image[:, ::-1] if flip and random.random() < 0.5 else image
