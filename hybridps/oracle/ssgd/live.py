"""Predicts a run of this package on a calibrated machine: the time of a step, phase by phase.

The prediction combines the network's layers, stretched to the measured step of as many workers on the same cores;
hybridps' buckets, with the measured cost of their sum over all workers; and, for Elastic SGD, the averaging every tau
steps, which begins at the end of the update.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from hybridps.oracle.machines.calibration import Calibration
from hybridps.oracle.ssgd.dag import Iteration, Layer, iteration_seconds, place, waited_seconds
from hybridps.oracle.ssgd.merge import Message, buckets

ITEM_BYTES = 4
LEAST_PART = 0.01
"""A phase shorter than this fraction of a step is too short to measure, and gets no accuracy."""


@dataclass(frozen=True)
class Run:
    """The configuration of a run. `elastic`: whether it is Elastic SGD rather than synchronous SGD."""

    workers: int
    groups: int
    batch_size: int
    elastic: bool
    tau: int
    bucket_bytes: int
    """The number of bytes that are reduced at a time."""


class Phases(msgspec.Struct, frozen=True):
    """The mean seconds of one step.

    `compute` lasts until the last gradient is computed, and `exposed` from then until its sum is complete; both
    together are the `step`. `loader`: Python waits for images while the engine computes. `communication`: the
    communication thread works or waits for other workers.
    """

    step: float
    compute: float
    loader: float
    communication: float
    exposed: float


PHASES = Phases.__struct_fields__


class Row(msgspec.Struct, frozen=True):
    """One phase of a step. `accuracy` is None if the phase is too short to measure."""

    phase: str
    predicted_seconds: float
    measured_seconds: float
    accuracy: float | None


def compare(predicted: Phases, measured: Phases) -> list[Row]:
    """Return one row per phase. The accuracy is 1 - |predicted - measured| / measured (Kahira et al., 2021)."""
    rows = []
    for phase in PHASES:
        expected, found = getattr(predicted, phase), getattr(measured, phase)
        long_enough = found >= LEAST_PART * measured.step > 0
        rows.append(Row(phase, expected, found, 1 - abs(expected - found) / found if long_enough else None))
    return rows


def predict(calibration: Calibration, run: Run) -> Phases:
    """Predict the phases. Raises OracleError if the calibration lacks a measurement that the run needs."""
    steps = calibration.steps_of(run.workers)
    compute_seconds, loader_seconds = steps.step(run.batch_size), steps.loader(run.batch_size)
    layers = stretched_layers(calibration, compute_seconds)
    if run.workers == 1:
        return Phases(compute_seconds, compute_seconds, loader_seconds, 0.0, 0.0)
    sums = messages(calibration, run)
    plain = _phases(Iteration(layers, sums), loader_seconds)
    average = calibration.communication_of(run.workers, run.groups).average
    if not run.elastic or average is None:
        return plain
    seconds = average.cost(ITEM_BYTES * calibration.layers.weight_items)
    weights = Message((), seconds, average.loss * seconds)
    averaging = _phases(Iteration(layers, [weights, *sums]), loader_seconds)
    part = 1 / run.tau
    return Phases(*(part * getattr(averaging, name) + (1 - part) * getattr(plain, name) for name in PHASES))


def stretched_layers(calibration: Calibration, step_seconds: float) -> list[Layer]:
    """Return the measured layers, scaled so that forward, backward and update together take `step_seconds`.

    Each pass has its measured part of the whole. Within a pass, the times of layers are in proportion to those measured
    one by one. The time of an update is in proportion to the items.
    """
    measured = calibration.layers
    network, whole = measured.network, measured.whole
    stretch = step_seconds / (whole.forward_seconds + whole.backward_seconds + whole.update_seconds)
    forward = [layer.forward_seconds or 0.0 for layer in network.layers]
    backward = [layer.backward_seconds or 0.0 for layer in network.layers]
    items = [layer.weight_items for layer in network.layers]
    return [
        Layer(
            layer.name,
            backward_seconds=stretch * whole.backward_seconds * backward[number] / sum(backward),
            forward_seconds=stretch * whole.forward_seconds * forward[number] / sum(forward),
            update_seconds=stretch * whole.update_seconds * items[number] / sum(items),
            gradient_bytes=ITEM_BYTES * items[number],
        )
        for number, layer in enumerate(network.layers)
    ]


def messages(calibration: Calibration, run: Run) -> list[Message]:
    """Return the buckets of a step. Each takes its share of the time of all buckets."""
    sizes = [ITEM_BYTES * layer.weight_items for layer in calibration.layers.network.layers]
    if run.elastic:
        members = -(-run.workers // run.groups)
        if members == 1:
            return []
        operation = calibration.communication_of(members, 1).sum
    else:
        operation = calibration.communication_of(run.workers, run.groups).sum
    lengths = buckets(sizes, run.bucket_bytes, float)
    total = sum(bucket.seconds for bucket in lengths)
    seconds = operation.cost(total)
    return [
        Message(bucket.layers, part * seconds, part * seconds * operation.loss)
        for bucket in lengths
        for part in [bucket.seconds / total]
    ]


def _phases(iteration: Iteration, loader_seconds: float) -> Phases:
    step = iteration_seconds(iteration, "hybridps")
    exposed = waited_seconds(place(iteration, "hybridps", 2))
    communication = sum(message.seconds for message in iteration.messages)
    return Phases(step, step - exposed, loader_seconds, communication, exposed)
