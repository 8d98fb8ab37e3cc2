"""What is reduced: flat buffers of many sizes, and the gradients of ResNet-50. Pure functions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CASES = ("flat", "resnet50")

ITEM_BYTES = 4
"""The size of an element: all values are float32."""

FLAT_SIZES = (*(4096 * 4**power for power in range(8)), 102_400_000)
"""Sizes in bytes: 4 KB to 64 MB in powers of 4, and 25.6 million float32 values."""

_SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Case:
    """A reduction to measure: tensors of float32, each given by its number of elements."""

    name: str
    tensors: tuple[int, ...]

    @property
    def length(self) -> int:
        """The number of elements in all tensors."""
        return sum(self.tensors)

    @property
    def nbytes(self) -> int:
        return ITEM_BYTES * self.length


def make_cases(names: tuple[str, ...], sizes: tuple[int, ...]) -> list[Case]:
    """Return the cases with these names: `flat` for each size in bytes, and `resnet50`."""
    flat = [Case("flat", (size // ITEM_BYTES,)) for size in sizes] if "flat" in names else []
    return flat + ([Case("resnet50", resnet50_tensors())] if "resnet50" in names else [])


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return the sizes in bytes of a text such as `4K,1M,102400000`; K, M and G are powers of 1024. Raises ValueError.

    >>> parse_sizes("4K,100")
    (4096, 100)
    """
    return tuple(_size(part.strip()) for part in text.split(",") if part.strip())


def one_of(text: str, known: Sequence[str]) -> tuple[str, ...]:
    """Return the names in a text such as `a,b`. Raises ValueError for one that is not known.

    >>> one_of("b", ("a", "b"))
    ('b',)
    """
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if name not in known:
            raise ValueError(f"{name!r} is unknown: use {', '.join(known)}")
    return names


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d+)([KMG]?)B?", text.upper())
    size = int(found[1]) * _SUFFIXES[found[2]] if found else 0
    if size <= 0 or size % ITEM_BYTES:
        raise ValueError(f"{text!r} is no size: write bytes, a multiple of {ITEM_BYTES} (4096, 4K, 1M)")
    return size


def resnet50_tensors() -> tuple[int, ...]:
    """Return the sizes of the 161 parameter tensors of ResNet-50 with 1000 classes, in the order of the layers."""
    return tuple(math.prod(shape) for shape in _resnet50_shapes())


def _resnet50_shapes() -> Iterator[tuple[int, ...]]:
    # He et al., Deep Residual Learning for Image Recognition (2016), table 1.
    yield from _convolution(3, 64, 7)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            yield from _convolution(inputs, width, 1)
            yield from _convolution(width, width, 3)
            yield from _convolution(width, 4 * width, 1)
            if block == 0:
                yield from _convolution(inputs, 4 * width, 1)
            inputs = 4 * width
    yield (1000, inputs)
    yield (1000,)


def _convolution(inputs: int, outputs: int, kernel: int) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of a convolution's weights, and of the scales and shifts of the normalisation after it."""
    yield (outputs, inputs, kernel, kernel)
    yield (outputs,)
    yield (outputs,)
