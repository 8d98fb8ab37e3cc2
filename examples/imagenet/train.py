"""Train a network on ImageNet or other images with Gluon, on one or many workers.

The workers meet in an MXNet KVStore, which `--kvstore` names; nothing else here knows how they do.
"""

from __future__ import annotations

import math
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import checkpoint
import duties
import models
import mxnet as mx
import numpy as np
import options
import resuming
from checkpoint import Position
from journal import Journal, plain, warn
from losses import RunningLoss, loss_of, score
from mxnet import autograd, gluon
from options import UsageError
from pipeline import data
from pipeline.records import DataError, ImageError
from tqdm import tqdm


class Training:
    """The training of one worker."""

    def __init__(self, args: Namespace, kv: mx.kv.KVStore | None, images: data.Data) -> None:
        self.args, self.kv, self.images = args, kv, images
        self.worker, self.workers = (kv.rank, kv.num_workers) if kv else (0, 1)
        self.devices = options.find_devices(args.devices, self.worker, args.dtype)
        self.net = build(args, images, self.devices)
        resumed = resuming.load_weights(args, self.net, self.devices, self.worker)
        # On the workers, so that the learning rate set in each step counts. Asynchronous stores update by themselves.
        self.updates_here = not (kv and "async" in kv.type)
        self.trainer = make_trainer(args, self.net, kv, self.updates_here)
        if resumed and self.updates_here:
            resuming.load_states(resumed, self.trainer)
        # With Elastic SGD the servers have weights of their own, the centre. This network is to hold them.
        self.centre = build(args, images, self.devices) if kv and "elastic" in kv.type else None
        self.order = data.order(len(images.train.indices), self.workers, args.batch_size, args.seed)
        self.begin = resuming.start(args, resumed, self.order, self.worker)
        self.journal = Journal(args, kv, images, self.begin.epoch)
        self.skipped = data.Skipped() if args.skip_corrupt else None

    def run(self) -> None:
        """All epochs, or those that a group can do which is told to leave."""
        for epoch in range(self.begin.epoch, self.args.epochs):
            losses, timing = self.train_epoch(epoch)
            if duties.leaving():
                break
            self.pull_centre()
            validates = (epoch + 1) % self.args.val_every == 0 or epoch + 1 == self.args.epochs
            scores = self.validate() if validates else {}
            timing["corrupt_images"] = self.skipped.take() if self.skipped else 0
            rate = self.trainer.learning_rate
            self.save(Position(epoch + 1))
            self.journal.epoch(epoch + 1, losses.mean(), timing, rate, scores, duties.are_mine(self.kv))
        self.journal.end()

    def train_epoch(self, epoch: int) -> tuple[RunningLoss, dict[str, float]]:
        """The steps of an epoch, or those that are left of it: their losses, and how long they took."""
        args, begin, part, seed = self.args, self.begin, self.images.train, self.args.seed + epoch
        shard = data.train_shard(len(part.indices), self.worker, self.workers, args.batch_size, seed)
        shard = shard[: args.max_batches * args.batch_size] if args.max_batches else shard
        steps, done = len(shard) // args.batch_size, begin.step if epoch == begin.epoch else 0
        losses = RunningLoss(done, begin.loss_sum if done else 0.0)
        reading = Reading(
            data.batches(part, shard, args.batch_size, seed, args.loader_threads, self.skipped, first=done)
        )
        began = time.perf_counter()
        for step, (x, y) in enumerate(bar(args, epoch, done, reading, losses, duties.are_mine(self.kv)), done + 1):
            self.trainer.set_learning_rate(learning_rate(args, epoch + (step - 1) / steps, 1 / steps))
            losses.add(self.train_step(x, y, (epoch, step)))
            if duties.leaving() or (args.checkpoint_steps and step % args.checkpoint_steps == 0 and step < steps):
                self.pull_centre()
                self.save(Position(epoch, step, losses.sum(), self.order))
            if duties.leaving():
                break
        mx.nd.waitall()
        seconds = time.perf_counter() - began
        trained = len(shard) - done * args.batch_size
        return losses, {"train_images": trained, "train_seconds": seconds, "loader_seconds": reading.seconds}

    def train_step(self, x: mx.nd.NDArray, y: mx.nd.NDArray, number: tuple[int, int]) -> list[mx.nd.NDArray]:
        """Forward, backward and update; the losses of the images. `number`: epoch and step, for what is random."""
        if models.has_dropout(self.net):
            seed = np.random.SeedSequence((self.args.seed, self.worker, *number)).generate_state(1)[0]
            mx.random.seed(int(seed >> 1))
        with autograd.record():
            losses = [
                loss_of(
                    self.net(self.images.normalise(xs, self.args.dtype)),
                    ys,
                    self.images.classes,
                    self.args.label_smoothing,
                )
                for xs, ys in on_devices(x, y, self.devices)
            ]
        autograd.backward(losses)
        self.trainer.step(self.args.batch_size * self.workers)  # the store adds up the gradients of all workers
        return losses

    def pull_centre(self) -> None:
        """Fetch what the store holds. The keys are the positions in the list that the Trainer was given."""
        for key, parameter in enumerate(self.centre.collect_params().values()) if self.centre else ():
            self.kv.pull(key, out=parameter.list_data())

    def validate(self) -> dict[str, float]:
        seen = data.val_shard(len(self.images.val.indices), self.worker, self.workers)
        nets = {"val": self.net, "centre": self.centre}
        return evaluate(self.args, self.images, seen, nets, self.devices, self.skipped)

    def save(self, position: Position) -> None:
        """Write a checkpoint if that is this worker's duty, and remove old ones.

        If that fails, say so and keep those that there are.
        """
        if not duties.are_mine(self.kv):
            return
        folder, trainer = self.args.run / "checkpoints", self.trainer if self.updates_here else None
        try:
            checkpoint.save(folder, position, self.centre or self.net, trainer, plain(self.args))
        except checkpoint.WriteError as error:
            warn(f"{error}. The earlier ones are kept, and training goes on")
        else:
            checkpoint.prune(folder, position, self.args.keep)


def make_trainer(args: Namespace, net: gluon.HybridBlock, kv: mx.kv.KVStore | None, update_here: bool) -> gluon.Trainer:
    return gluon.Trainer(
        list(net.collect_params().values()),
        args.optimizer,
        optimizer_settings(args),
        kvstore=kv,
        update_on_kvstore=False if update_here else None,
    )


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


def bar(args: Namespace, epoch: int, done: int, loader: Reading, losses: RunningLoss, mine: bool) -> Iterator:
    """The batches that are left. With `mine`, a progress bar is shown unless the output goes to a file."""
    label = f"epoch {epoch + 1}/{args.epochs}"
    disable = None if mine else True
    total = done + len(loader)
    with tqdm(loader, label, total, initial=done, file=sys.stdout, leave=False, disable=disable) as progress:
        for batch in progress:
            yield batch
            progress.set_postfix(loss=f"{losses.latest:.3f}", refresh=False)


def on_devices(x: mx.nd.NDArray, y: mx.nd.NDArray, devices: list[mx.Context]) -> Iterator:
    """Equal parts of a batch, one for each device; fewer devices where the batch is shorter."""
    used = devices[: len(x)]
    return zip(*(gluon.utils.split_and_load(part, used, even_split=False) for part in (x, y)), strict=True)


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
        Training(args, kv, images).run()
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
