"""What benchmarks.loader measures: readers of images, and a network that is trained on the images they read."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice, repeat
from pathlib import Path
from typing import NamedTuple

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "imagenet"))
from make_recordio import make_recordio  # noqa: E402
from pipeline import data  # noqa: E402
from pipeline.records import DataError  # noqa: E402

__all__ = ["Contenders", "DataError"]


class Rate(NamedTuple):
    """The result of a round."""

    images_per_second: float
    images_per_cpu_second: float
    """Images per second of CPU time of all threads of this process, which other processes disturb less."""


Measurement = Callable[[], Rate]
"""A measurement of one round."""

Batch = tuple[mx.nd.NDArray, mx.nd.NDArray]


class Clock:
    """The time and the CPU time of this process since the clock was made."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def rate(self, images: int) -> Rate:
        """Return the rate of `images` images since then."""
        seconds, cpu = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
        return Rate(images / seconds, images / cpu)


class Contenders:
    """The same images in a folder and in RecordIO, with random crops and mirroring, and one network."""

    def __init__(self, images: Path, room: Path, network: str, size: int, batch: int, threads: int) -> None:
        make_recordio(images, room)
        self._size, self._batch, self._threads = size, batch, threads
        self._folder, self._records = (data.open_data(str(place), image_size=size) for place in (images, room))
        self._record_file = room / "train.rec"
        self._network = gluon.model_zoo.vision.get_model(network, classes=self._folder.classes)
        self._network.initialize(mx.init.Xavier())
        self._network.hybridize(static_alloc=True)
        settings = {"learning_rate": 1e-4, "momentum": 0.9}
        self._trainer = gluon.Trainer(self._network.collect_params(), "sgd", settings, kvstore=None)
        self._loss = gluon.loss.SoftmaxCrossEntropyLoss()

    def reading(self, name: str, images: int) -> Measurement:
        """Return a measurement that reads images and does nothing with them."""

        def measure() -> Rate:
            batches = islice(self._batches(name), max(1, images // self._batch))
            clock, count = Clock(), 0
            for x, _ in batches:
                x.wait_to_read()
                count += len(x)
            return clock.rate(count)

        return measure

    def training(self, name: str | None, steps: int) -> Measurement:
        """Return a measurement that trains on the images of a reader, or on one batch in memory."""

        def measure() -> Rate:
            batches = self._batches(name) if name else repeat(self._in_memory())
            self._step(*next(batches))  # starts the readers
            mx.nd.waitall()
            clock = Clock()
            for x, y in islice(batches, steps):
                self._step(x, y)
            mx.nd.waitall()
            return clock.rate(steps * self._batch)

        return measure

    def _step(self, x: mx.nd.NDArray, y: mx.nd.NDArray) -> None:
        """Run a step as train.py does, which waits for a step before it begins the next but one."""
        x, y = x.as_in_context(mx.cpu()), y.as_in_context(mx.cpu())  # ImageRecordIter returns them in pinned memory
        images = self._folder.normalise(x, "float32") if x.dtype == np.uint8 else x
        with autograd.record():
            loss = self._loss(self._network(images), y)
        loss.backward()
        self._trainer.step(self._batch)
        loss.wait_to_read()

    def _batches(self, name: str) -> Iterator[Batch]:
        """Yield batches without end."""
        if name == "ImageRecordIter":
            return self._of_mxnet()
        part = (self._folder if name == "folder" else self._records).train
        return chain.from_iterable(self._epoch(part, seed) for seed in range(1 << 30))

    def _epoch(self, part: data.Part, seed: int) -> Iterator[Batch]:
        shard = data.train_shard(len(part.indices), 0, 1, self._batch, seed)
        return iter(data.batches(part, shard, self._batch, seed, self._threads))

    def _of_mxnet(self) -> Iterator[Batch]:
        mean, std = data.RGB_MEAN, data.RGB_STD
        reader = mx.io.ImageRecordIter(
            path_imgrec=str(self._record_file),
            path_imgidx=str(self._record_file.with_suffix(".idx")),
            data_shape=(3, self._size, self._size),
            batch_size=self._batch,
            preprocess_threads=self._threads,
            shuffle=True,
            random_resized_crop=True,
            min_random_area=0.08,
            max_random_area=1.0,
            min_aspect_ratio=3 / 4,
            max_aspect_ratio=4 / 3,
            rand_mirror=True,
            **{f"mean_{colour}": value for colour, value in zip("rgb", mean, strict=True)},
            **{f"std_{colour}": value for colour, value in zip("rgb", std, strict=True)},
            verbose=False,
        )
        while True:
            for batch in reader:
                yield batch.data[0], batch.label[0]
            reader.reset()

    def _in_memory(self) -> Batch:
        random = np.random.default_rng(0)
        pixels = random.integers(0, 256, (self._batch, self._size, self._size, 3), dtype=np.uint8)
        return mx.nd.array(pixels, dtype=np.uint8), mx.nd.zeros(self._batch)
