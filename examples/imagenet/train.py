"""Train a network on ImageNet or other images with Gluon, on one or many workers.

The workers meet in an MXNet KVStore, which `--kvstore` names; nothing else here knows how they do.
"""

from __future__ import annotations

import math
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkpoint
import data
import duties
import models
import mxnet as mx
import numpy as np
import options
from journal import Journal, plain, warn
from losses import RunningLoss, loss_of, score
from mxnet import autograd, gluon
from options import UsageError
from records import DataError, ImageError
from tqdm import tqdm
from trainer_states import StatesError, optimizer_name


def train(args: Namespace, kv: mx.kv.KVStore | None, images: data.Data) -> None:
    """All epochs of one worker."""
    worker, workers = (kv.rank, kv.num_workers) if kv else (0, 1)
    devices = options.find_devices(args.devices, worker, args.dtype)
    net = build(args, images, devices)
    resumed = load_weights(args, net, devices, worker)
    # On the workers, so that the learning rate set in each step counts. Asynchronous stores update by themselves.
    update_here = not (kv and "async" in kv.type)
    trainer = make_trainer(args, net, kv, update_here)
    if resumed and update_here:
        load_states(resumed, trainer)
    # With Elastic SGD the servers have weights of their own, the centre. This network is to hold them.
    centre = build(args, images, devices) if kv and "elastic" in kv.type else None
    mx.random.seed(args.seed + 1 + worker)  # dropout differs between the workers
    first = max(resumed.epoch if resumed else 0, options.reached(args))
    journal = Journal(args, kv, images, first)
    skipped = data.Skipped() if args.skip_corrupt else None

    for epoch in range(first, args.epochs):
        shard = data.train_shard(len(images.train.indices), worker, workers, args.batch_size, args.seed + epoch)
        shard = shard[: args.max_batches * args.batch_size] if args.max_batches else shard
        steps = len(shard) // args.batch_size
        loader = data.batches(images.train, shard, args.batch_size, args.seed + epoch, args.loader_threads, skipped)
        reading, losses, began = Reading(loader), RunningLoss(), time.perf_counter()
        for step, (x, y) in enumerate(bar(args, epoch, reading, losses, duties.are_mine(kv))):
            trainer.set_learning_rate(learning_rate(args, epoch + step / steps, 1 / steps))
            parts = compute_gradients(args, images, net, on_devices(x, y, devices))
            trainer.step(args.batch_size * workers)  # the store adds up the gradients of all workers
            losses.add(parts)
            if duties.leaving():
                break
        mx.nd.waitall()
        seconds = time.perf_counter() - began

        if centre:
            pull_weights(kv, centre)
        if duties.leaving():
            if duties.are_mine(kv):
                save(args, epoch, centre or net, trainer if update_here else None)
            break
        scores = {}
        if (epoch + 1) % args.val_every == 0 or epoch + 1 == args.epochs:
            seen = data.val_shard(len(images.val.indices), worker, workers)
            scores = evaluate(args, images, seen, {"val": net, "centre": centre}, devices, skipped)
        timing = {"train_images": len(shard), "train_seconds": seconds, "loader_seconds": reading.seconds}
        timing["corrupt_images"] = skipped.take() if skipped else 0
        mine = duties.are_mine(kv)
        journal.epoch(epoch + 1, losses.mean(), timing, trainer.learning_rate, scores, mine)
        if mine:
            save(args, epoch + 1, centre or net, trainer if update_here else None)
    journal.end()


def make_trainer(args: Namespace, net: gluon.HybridBlock, kv: mx.kv.KVStore | None, update_here: bool) -> gluon.Trainer:
    return gluon.Trainer(
        list(net.collect_params().values()),
        args.optimizer,
        optimizer_settings(args),
        kvstore=kv,
        update_on_kvstore=False if update_here else None,
    )


def compute_gradients(
    args: Namespace, images: data.Data, net: gluon.HybridBlock, parts: Iterator
) -> list[mx.nd.NDArray]:
    """Forward and backward on each part of a batch; the losses of its images."""
    with autograd.record():
        losses = [
            loss_of(net(images.normalise(xs, args.dtype)), ys, images.classes, args.label_smoothing) for xs, ys in parts
        ]
    autograd.backward(losses)
    return losses


def build(args: Namespace, images: data.Data, devices: list[mx.Context]) -> gluon.HybridBlock:
    """The network with initial weights, which depend on the seed alone."""
    mx.random.seed(args.seed)
    np.random.seed(args.seed)
    net = models.make(args.network, images.classes, args.width)
    net.initialize(models.InitialWeights(), ctx=devices)
    net.cast(args.dtype)
    net.hybridize(static_alloc=True)
    for device in devices:  # a first batch gives every weight its shape, before a Trainer sees them
        net(mx.nd.zeros((1, len(images.mean), images.image_size, images.image_size), device, args.dtype))
    for name, parameter in net.collect_params().items():
        parameter.wd_mult = 1.0 if name.endswith("weight") else 0.0  # no decay of biases and of BatchNorm
    return net


def optimizer_settings(args: Namespace) -> dict[str, Any]:
    settings: dict[str, Any] = {"learning_rate": args.lr, "wd": args.wd}
    if args.optimizer in ("sgd", "nag"):
        settings |= {"momentum": args.momentum, "multi_precision": args.dtype == "float16"}
    return settings


def learning_rate(args: Namespace, done: float, one_step: float = 0.0) -> float:
    """Rises linearly to `--lr`, then decays: with a cosine to zero, or by a factor at given epochs.

    `done` and `one_step` are in epochs.
    """
    warmup = min(args.lr_warmup_epochs, args.epochs)
    if done < warmup:
        return args.lr * min(1.0, (done + one_step) / warmup)
    if args.lr_decay == "step":
        return args.lr * args.lr_factor ** sum(done >= epoch for epoch in args.lr_steps)
    if args.lr_decay == "cosine":
        return args.lr * 0.5 * (1 + math.cos(math.pi * (done - warmup) / (args.epochs - warmup)))
    return args.lr


class Reading:
    """The batches of a loader, and how long Python has waited for them."""

    def __init__(self, loader: gluon.data.DataLoader) -> None:
        self._loader = loader
        self.seconds = 0.0

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator:
        batches = iter(self._loader)
        while True:
            began = time.perf_counter()
            batch = next(batches, None)
            self.seconds += time.perf_counter() - began
            if batch is None:
                return
            yield batch


def bar(args: Namespace, epoch: int, loader: Reading, losses: RunningLoss, mine: bool) -> Iterator:
    """The batches; the worker that it is the duty of shows a progress bar unless its output goes to a file."""
    label = f"epoch {epoch + 1}/{args.epochs}"
    with tqdm(loader, label, file=sys.stdout, leave=False, disable=None if mine else True) as progress:
        for batch in progress:
            yield batch
            progress.set_postfix(loss=f"{losses.latest():.3f}", refresh=False)


def on_devices(x: mx.nd.NDArray, y: mx.nd.NDArray, devices: list[mx.Context]) -> Iterator:
    """Equal parts of a batch, one for each device; fewer devices where the batch is shorter."""
    used = devices[: len(x)]
    return zip(*(gluon.utils.split_and_load(part, used, even_split=False) for part in (x, y)), strict=True)


def pull_weights(kv: mx.kv.KVStore, net: gluon.HybridBlock) -> None:
    """Fetch what the store holds. The keys are the positions in the list that the Trainer was given."""
    for key, parameter in enumerate(net.collect_params().values()):
        kv.pull(key, out=parameter.list_data())


def evaluate(
    args: Namespace,
    images: data.Data,
    seen: np.ndarray,
    nets: dict[str, Any],
    devices: list[mx.Context],
    skipped: data.Skipped | None,
) -> dict[str, float]:
    """Sums over this worker's validation images for each of the networks that is not None."""
    nets = {name: net for name, net in nets.items() if net}
    sums, count = {name: np.zeros(3) for name in nets}, 0
    loader = data.batches(images.val, seen, args.batch_size, 0, args.loader_threads, skipped, each_once=True)
    for x, y in loader if len(seen) else ():
        count += int((y.asnumpy() != data.NONE).sum())
        for xs, ys in on_devices(x, y, devices):
            for name, net in nets.items():
                sums[name] += score(net(images.normalise(xs, args.dtype)), ys, images.classes)
    fields = ("top1_correct", "top5_correct", "loss_sum")
    named = {f"{name}_{field}": value for name in nets for field, value in zip(fields, sums[name], strict=True)}
    return {"val_images": count} | {k: value if k.endswith("sum") else int(value) for k, value in named.items()}


def save(args: Namespace, epoch: int, net: gluon.HybridBlock, trainer: gluon.Trainer | None) -> None:
    """Write a checkpoint, and remove old ones. If that fails, say so and keep those that there are."""
    folder = args.run / "checkpoints"
    try:
        checkpoint.save(folder, epoch, net, trainer, plain(args))
    except checkpoint.WriteError as error:
        warn(f"{error}. The earlier ones are kept, and training goes on")
        return
    checkpoint.prune(folder, epoch, args.keep)


def load_weights(
    args: Namespace, net: gluon.HybridBlock, devices: list[mx.Context], worker: int
) -> checkpoint.Checkpoint | None:
    """Load what `--resume` says into the network; None to start from the beginning."""
    if not args.resume:
        return None
    folder = args.run if args.resume == "auto" else Path(args.resume)
    found, problems = checkpoint.newest(folder)
    for problem in problems if worker == 0 else ():
        print(f"checkpoint passed over: {problem}", flush=True)
    if found is None:
        if args.resume != "auto":
            raise UsageError(f"--resume {args.resume}: there is no complete checkpoint")
        return None
    try:
        checkpoint.load_weights(found, net, devices)
    except checkpoint.DamagedError as error:
        raise UsageError(f"--resume: the weights do not fit --network {args.network}: {error}") from None
    if worker == 0:
        print(f"resumed from {found.folder}", flush=True)
    return found


def load_states(found: checkpoint.Checkpoint, trainer: gluon.Trainer) -> None:
    """Load the optimizer's states; its settings are those of the command line."""
    if found.optimizer is None:
        raise UsageError(f"{found.folder} has no states of an optimizer: go on with a store that updates, as it began")
    if found.optimizer != optimizer_name(trainer):
        raise UsageError(f"{found.folder} has the states of another optimizer: use --optimizer {found.optimizer}")
    try:
        checkpoint.load_states(found, trainer)
    except (checkpoint.DamagedError, StatesError) as error:
        raise UsageError(f"--resume {found.folder}: {error}") from None


def open_data(args: Namespace) -> data.Data:
    return data.open_data(
        args.data,
        image_size=args.image_size,
        classes=args.classes,
        val_fraction=args.val_fraction,
        jitter=args.colour_jitter,
        synthetic_images=args.synthetic_images,
        skip_corrupt=args.skip_corrupt,
    )


def main(arguments: list[str] | None = None) -> int:
    args = options.parser().parse_args(arguments)
    kv = None
    try:
        options.check(args)
        kv = options.make_store(args.kvstore)
        if kv and "elastic" in kv.type and args.dtype == "float16":
            raise UsageError(
                f"--dtype float16 trains float32 weights, which --kvstore {args.kvstore} does not average: use sync"
            )
        args.run = options.run_folder(args, kv.num_workers if kv else 1)
        images = open_data(args)
        if not len(images.val.indices) and not (kv and kv.rank):
            print("there are no validation images: give val/ or val.rec, or use --val-fraction", flush=True)
        options.make_folder(args.run)
        train(args, kv, images)
    except (UsageError, DataError, models.NetworkError) as error:
        if not (kv and kv.rank):  # these are the same on all workers
            warn(str(error))
        return 2
    except ImageError as damage:  # which this worker alone has seen
        warn(str(damage) if args.skip_corrupt else f"{damage}; use --skip-corrupt to leave such images out")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
