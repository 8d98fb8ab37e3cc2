"""The ImageNet example: batches that threads read ahead."""

from __future__ import annotations

import threading

import numpy as np
import pytest

pytest.importorskip("mxnet")
pytestmark = pytest.mark.mxnet


class Numbered:
    """Images that have their position in every pixel."""

    shape = (2, 3, 1)

    def __init__(self, damaged: int = -1) -> None:
        self._damaged = damaged
        self.read: list[int] = []

    def __getitem__(self, position: int) -> tuple[np.ndarray, float]:
        if position == self._damaged:
            raise ValueError(f"image {position}")
        self.read.append(position)
        return np.full(self.shape, position, np.uint8), position % 10


def batches(count: int, size: int) -> list[range]:
    return [range(begin, min(begin + size, count)) for begin in range(0, count, size)]


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize(("count", "size"), [(0, 4), (3, 4), (40, 4), (203, 20)])
def test_batches_come_in_order(example, threads, count, size):
    loader = example.loader.Loader(Numbered(), batches(count, size), threads)
    found = [(x.asnumpy(), y.asnumpy()) for x, y in loader]
    assert [len(x) for x, _ in found] == [len(each) for each in batches(count, size)] == [len(y) for _, y in found]
    pixels = [position for x, _ in found for position in x[:, 1, 2, 0]]
    assert pixels == list(range(count))
    assert [label for _, y in found for label in y] == [position % 10 for position in range(count)]


@pytest.mark.parametrize("threads", [0, 2])
def test_what_an_image_raises_is_raised_with_its_batch(example, threads):
    reading = iter(example.loader.Loader(Numbered(damaged=10), batches(40, 4), threads))
    assert [y.asnumpy()[0] for y in (next(reading)[1], next(reading)[1])] == [0, 4]
    with pytest.raises(ValueError, match="image 10"):
        next(reading)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("loader")]


def test_batches_are_read_ahead_but_not_all(example):
    """Threads end with the one who reads, also before the last batch."""
    images = Numbered()
    reading = iter(example.loader.Loader(images, batches(4000, 4), 2))
    next(reading)
    assert len(images.read) <= 4 * (1 + example.loader.AHEAD)
    reading.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("loader")]
