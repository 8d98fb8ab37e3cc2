"""Train a network on ImageNet or other images with Gluon, on one or many workers.

The workers meet in an MXNet KVStore, which `--kvstore` names; nothing else here knows how they do.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import checkpoint
import data
import models
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from tqdm import tqdm


class UsageError(Exception):
    """The options cannot be used together, or on this machine. The message says what to do."""


def train(args: Namespace, kv: mx.kv.KVStore | None, images: data.Data) -> None:
    """All epochs of one worker."""
    worker, workers = (kv.rank, kv.num_workers) if kv else (0, 1)
    devices = find_devices(args.devices, worker, args.dtype)
    net = build(args, images, devices)
    resumed = load_weights(args, net, devices, worker)
    # On the workers, so that the learning rate set in each step counts. Asynchronous stores update by themselves.
    update_here = not (kv and "async" in kv.type)
    trainer = gluon.Trainer(
        list(net.collect_params().values()),
        args.optimizer,
        optimizer_settings(args),
        kvstore=kv,
        update_on_kvstore=False if update_here else None,
    )
    if resumed and update_here:
        load_states(args, trainer, resumed)
    # With Elastic SGD the servers have weights of their own, the centre. This network is to hold them.
    centre = build(args, images, devices) if kv and "elastic" in kv.type else None
    mx.random.seed(args.seed + 1 + worker)  # dropout differs between the workers
    first = resumed.epoch if resumed else 0
    journal = Journal(args, kv, images, first)

    for epoch in range(first, args.epochs):
        shard = data.train_shard(len(images.train.indices), worker, workers, args.batch_size, args.seed + epoch)
        shard = shard[: args.max_batches * args.batch_size] if args.max_batches else shard
        steps = len(shard) // args.batch_size
        loader = data.batches(images.train, shard, args.batch_size, args.seed + epoch, args.loader_threads)
        reading, losses, began = Reading(loader), RunningLoss(), time.perf_counter()
        for step, (x, y) in enumerate(bar(args, epoch, reading, losses, worker)):
            trainer.set_learning_rate(learning_rate(args, epoch + step / steps, 1 / steps))
            with autograd.record():
                parts = [
                    loss_of(net(images.normalise(xs, args.dtype)), ys, images.classes, args.label_smoothing)
                    for xs, ys in on_devices(x, y, devices)
                ]
            autograd.backward(parts)
            trainer.step(args.batch_size * workers)  # the store adds up the gradients of all workers
            losses.add(parts)
        mx.nd.waitall()
        seconds = time.perf_counter() - began

        if centre:
            pull_weights(kv, centre)
        scores = {}
        if (epoch + 1) % args.val_every == 0 or epoch + 1 == args.epochs:
            seen = data.val_shard(len(images.val.indices), worker, workers)
            scores = evaluate(args, images, seen, {"val": net, "centre": centre}, devices)
        timing = {"train_images": len(shard), "train_seconds": seconds, "loader_seconds": reading.seconds}
        journal.epoch(epoch + 1, losses.mean(), timing, trainer.learning_rate, scores)
        if worker == 0:
            save(args, epoch + 1, centre or net, trainer if update_here else None)
    journal.end()


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


def loss_of(output: mx.nd.NDArray, labels: mx.nd.NDArray, classes: int, smoothing: float = 0.0) -> mx.nd.NDArray:
    """Cross-entropy of each image; a part `smoothing` of the label is spread evenly over the classes."""
    target = mx.nd.one_hot(labels, classes, 1 - smoothing + smoothing / classes, smoothing / classes)
    return -(target * mx.nd.log_softmax(output.astype("float32"))).sum(axis=1)


class RunningLoss:
    """The mean loss of an epoch.

    To take in a step waits for the one before, so that Python is at most one step ahead of the computation.
    """

    def __init__(self) -> None:
        self._waiting: list[mx.nd.NDArray] = []
        self._values: list[float] = []

    def add(self, parts: list[mx.nd.NDArray]) -> None:
        self._settle()
        self._waiting = parts

    def latest(self) -> float:
        return self._values[-1] if self._values else math.nan

    def mean(self) -> float:
        self._settle()
        return float(np.mean(self._values))

    def _settle(self) -> None:
        if self._waiting:
            self._values.append(float(np.mean([part.asnumpy().mean() for part in self._waiting])))
            self._waiting = []


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


def bar(args: Namespace, epoch: int, loader: Reading, losses: RunningLoss, worker: int) -> Iterator:
    """The batches; the first worker shows a progress bar unless its output goes to a file."""
    label = f"epoch {epoch + 1}/{args.epochs}"
    with tqdm(loader, label, file=sys.stdout, leave=False, disable=True if worker else None) as progress:
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
    args: Namespace, images: data.Data, seen: np.ndarray, nets: dict[str, Any], devices: list[mx.Context]
) -> dict[str, float]:
    """Sums over this worker's validation images for each of the networks that is not None."""
    nets = {name: net for name, net in nets.items() if net}
    sums = {name: np.zeros(3) for name in nets}
    for x, y in data.batches(images.val, seen, args.batch_size, 0, args.loader_threads) if len(seen) else ():
        for xs, ys in on_devices(x, y, devices):
            for name, net in nets.items():
                sums[name] += score(net(images.normalise(xs, args.dtype)), ys, images.classes)
    fields = ("top1_correct", "top5_correct", "loss_sum")
    named = {f"{name}_{field}": value for name in nets for field, value in zip(fields, sums[name], strict=True)}
    return {"val_images": len(seen)} | {k: value if k.endswith("sum") else int(value) for k, value in named.items()}


def score(output: mx.nd.NDArray, labels: mx.nd.NDArray, classes: int) -> np.ndarray:
    """How many labels are the best guess, how many among the best five, and the sum of the losses."""
    best = output.astype("float32").topk(k=min(5, classes)).asnumpy()
    hits = best == labels.asnumpy()[:, None]
    return np.array([hits[:, 0].sum(), hits.any(axis=1).sum(), loss_of(output, labels, classes).sum().asscalar()])


def save(args: Namespace, epoch: int, net: gluon.HybridBlock, trainer: gluon.Trainer | None) -> None:
    folder = args.run / "checkpoints"
    checkpoint.save(folder, epoch, net, trainer, plain(args))
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
        net.load_parameters(str(found.folder / checkpoint.WEIGHTS), ctx=devices)
    except (AssertionError, ValueError, mx.MXNetError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{found.folder} does not fit --network {args.network}: {reason}") from None
    if worker == 0:
        print(f"resumed from {found.folder}", flush=True)
    return found


def load_states(args: Namespace, trainer: gluon.Trainer, found: checkpoint.Checkpoint) -> None:
    """Load the optimizer's states; its settings are those of the command line, not those of the file."""
    states, wanted = found.folder / checkpoint.STATES, type(trainer.optimizer)
    if not states.exists():
        raise UsageError(f"{found.folder} has no states of an optimizer: go on with a store that updates, as it began")
    trainer.load_states(str(states))
    found_there = type(trainer.optimizer)
    if found_there is not wanted:
        raise UsageError(
            f"{found.folder} has the states of another optimizer: use --optimizer {found_there.__name__.lower()}"
        )
    for name, value in optimizer_settings(args).items():
        setattr(trainer.optimizer, "lr" if name == "learning_rate" else name, value)


class Journal:
    """What happened, as JSON lines in `<run>/train-<worker>.jsonl`; the first worker prints its own of each epoch."""

    def __init__(self, args: Namespace, kv: mx.kv.KVStore | None, images: data.Data, first_epoch: int) -> None:
        self._worker, workers, kind = (kv.rank, kv.num_workers, kv.type) if kv else (0, 1, "none")
        self._epochs, self._began = args.epochs, time.perf_counter()
        self._whose = f", first of {workers} workers" if workers > 1 else ""
        args.run.mkdir(parents=True, exist_ok=True)
        self._path = args.run / f"train-{self._worker}.jsonl"
        found = {"classes": images.classes, "image_size": images.image_size}
        settings = plain(args) | found | {"kvstore_type": kind, "workers": workers}
        self._write(
            "run",
            started_at=time.time(),
            first_epoch=first_epoch,
            worker=self._worker,
            settings=settings,
            versions=versions(),
        )
        if self._worker == 0:
            (args.run / "config.json").write_text(json.dumps(settings, indent=1) + "\n")
        print(f"hybridps: epoch={first_epoch} worker={self._worker}", flush=True)  # the first epoch begins

    def epoch(self, epoch: int, loss: float, timing: dict[str, float], lr: float, scores: dict[str, float]) -> None:
        rate = timing["train_images"] / timing["train_seconds"]
        self._write("epoch", epoch=epoch, loss=loss, **timing, images_per_second=rate, lr=lr, **scores)
        print(progress_line(self._worker, epoch, loss, scores), flush=True)
        if self._worker == 0:
            words = [
                f"epoch {epoch}/{self._epochs}{self._whose}",
                f"loss {loss:.4f}",
                *accuracy_words(scores),
                f"{rate:.0f} images/s",
            ]
            print("  ".join(words), flush=True)

    def end(self) -> None:
        self._write("end", epochs=self._epochs)

    def _write(self, event: str, **fields: Any) -> None:
        line = {"event": event} | fields | {"seconds": round(time.perf_counter() - self._began, 3)}
        line = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
        with self._path.open("a+b") as file:
            # A worker that was killed while it wrote leaves half a line, which must not spoil this one.
            half = file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"
            file.write(b"\n" * bool(half) + json.dumps(line).encode() + b"\n")


def progress_line(worker: int, epoch: int, loss: float, scores: dict[str, float]) -> str:
    """What `hybridps run` reads and adds up over the workers."""
    words = [f"epoch={epoch}", f"loss={loss:.6g}", f"worker={worker}"]
    images = scores.get("val_images")
    if images:
        words += [f"accuracy={scores['val_top1_correct'] / images:.6g}", f"images={images}"]
        if "centre_top1_correct" in scores:
            words.append(f"centre_accuracy={scores['centre_top1_correct'] / images:.6g}")
    return f"hybridps: {' '.join(words)}"


def accuracy_words(scores: dict[str, float]) -> list[str]:
    """What the first worker saw in its part of the validation images."""
    if not scores.get("val_images"):
        return []
    percent = {name: 100 * value / scores["val_images"] for name, value in scores.items()}
    words = [f"top-1 {percent['val_top1_correct']:.2f} %", f"top-5 {percent['val_top5_correct']:.2f} %"]
    if "centre_top1_correct" in scores:
        words.append(f"centre top-1 {percent['centre_top1_correct']:.2f} %")
    return words


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), "mxnet": mx.__version__, "numpy": np.__version__}


def plain(args: Namespace) -> dict[str, Any]:
    """The options as JSON can hold them."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}


def find_devices(text: str, worker: int, dtype: str) -> list[mx.Context]:
    """Devices from `cpu`, `gpu:0`, `gpu:0,gpu:1`; `auto` is a GPU where there are any."""
    gpus = mx.context.num_gpus()
    if text == "auto":
        text = f"gpu:{worker % gpus}" if gpus else "cpu"
    if dtype == "float16" and "cpu" in text:
        raise UsageError("--dtype float16: MXNet has no float16 on the CPU; use --devices gpu:0 or --dtype float32")
    devices = []
    for part in text.split(","):
        kind, _, number = part.partition(":")
        if kind not in ("cpu", "gpu") or not (number or "0").isdigit():
            raise UsageError(f"--devices {text}: expected auto, or cpu or gpu with a number, such as gpu:0,gpu:1")
        if kind == "gpu" and int(number or 0) >= gpus:
            raise UsageError(f"--devices {text}: MXNet finds {gpus} GPUs")
        devices.append(mx.Context(kind, int(number or 0)))
    return devices


def make_store(name: str) -> mx.kv.KVStore | None:
    """The KVStore of that name; None for `none`."""
    if name == "none":
        return None
    # MXNet makes a store of its own, which waits for servers, of any unknown name with `dist` in it.
    if "hybridps" in name and name not in list(mx.kv.KVStoreBase.kv_registry):
        raise UsageError(
            f"MXNet does not know --kvstore {name}: start with `hybridps run ... -- python train.py ...` or "
            f"`mpirun ... python -m hybridps train.py ...`, or use --kvstore none for one worker"
        )
    return mx.kv.create(name)


def at_least(least: float, kind: Callable[[str], Any] = int) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not value >= least:
            raise ArgumentTypeError(f"{text!r}: expected {'a whole number' if kind is int else 'a number'} >= {least}")
        return value

    return convert


def numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentTypeError(f"{text!r}: expected numbers with commas between them") from None


def options() -> ArgumentParser:
    parser = ArgumentParser(description=__doc__, formatter_class=ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    count, positive, rate = at_least(1), at_least(0), at_least(0.0, float)
    add("--data", default="synthetic", help="folder with train/ and val/, or train.rec and val.rec; synthetic; digits")
    add("--image-size", type=count, help="default: of the data where small, else 224")
    add("--classes", type=count, help="default: of the data; 1000 for synthetic")
    add("--val-fraction", type=rate, default=0.0, help="hold out this part of train where there is no val")
    add("--colour-jitter", type=rate, default=0.0, help="for large images, such as 0.4")
    add("--synthetic-images", type=count, default=1280, help="number of synthetic images")
    add("--loader-threads", type=positive, default=0, help="threads that read images; 0: read between the steps")
    add("--network", default="resnet50_v1", help="a name of Gluon's model zoo; cifar_resnet20; digits")
    add("--width", type=count, default=16, help="channels of the first layer of cifar_resnet and digits")
    add("--dtype", choices=["float32", "float16"], default="float32", help="of the network")
    add("--devices", default="auto", help="of each worker, such as cpu or gpu:0,gpu:1")
    add("--kvstore", default="dist_hybridps", help="name of an MXNet KVStore; none for one worker without a store")
    add("--epochs", type=count, default=90, help="passes over the training images")
    add("--batch-size", type=count, default=64, help="images of one worker in one step")
    add("--max-batches", type=count, help="steps in an epoch, for trials")
    add("--optimizer", choices=["sgd", "nag", "adam"], default="nag", help="local optimizer")
    add("--lr", type=rate, default=0.1, help="learning rate after the warm-up, for all workers' batches together")
    add("--lr-warmup-epochs", type=rate, default=5.0, help="epochs in which the rate rises")
    add("--lr-decay", choices=["cosine", "step", "none"], default="cosine", help="what happens after the warm-up")
    add("--lr-steps", type=numbers, default=[30, 60, 80], help="epochs at which --lr-decay step lowers the rate")
    add("--lr-factor", type=rate, default=0.1, help="by which --lr-decay step multiplies the rate")
    add("--momentum", type=rate, default=0.9, help="of sgd and nag")
    add("--wd", type=rate, default=1e-4, help="weight decay")
    add("--label-smoothing", type=rate, default=0.0, help="part of the label spread over all classes, such as 0.1")
    add("--val-every", type=count, default=1, help="epochs between validations")
    add("--seed", type=positive, default=0, help="of the weights and of the order of the images")
    add("--run", type=Path, help="folder to write to; default: $HYBRIDPS_RUN_FOLDER, else one in runs/")
    add("--keep", type=count, default=3, help="checkpoints to keep")
    add("--resume", nargs="?", const="auto", help="checkpoint, run folder, or auto for the newest of --run")
    return parser


def check(args: Namespace) -> None:
    """Raises UsageError for options that do not go together."""
    for name in ("val_fraction", "label_smoothing", "momentum"):
        if getattr(args, name) >= 1:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(args, name)}: expected a number below 1")
    devices = args.devices.count(",") + 1
    if args.batch_size % devices:
        raise UsageError(f"--batch-size {args.batch_size} cannot be split evenly over {devices} devices")


def run_folder(args: Namespace, workers: int) -> Path:
    """Where to write to. All workers must find the same name, so that it has the time only where there is one.

    Raises UsageError if that leaves nothing to resume from.
    """
    if args.run or os.environ.get("HYBRIDPS_RUN_FOLDER"):
        return args.run or Path(os.environ["HYBRIDPS_RUN_FOLDER"])
    if workers == 1:
        if args.resume == "auto":
            raise UsageError("--resume looks in the run folder, and this run has a new one: name it with --run")
        return Path("runs", time.strftime("%Y%m%d-%H%M%S"))
    return Path("runs", f"{Path(args.data).name}-{args.network}")


def open_data(args: Namespace) -> data.Data:
    return data.open_data(
        args.data,
        image_size=args.image_size,
        classes=args.classes,
        val_fraction=args.val_fraction,
        jitter=args.colour_jitter,
        synthetic_images=args.synthetic_images,
    )


def main(arguments: list[str] | None = None) -> int:
    args = options().parse_args(arguments)
    kv = None
    try:
        check(args)
        kv = make_store(args.kvstore)
        if kv and "elastic" in kv.type and args.dtype == "float16":
            raise UsageError(
                f"--dtype float16 trains float32 weights, which --kvstore {args.kvstore} does not average: use sync"
            )
        args.run = run_folder(args, kv.num_workers if kv else 1)
        images = open_data(args)
        if not len(images.val.indices) and not (kv and kv.rank):
            print("there are no validation images: give val/ or val.rec, or use --val-fraction", flush=True)
        train(args, kv, images)
    except (UsageError, data.DataError, models.NetworkError) as error:
        if not (kv and kv.rank):  # these are the same on all workers
            print(f"train.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
