"""Batches that threads read ahead of the network.

Threads, not processes: a process forked from an MPI rank inherits connections that it must not use. OpenCV reads and
scales images without Python's lock, so that threads use all cores.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import cv2
import mxnet as mx
import numpy as np

AHEAD = 3
"""The number of batches that are read, or being read, while the network works on another one."""

TOGETHER = 8
"""The number of images that a thread reads at once: enough for little overhead, few enough to share a batch."""

cv2.setNumThreads(1)  # OpenCV processes each image in the thread that reads it

Batch = tuple[mx.nd.NDArray, mx.nd.NDArray]
Room = tuple[np.ndarray, np.ndarray]
"""The images and the labels of a batch, which threads write."""


class Images(Protocol):
    """uint8 images, all of the same shape (height, width, channels), with the numbers of their classes."""

    shape: tuple[int, int, int]

    def __getitem__(self, position: int) -> tuple[np.ndarray, float]: ...


class Loader:
    """Batches of the images at given positions, read by `threads` threads; with 0, read when they are requested.

    An error of an image is raised when its batch is requested.
    """

    def __init__(self, images: Images, batches: Sequence[Sequence[int]], threads: int) -> None:
        self._images, self._batches, self._threads = images, batches, threads

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        if not self._threads:
            for positions in self._batches:
                room = self._room(len(positions))
                self._read(positions, *room)
                yield _arrays(*room)
            return
        pool = ThreadPoolExecutor(self._threads, "loader")
        try:
            reading: deque[tuple[Room, list[Future[None]]]] = deque()
            for positions in self._batches:
                reading.append(self._begin(pool, positions))
                if len(reading) > AHEAD:
                    yield _wait(*reading.popleft())
            while reading:
                yield _wait(*reading.popleft())
        finally:
            pool.shutdown(cancel_futures=True)

    def _begin(self, pool: ThreadPoolExecutor, positions: Sequence[int]) -> tuple[Room, list[Future[None]]]:
        images, labels = room = self._room(len(positions))
        shares = [slice(at, at + TOGETHER) for at in range(0, len(positions), TOGETHER)]
        return room, [pool.submit(self._read, positions[share], images[share], labels[share]) for share in shares]

    def _room(self, count: int) -> Room:
        return np.empty((count, *self._images.shape), np.uint8), np.empty(count, np.float32)

    def _read(self, positions: Sequence[int], images: np.ndarray, labels: np.ndarray) -> None:
        for number, position in enumerate(positions):
            images[number], labels[number] = self._images[position]


def usual_threads() -> int:
    """Return one thread per core that this process may use; under Open MPI, the workers of a host share the cores."""
    cores = len(os.sched_getaffinity(0))
    return max(1, cores // int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1")))


def _wait(room: Room, shares: Sequence[Future[None]]) -> Batch:
    for share in shares:
        share.result()
    return _arrays(*room)


def _arrays(images: np.ndarray, labels: np.ndarray) -> Batch:
    # A copy: otherwise MXNet would free NumPy's memory by calling Python from its own thread, even while Python ends.
    return mx.nd.array(images, dtype=np.uint8), mx.nd.array(labels, dtype=np.float32)
