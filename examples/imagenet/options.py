"""The options of train.py, and what follows from the options alone."""

from __future__ import annotations

import math
import os
import shlex
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mxnet as mx

CENTRES = frozenset({"elastic", "easgd", "eamsgd", "local", "diloco"})
"""The algorithms of hybridps whose servers hold weights of their own, the centre. A store's type has such a word."""
AVERAGES = CENTRES | {"gossip", "gosgd", "sgp"}
"""The algorithms that average the weights of groups."""


class UsageError(Exception):
    """The options cannot be used together, or on this machine. The message says what to do."""


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


def rand_augment(text: str) -> tuple[int, float]:
    number, magnitude = (*numbers(text), -1)[:2]
    if text.count(",") != 1 or number < 1 or number % 1 or not 0 <= magnitude <= 10:
        raise ArgumentTypeError(f"{text!r}: expected a number of operations and a magnitude of 0 to 10, such as 2,9")
    return int(number), magnitude


count, positive, rate = at_least(1), at_least(0), at_least(0.0, float)


class _Parser(ArgumentParser):
    """Reads files of options (recipes), with several options on a line, and comments."""

    def convert_arg_line_to_args(self, line: str) -> list[str]:
        return shlex.split(line, comments=True)


def parser() -> ArgumentParser:
    made = _Parser(
        fromfile_prefix_chars="@",
        description="Train a network on ImageNet or other images, on one or many workers. @FILE: options in a file.",
        formatter_class=ArgumentDefaultsHelpFormatter,
    )
    _add_data(made.add_argument_group("data").add_argument)
    _add_training(made.add_argument_group("training").add_argument)
    _add_optimizer(made.add_argument_group("optimizer").add_argument)
    _add_run(made.add_argument_group("run").add_argument)
    return made


def _add_data(add: Callable[..., Any]) -> None:
    add("--data", default="synthetic", help="folder with train/ and val/, or train.rec and val.rec; synthetic; digits")
    add("--image-size", type=count, help="default: as in the data if small, else 224")
    add("--classes", type=count, help="default: as in the data; 1000 for synthetic")
    add("--val-fraction", type=rate, default=0.0, help="share of each class of train/ to hold out if there is no val/")
    add("--skip-corrupt", action="store_true", help="skip images that cannot be read, and count them")
    add("--synthetic-images", type=count, default=1280, help="number of synthetic images")
    add("--loader-threads", type=positive, help="threads that read images; 0 for none; default: one per core")
    add("--colour-jitter", type=rate, default=0.0, help="strength of colour changes to large images, such as 0.4")
    add("--rand-augment", type=rand_augment, metavar="N,M", help="N operations of magnitude M, such as 2,9")
    add("--cutout", type=rate, default=0.0, help="side of a grey square, as a share of the image's, such as 0.25")


def _add_training(add: Callable[..., Any]) -> None:
    add("--network", default="resnet50_v1", help="a name of Gluon's model zoo; cifar_resnet20; digits")
    add("--width", type=count, default=16, help="channels of the first layer of cifar_resnet and digits")
    add(
        "--dtype",
        choices=["float32", "float16", "amp"],
        default="float32",
        help="dtype of the network; amp: mixed precision",
    )
    add("--devices", default="auto", help="devices of each worker, such as cpu or gpu:0,gpu:1")
    add("--kvstore", default="dist_hybridps", help="name of an MXNet KVStore; none for one worker without a store")
    add("--epochs", type=count, default=90, help="passes over the training images")
    add("--batch-size", type=count, default=64, help="images of one worker in one step")
    add("--max-batches", type=count, help="steps in an epoch, for trials")
    add(
        "--label-smoothing",
        type=rate,
        default=0.0,
        help="share of the label that is spread over all classes, such as 0.1",
    )
    add("--mixup", type=rate, default=0.0, help="mix images in pairs, with shares from Beta(this, this), such as 0.2")
    add("--ema", type=rate, default=0.0, help="decay of a moving average of the weights, such as 0.9999")
    add("--seed", type=positive, default=0, help="seed of the weights and of the order of the images")


def _add_optimizer(add: Callable[..., Any]) -> None:
    add("--optimizer", choices=["sgd", "nag", "adam", "lars", "lamb"], default="sgd", help="local optimizer")
    add("--lr", type=rate, default=0.1, help="learning rate after the warm-up, for all workers' batches together")
    add("--lr-warmup-epochs", type=rate, default=5.0, help="epochs in which the rate rises")
    add(
        "--lr-decay", choices=["cosine", "step", "none"], default="cosine", help="how the rate decays after the warm-up"
    )
    add("--lr-steps", type=numbers, default=[30, 60, 80], help="epochs at which --lr-decay step lowers the rate")
    add("--lr-factor", type=rate, default=0.1, help="factor by which --lr-decay step multiplies the rate")
    add("--momentum", type=rate, default=0.9, help="momentum of sgd, nag and lars")
    add("--wd", type=rate, default=1e-4, help="weight decay")


def _add_run(add: Callable[..., Any]) -> None:
    add("--run", type=Path, help="folder to write to; default: $HYBRIDPS_RUN_FOLDER, else one in runs/")
    add("--resume", nargs="?", const="auto", help="checkpoint, run folder, or auto for the newest of --run")
    add("--checkpoint-steps", type=count, help="steps between checkpoints within an epoch; default: only at its end")
    add("--keep", type=count, default=3, help="number of epochs whose checkpoints are kept")
    add("--val-every", type=count, default=1, help="epochs between validations")
    add(
        "--dry-run",
        nargs="?",
        const=1,
        type=count,
        metavar="WORKERS",
        help="print what a training would take, and exit",
    )
    add(
        "--machine",
        default="abci",
        help="for --dry-run: a machine with these links, known to `hybridps oracle` or in a file",
    )


def check(args: Namespace) -> None:
    """Raise UsageError for options that contradict each other."""
    for name in ("val_fraction", "label_smoothing", "momentum", "ema"):
        if getattr(args, name) >= 1:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(args, name)}: expected a number below 1")
    devices = args.devices.count(",") + 1
    if args.batch_size % devices:
        raise UsageError(f"--batch-size {args.batch_size} cannot be split evenly over {devices} devices")


def weights_dtype(args: Namespace) -> str:
    return "float16" if args.dtype == "float16" else "float32"


def has_centre(kv: mx.kv.KVStore | None) -> bool:
    """Return whether the servers of this store hold a centre, which `pull` returns."""
    return not CENTRES.isdisjoint(_words(kv))


def averages_weights(kv: mx.kv.KVStore | None) -> bool:
    return not AVERAGES.isdisjoint(_words(kv))


def _words(kv: mx.kv.KVStore | None) -> list[str]:
    """Return the words of a distributed store's type. MXNet's store `local` is none."""
    return kv.type.split("_") if kv and kv.type.startswith("dist_") else []


def run_folder(args: Namespace, workers: int) -> Path:
    """Return the folder to write to. It is named by the time only with one worker, as all workers need the same name.

    Raises UsageError if `--resume` has nothing to resume from.
    """
    if args.run or os.environ.get("HYBRIDPS_RUN_FOLDER"):
        return args.run or Path(os.environ["HYBRIDPS_RUN_FOLDER"])
    if workers == 1:
        if args.resume == "auto":
            raise UsageError("--resume looks in the run folder, and this run has a new one: name it with --run")
        return Path("runs", time.strftime("%Y%m%d-%H%M%S"))
    return Path("runs", f"{Path(args.data).name}-{args.network}")


def reached(args: Namespace) -> int:
    """Return the whole epochs that the job had done when `hybridps run` restarted this worker's group; else 0.

    The last epoch never counts: a group that trains in it leaves a checkpoint of it.
    """
    return min(int(float(os.environ.get("HYBRIDPS_RESUME_EPOCH", "0"))), args.epochs - 1)


def make_folder(folder: Path) -> None:
    """Make the run folder. Raises UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--run {folder} cannot be created: {error.strerror}") from None


def find_devices(text: str, worker: int, dtype: str) -> list[mx.Context]:
    """Return the devices of `cpu`, `gpu:0` or `gpu:0,gpu:1`; `auto` is a GPU if there are any. Raises UsageError."""
    gpus = mx.context.num_gpus()
    if text == "auto":
        text = f"gpu:{worker % gpus}" if gpus else "cpu"
    if dtype != "float32" and "cpu" in text:
        raise UsageError(f"--dtype {dtype}: MXNet has no float16 on the CPU; use --devices gpu:0 or --dtype float32")
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
    """Return the KVStore of that name; None for `none`. Raises UsageError."""
    if name == "none":
        return None
    # For any unknown name with `dist` in it, MXNet makes its own store, whose error is about DMLC_NUM_WORKER.
    if "hybridps" in name and name not in list(mx.kv.KVStoreBase.kv_registry):
        raise UsageError(
            f"MXNet does not know --kvstore {name}: start with `hybridps run ... -- python train.py ...` or "
            f"`mpirun ... python -m hybridps train.py ...`, or use --kvstore none for one worker"
        )
    return mx.kv.create(name)
