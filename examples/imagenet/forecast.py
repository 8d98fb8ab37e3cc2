"""Forecasts the cost of a training: `--dry-run` measures some steps here, and asks hybridps's oracle to extrapolate."""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import mxnet as mx
from msgspec.structs import replace
from pipeline import data

from hybridps.calibrate.mxnet_networks import from_file
from hybridps.errors import HybridPSError
from hybridps.oracle.hybrid import predict_scheme, scheme_of
from hybridps.oracle.machines import Machine, machine_of, with_settings
from hybridps.oracle.paradl import Prediction, Work, predict

STEPS = 3
"""The number of steps that are timed, after one that is not."""

READING_SECONDS = 3.0

PROBE_FLOPS = 1e12

GROUPS, TAU = 2, 8
"""The settings of the forecasts for several groups, which are made if the workers can be divided."""


class ForecastError(Exception):
    """The oracle cannot answer. The message says why."""


class Measured(NamedTuple):
    """What was measured on this host."""

    step_seconds: float
    """The time of a step with a batch in memory, without communication."""
    images_per_second: float
    """The speed of the readers alone."""
    parameters: int
    memory_bytes: int
    """The largest resident memory of this process so far."""


def measure(training: Any) -> Measured:
    """Train for a few steps, and return what was measured. `training` is a `train.Training` without a store."""
    args, part = training.args, training.images.train
    shard = data.train_shard(len(part.indices), 0, 1, args.batch_size, args.seed)
    batches = iter(data.batches(part, shard, args.batch_size, args.seed, args.loader_threads, training.skipped))
    x, y = next(batches)
    training.train_step(x, y, (0, 0))
    mx.nd.waitall()
    began = time.perf_counter()
    for step in range(STEPS):
        training.train_step(x, y, (0, 1 + step))
    mx.nd.waitall()
    seconds = (time.perf_counter() - began) / STEPS
    rate = _reading_rate(batches, args.batch_size)
    parameters = sum(parameter.data().size for parameter in training.net.collect_params().values())
    return Measured(seconds, rate, parameters, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _reading_rate(batches: Iterator, batch_size: int) -> float:
    ahead = len(list(islice(batches, 3)))  # these were read while the network was trained
    began, read = time.perf_counter(), 0
    while ahead and time.perf_counter() - began < READING_SECONDS and next(batches, None) is not None:
        read += 1
    return read * batch_size / (time.perf_counter() - began) if read else float("nan")


def links_of(machine: str) -> Machine:
    """Return the machine of that name or file, of which the links are used. Raises ForecastError."""
    try:
        return machine_of(machine)
    except HybridPSError as error:
        raise ForecastError(f"the oracle cannot answer: {error}") from None


def report(training: Any, workers: int, links: Machine) -> Iterator[str]:
    """Yield lines about the whole training with `workers` workers. Raises ForecastError if the oracle cannot answer."""
    args, images, steps = training.args, training.images, training.steps(workers)
    count, validated, found = len(images.train.indices), len(images.val.indices), measure(training)
    yield f"images: {count:,} for training, {validated:,} for validation"
    yield f"classes: {images.classes}; {images.image_size}x{images.image_size} pixels"
    yield f"network: {args.network}, {found.parameters / 1e6:.2f} million parameters"
    yield (
        f"steps: {steps:,} in an epoch with {workers} workers and batches of {args.batch_size}; "
        f"{steps * args.epochs:,} in {args.epochs} epochs"
    )
    yield f"memory: {found.memory_bytes / 1e9:.2f} GB of this host for a worker"
    yield (
        f"measured here: a step takes {1e3 * found.step_seconds:.0f} ms, {args.batch_size / found.step_seconds:.0f} "
        f"images/s; reading alone {found.images_per_second:.0f} images/s"
    )
    yield f"the oracle's forecast, for workers as fast as this one and the links of {args.machine}:"
    yield f"{'workers':>8}  {'':28}{'epoch':>9}{'training':>10}{'waits':>7}{'memory':>10}"
    work = _work(training, found, links)
    for number in sorted({max(1, workers // 2), workers, 2 * workers}):
        batch = args.batch_size * number
        if batch > count:
            yield f"{number:8}  fewer images than a batch for each"
            continue
        whole = Work(replace(work.network, samples=training.steps(number) * batch), work.machine)
        for words, answer in _answers(whole, number, batch):
            yield _row(words, number, args.epochs, answer)
    yield (
        "the forecast's memory: all layers' inputs, outputs, weights and their gradients at once, for "
        f"{args.batch_size} images; MXNet reuses a part of it"
    )


def _work(training: Any, found: Measured, links: Machine) -> Work:
    """Return the network on a machine whose processing elements are as fast as was measured."""
    images = training.images
    samples = len(images.train.indices)
    try:
        with tempfile.TemporaryDirectory() as folder:
            training.net.export(str(Path(folder, "network")))
            shape = (len(images.mean), images.image_size, images.image_size)
            network = from_file(Path(folder, "network-symbol.json"), shape)
    except HybridPSError as error:
        raise ForecastError(f"the oracle cannot answer: {error}") from None
    network = replace(network, samples=samples)
    probe = Work(network, with_settings(links, {"speed_flops": PROBE_FLOPS}))
    batch = training.args.batch_size
    probed = predict(probe, "serial", 1, batch).prediction.compute_seconds_per_epoch
    speed = PROBE_FLOPS * probed / (found.step_seconds * samples / batch)
    return Work(network, with_settings(links, {"speed_flops": speed}))


def _answers(work: Work, workers: int, batch: int) -> Iterator[tuple[str, Prediction]]:
    if workers == 1:
        yield "alone", predict(work, "serial", 1, batch).prediction
        return
    yield "one group", predict(work, "data", workers, batch).prediction
    if workers % GROUPS == 0:
        for name, more in (("sync", {}), ("elastic", {"tau": TAU})):
            words = ", ".join([f"{GROUPS} groups", name, *(f"{key} {value}" for key, value in more.items())])
            scheme = scheme_of(name, {"groups": GROUPS, **more})
            yield words, predict_scheme(work, scheme, workers, batch).prediction


def _row(words: str, workers: int, epochs: int, answer: Prediction) -> str:
    epoch = answer.seconds_per_epoch
    waits = answer.communication_seconds_per_epoch / epoch
    return (
        f"{workers:8}  {words:28}{_duration(epoch):>9}{_duration(epochs * epoch):>10}{100 * waits:6.1f}%"
        f"{answer.memory_bytes_per_pe / 1e9:7.2f} GB"
    )


def _duration(seconds: float) -> str:
    """
    >>> _duration(7), _duration(90), _duration(5400), _duration(400_000)
    ('7.0 s', '1.5 min', '1.5 h', '4.6 d')
    """
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
