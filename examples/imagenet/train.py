"""Train a network on ImageNet or other images with Gluon, on one or many workers.

The workers meet in an MXNet KVStore, which `--kvstore` names; nothing else here knows how they do.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator

import checkpoint
import duties
import models
import mxnet as mx
import numpy as np
import options
import resuming
import totals
from averaging import MovingAverage, copy_weights
from checkpoint import Position
from evaluation import evaluate, on_devices
from journal import Journal, plain, warn
from losses import RunningLoss, loss_of
from mxnet import autograd, gluon
from mxnet.contrib import amp
from optimizers import backward, learning_rate, make_trainer, remember_rate
from options import UsageError
from pipeline import data
from pipeline.augment import augmentation
from pipeline.records import DataError, ImageError
from tqdm import tqdm


class Training:
    """The training of one worker."""

    def __init__(self, args: Namespace, kv: mx.kv.KVStore | None, images: data.Data) -> None:
        self.args, self.kv, self.images = args, kv, images
        self.worker, self.workers = (kv.rank, kv.num_workers) if kv else (0, 1)
        self.devices = options.find_devices(args.devices, self.worker, args.dtype)
        if args.dtype == "amp":
            amp.init()  # from now on, fast operations use float16
        self.net = build(args, images, self.devices)
        resumed = resuming.load_weights(args, self.net, self.devices, self.worker)
        # The workers update, so that the learning rate of each step applies. Asynchronous stores update by themselves.
        self.updates_here = not (kv and "async" in kv.type)
        self.trainer = make_trainer(args, self.net, kv, self.updates_here)
        self.average = MovingAverage(build(args, images, self.devices), self.net, args.ema) if args.ema else None
        resuming.load_states(resumed, self.trainer if self.updates_here else None, self.average, self.devices)
        # With some algorithms, the servers have weights of their own, the centre. This network holds a copy of them.
        self.centre = build(args, images, self.devices) if options.has_centre(kv) else None
        if self.centre:  # the store has no weights before the first step; its centre then begins with these
            copy_weights(self.net, self.centre)
        self.has_trained = False
        self.order = data.order(len(images.train.indices), self.workers, args.batch_size, args.seed)
        self.begin = resuming.start(args, resumed, self.order, self.worker)
        self.skipped = data.Skipped() if args.skip_corrupt else None

    def steps(self, workers: int) -> int:
        """Return the number of steps of each worker in an epoch with this many workers."""
        args = self.args
        steps = len(data.train_shard(len(self.images.train.indices), 0, workers, args.batch_size, 0)) // args.batch_size
        return min(steps, args.max_batches or steps)

    def run(self) -> None:
        """Train all epochs, or as many as a group can do before it is told to leave."""
        epochs = self.epochs()
        if self.begin.epoch >= self.args.epochs and not os.environ.get("HYBRIDPS_LIFE"):
            if self.worker == 0:  # all workers have read the checkpoint, so all of them end
                print(f"epoch {self.args.epochs} of {self.args.epochs} is done: nothing is left to train", flush=True)
            return
        journal = Journal(self.args, self.kv, self.images, self.begin.epoch)
        for epoch in epochs:
            losses, timing = self.train_epoch(epoch)
            if duties.leaving():
                break
            self.pull_centre()
            validates = (epoch + 1) % self.args.val_every == 0 or epoch + 1 == self.args.epochs
            scores = self.validate() if validates else {}
            timing["corrupt_images"] = self.skipped.take() if self.skipped else 0
            rate = self.trainer.learning_rate
            self.save(Position(epoch + 1))
            journal.epoch(epoch + 1, losses.mean(), timing, rate, scores, duties.are_mine(self.kv))
        journal.end()

    def epochs(self) -> Iterable[int]:
        """Return the numbers of the epochs that remain. A store of hybridps may let restarted groups in before each."""
        if not hasattr(self.kv, "epochs"):
            return range(self.begin.epoch, self.args.epochs)
        averages = [self.average.net] if self.average else []
        return self.kv.epochs(self.args.epochs, self.trainer, *averages, begin=self.begin.epoch)

    def train_epoch(self, epoch: int) -> tuple[RunningLoss, dict[str, float]]:
        """Train the steps of an epoch that remain. Return their losses, and how long they took."""
        args, begin, part, seed = self.args, self.begin, self.images.train, self.args.seed + epoch
        shard = data.train_shard(len(part.indices), self.worker, self.workers, args.batch_size, seed)
        steps, done = self.steps(self.workers), begin.step if epoch == begin.epoch else 0
        shard = shard[: steps * args.batch_size]
        losses = RunningLoss(done, begin.loss_sum if done else 0.0)
        if epoch == begin.epoch and (epoch or done):
            before = epoch + (done - 1) / steps if done else epoch - 1 + (steps - 1) / steps
            remember_rate(self.trainer, learning_rate(args, before, 1 / steps))
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
        """Run forward, backward and update; return the losses of the images. `number`: epoch and step, for the seed."""
        random = np.random.default_rng((self.args.seed, self.worker, *number))
        if models.has_dropout(self.net):
            mx.random.seed(int(random.integers(1 << 31)))
        share = random.beta(self.args.mixup, self.args.mixup) if self.args.mixup else 1.0
        with autograd.record():
            losses = [self.forward(xs, ys, share) for xs, ys in on_devices(x, y, self.devices)]
            backward(losses, self.trainer)
        self.trainer.step(self.args.batch_size * self.workers)  # the store sums the gradients of all workers
        self.has_trained = True
        if self.average:
            self.average.update(self.trainer.optimizer.num_update)
        return losses

    def forward(self, xs: mx.nd.NDArray, ys: mx.nd.NDArray, share: float) -> mx.nd.NDArray:
        """Return the loss of each image; with mixup, for a `share` of it and the rest of its opposite in the batch."""
        images = self.images.normalise(xs, options.weights_dtype(self.args))
        smoothing = self.args.label_smoothing
        if share == 1.0:
            return loss_of(self.net(images), ys, self.images.classes, smoothing)
        output = self.net(share * images + (1 - share) * images.flip(axis=0))
        own, others = (loss_of(output, labels, self.images.classes, smoothing) for labels in (ys, ys.flip(axis=0)))
        return share * own + (1 - share) * others

    def pull_centre(self) -> None:
        """Fetch what the store holds. The keys are the positions in the list that the Trainer was given."""
        if self.centre and self.has_trained:
            for key, parameter in enumerate(self.centre.collect_params().values()):
                self.kv.pull(key, out=parameter.list_data())

    def validate(self) -> dict[str, float]:
        seen = data.val_shard(len(self.images.val.indices), self.worker, self.workers)
        nets = {"val": self.net, "centre": self.centre, "ema": self.average and self.average.net}
        return evaluate(self.args, self.images, seen, nets, self.devices, self.skipped)

    def save(self, position: Position) -> None:
        """Write a checkpoint if that is this worker's duty, and remove old ones.

        If that fails, print a warning and keep the earlier ones.
        """
        if not duties.are_mine(self.kv):
            return
        folder, trainer = self.args.run / "checkpoints", self.trainer if self.updates_here else None
        try:
            checkpoint.save(folder, position, self.centre or self.net, trainer, plain(self.args), self.average)
        except checkpoint.WriteError as error:
            warn(f"{error}. The earlier ones are kept, and training continues")
        else:
            checkpoint.prune(folder, position, self.args.keep, totals.latest(self.args.run))


def build(args: Namespace, images: data.Data, devices: list[mx.Context]) -> gluon.HybridBlock:
    """Return the network with initial weights, which depend on the seed alone."""
    mx.random.seed(args.seed)
    np.random.seed(args.seed)
    net = models.make(args.network, images.classes, args.width)
    net.initialize(models.InitialWeights(), ctx=devices)
    net.cast(options.weights_dtype(args))
    net.hybridize(static_alloc=True)
    shape = (1, len(images.mean), images.image_size, images.image_size)
    for device in devices:  # a first batch gives every weight its shape before a Trainer uses the weights
        net(mx.nd.zeros(shape, device, options.weights_dtype(args)))
    for name, parameter in net.collect_params().items():
        parameter.wd_mult = 1.0 if name.endswith("weight") else 0.0  # no weight decay for biases and BatchNorm
    return net


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
    """Yield the batches that remain. With `mine`, show a progress bar unless the output goes to a file."""
    label = f"epoch {epoch + 1}/{args.epochs}"
    disable = None if mine else True
    total = done + len(loader)
    with tqdm(loader, label, total, initial=done, file=sys.stdout, leave=False, disable=disable) as progress:
        for batch in progress:
            yield batch
            progress.set_postfix(loss=f"{losses.latest:.3f}", refresh=False)


def print_forecast(args: Namespace, images: data.Data) -> None:
    """Print what the training would take, after a few steps of training without a folder. Raises UsageError."""
    try:
        from forecast import ForecastError, links_of, report
    except ImportError as error:
        raise UsageError(f"--dry-run asks the oracle of hybridps, which cannot be imported: {error}") from None
    try:
        links = links_of(args.machine)
        for line in report(Training(args, None, images), args.dry_run, links):
            print(line, flush=True)
    except ForecastError as error:
        raise UsageError(f"--dry-run: {error}") from None


def open_data(args: Namespace) -> data.Data:
    return data.open_data(
        args.data,
        image_size=args.image_size,
        classes=args.classes,
        val_fraction=args.val_fraction,
        jitter=args.colour_jitter,
        synthetic_images=args.synthetic_images,
        skip_corrupt=args.skip_corrupt,
        augmentation=augmentation(args.rand_augment, args.cutout),
    )


def main(arguments: list[str] | None = None) -> int:
    args = options.parser().parse_args(arguments)
    kv = None
    try:
        options.check(args)
        kv = None if args.dry_run else options.make_store(args.kvstore)
        if args.dtype == "float16" and options.averages_weights(kv):
            raise UsageError(
                f"--dtype float16 trains float32 weights, which --kvstore {args.kvstore} does not average: use sync"
            )
        if not args.dry_run:  # it writes nothing
            args.run = options.run_folder(args, kv.num_workers if kv else 1)
        images = open_data(args)
        if not len(images.val.indices) and not (kv and kv.rank):
            why = "give val/ or val.rec, or use --val-fraction"
            if args.val_fraction:
                why = f"--val-fraction {args.val_fraction} needs a class with two images, and each has only one"
            print(f"there are no validation images: {why}", flush=True)
        if args.dry_run:
            print_forecast(args, images)
            return 0
        options.make_folder(args.run)
        Training(args, kv, images).run()
    except (UsageError, DataError, models.NetworkError) as error:
        if not (kv and kv.rank):  # these errors are the same on all workers
            warn(str(error))
        return 2
    except ImageError as damage:  # only this worker has read that image
        warn(str(damage) if args.skip_corrupt else f"{damage}; use --skip-corrupt to skip such images")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
