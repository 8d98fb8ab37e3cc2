"""Evaluates networks on the validation images."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import mxnet as mx
import numpy as np
import options
from losses import score
from mxnet import gluon
from pipeline import data


def evaluate(
    args: Namespace,
    images: data.Data,
    seen: np.ndarray,
    nets: dict[str, Any],
    devices: list[mx.Context],
    skipped: data.Skipped | None,
) -> dict[str, float]:
    """Return sums over this worker's validation images, for each of the networks that is not None."""
    nets = {name: net for name, net in nets.items() if net}
    sums, count = {name: np.zeros(3) for name in nets}, 0
    loader = data.batches(images.val, seen, args.batch_size, 0, args.loader_threads, skipped, each_once=True)
    for x, y in loader if len(seen) else ():
        count += int((y.asnumpy() != data.NONE).sum())
        for xs, ys in on_devices(x, y, devices):
            for name, net in nets.items():
                sums[name] += score(net(images.normalise(xs, options.weights_dtype(args))), ys, images.classes)
    fields = ("top1_correct", "top5_correct", "loss_sum")
    named = {f"{name}_{field}": value for name in nets for field, value in zip(fields, sums[name], strict=True)}
    return {"val_images": count} | {k: value if k.endswith("sum") else int(value) for k, value in named.items()}


def on_devices(x: mx.nd.NDArray, y: mx.nd.NDArray, devices: list[mx.Context]) -> Iterator:
    """Yield equal parts of a batch, one for each device; for fewer devices if the batch has fewer images."""
    used = devices[: len(x)]
    return zip(*(gluon.utils.split_and_load(part, used, even_split=False) for part in (x, y)), strict=True)
