"""What the clients share: their command line, their data, a worker's part of a batch, and the file of results."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable
from typing import Any

import mxnet as mx
import numpy as np


def start(**options: Any) -> tuple[argparse.Namespace, Any]:
    """What the command line says, and a KVStore of the type that it names. `options`: further ones, and their defaults.

    All random numbers are seeded.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("kv_store", help="the type of the KVStore")
    parser.add_argument("out", help="where each worker writes its results: OUT.RANK.npz")
    for name, default in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    given = parser.parse_args()
    logging.getLogger().setLevel(logging.INFO)
    mx.random.seed(7)
    np.random.seed(7)
    kv = mx.kv.create(given.kv_store)
    if given.kv_store == "dist_sync":
        _wait_for_first_weights()
    return given, kv


def _wait_for_first_weights() -> None:
    """Let no worker of MXNet's own store send a gradient before all have the first weights.

    MXNet's Trainer asks for them after the first gradients are computed. If it updates the weights itself, the sums of
    these gradients replace the weights at the servers, and a worker whose request comes late gets the sums.
    """
    begin = mx.gluon.Trainer._init_params

    def begin_together(trainer: Any) -> None:
        begin(trainer)
        mx.nd.waitall()
        trainer._kvstore._barrier()  # the store itself must not live as long as this function

    mx.gluon.Trainer._init_params = begin_together


def part(batch: np.ndarray, kv: Any) -> np.ndarray:
    """This worker's part of a batch."""
    size = len(batch) // kv.num_workers
    return batch[kv.rank * size : (kv.rank + 1) * size]


def parts(array: np.ndarray, batch_size: int, kv: Any) -> np.ndarray:
    """This worker's parts of all batches of an array, one after the other."""
    return np.concatenate([part(array[at : at + batch_size], kv) for at in range(0, len(array), batch_size)])


def digits(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """So many images of 1 x 8 x 8 with their labels from 0 to 9."""
    random = np.random.RandomState(seed)
    shapes = np.random.RandomState(99).rand(10, 1, 8, 8) > 0.6
    labels = random.randint(0, 10, count)
    images = shapes[labels] + 0.3 * random.standard_normal((count, 1, 8, 8))
    return images.astype("float32"), labels.astype("float32")


def sentences(count: int, length: int, words: int, seed: int = 0) -> np.ndarray:
    """So many sentences: most words are followed by the next one."""
    random = np.random.RandomState(seed)
    steps = random.choice([1, 1, 1, 2, 5], (count, length))
    return ((random.randint(0, words, (count, 1)) + steps.cumsum(1)) % words).astype("float32")


def save(out: str, kv: Any, arrays: Iterable[Any]) -> None:
    """Write the results of this worker."""
    np.savez(f"{out}.{kv.rank}.npz", *[array.asnumpy() for array in arrays])
