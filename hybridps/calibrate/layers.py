"""Measures the layers of a network under MXNet: `python -m hybridps.calibrate.layers RUN MODELS BATCH FILE`.

RUN is the folder of a run of the training script, whose settings name the network; MODELS is a Python file with
`make(name, classes, width)`, such as examples/imagenet/models.py, or empty for Gluon's model zoo.
"""

from __future__ import annotations

import json
import runpy
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import mxnet as mx
from mxnet import autograd, gluon

from hybridps.calibrate.mxnet_networks import from_block
from hybridps.oracle.machines.calibration import Layers, Pass
from hybridps.oracle.networks import Network

ROUNDS = 5


def main(run: str, models: str, batch_size: str, path: str) -> None:
    """Measure, and write `Layers` as JSON to `path`."""
    settings = json.loads((Path(run) / "config.json").read_text())
    size = settings["image_size"]
    block = _make(settings, models)
    block.initialize()
    data = mx.nd.random.uniform(shape=(int(batch_size), settings.get("channels", 3), size, size))
    passes = _whole(block, data)
    network = _with_times(from_block(block, data.shape[1:], name=settings["network"]), _each(block, data), len(data))
    items = sum(int(array.data().size) for array in block.collect_params().values())
    Path(path).write_bytes(msgspec.json.encode(Layers(network, len(data), passes, items)))


def _make(settings: dict[str, Any], models: str) -> gluon.HybridBlock:
    if not models:
        return gluon.model_zoo.vision.get_model(settings["network"], classes=settings["classes"])
    make = runpy.run_path(models)["make"]
    return make(settings["network"], settings["classes"], settings["width"])


def _whole(block: gluon.HybridBlock, data: mx.nd.NDArray) -> Pass:
    """Measure forward, backward and update of the whole network, in this order."""
    block.hybridize(static_alloc=True)
    block(data)
    trainer = gluon.Trainer(block.collect_params(), "nag", {"learning_rate": 1e-9, "momentum": 0.9}, kvstore=None)
    found = []
    for _ in range(ROUNDS + 2):
        began = _now()
        with autograd.record():
            output = block(data)
        forward = _now()
        output.backward()
        backward = _now()
        trainer.step(len(data))
        found.append((forward - began, backward - forward, _now() - backward))
    block.hybridize(active=False)
    return _median(found[2:])


def _each(block: gluon.HybridBlock, data: mx.nd.NDArray) -> dict[str, Pass]:
    """Measure forward and backward of every layer on its own, with the input that it has in the network."""
    inputs: dict[gluon.Block, Any] = {}
    handles = []

    def keep(layer: gluon.Block) -> None:
        if not layer._children:
            handles.append(layer.register_forward_pre_hook(lambda own, given: inputs.__setitem__(own, given)))

    block.apply(keep)
    block(data)
    mx.nd.waitall()
    for handle in handles:
        handle.detach()
    return {layer.name: _one(layer, given) for layer, given in inputs.items()}


def _one(layer: gluon.Block, given: Any) -> Pass:
    arrays = [array.copy() for array in given]
    for array in arrays:
        array.attach_grad()
    found = []
    for _ in range(ROUNDS):
        began = _now()
        with autograd.record():
            output = layer(*arrays)
        forward = _now()
        output.backward()
        found.append((forward - began, _now() - forward, 0.0))
    return _median(found[1:])


def _with_times(network: Network, times: dict[str, Pass], samples: int) -> Network:
    """Return the network with times for one sample.

    A layer of the symbol has the name of its block with `_fwd`. Other layers take no time.
    """
    timed = []
    for layer in network.layers:
        found = times.get(layer.name.removesuffix("_fwd"), Pass(0.0, 0.0, 0.0))
        forward, backward = found.forward_seconds / samples, found.backward_seconds / samples
        timed.append(msgspec.structs.replace(layer, forward_seconds=forward, backward_seconds=backward))
    return msgspec.structs.replace(network, layers=tuple(timed))


def _median(found: list[tuple[float, float, float]]) -> Pass:
    return Pass(*(statistics.median(seconds) for seconds in zip(*found, strict=True)))


def _now() -> float:
    mx.nd.waitall()
    return time.perf_counter()


if __name__ == "__main__":
    main(*sys.argv[1:])
