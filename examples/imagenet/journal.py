"""Records the events of a training, as lines for people and for programs."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duties
import mxnet as mx
import numpy as np
import totals
from pipeline import data


class Journal:
    """The events of a training: JSON lines in `<run>/train-<worker>.jsonl` and, for people, a line for each epoch.

    A line that cannot be written, for example because the disk is full, is dropped; the first failure is reported.
    """

    def __init__(self, args: Namespace, kv: mx.kv.KVStore | None, images: data.Data, first_epoch: int) -> None:
        self._worker, self._workers, kind = (kv.rank, kv.num_workers, kv.type) if kv else (0, 1, "none")
        self._kv = kv
        self._epochs, self._began = args.epochs, time.perf_counter()
        self._is_failing = False
        self._run = args.run
        self._path = args.run / f"train-{self._worker}.jsonl"
        found = {"classes": images.classes, "image_size": images.image_size, "channels": len(images.mean)}
        settings = plain(args) | found | {"kvstore_type": kind, "workers": self._workers}
        self._write(
            "run",
            started_at=time.time(),
            first_epoch=first_epoch,
            worker=self._worker,
            settings=settings,
            versions=versions(),
        )
        if self._worker == 0:
            with self._dropping():
                (args.run / "config.json").write_text(json.dumps(settings, indent=1) + "\n")
        if not os.environ.get("HYBRIDPS_LIFE"):  # in a later life, the job began before
            print(f"hybridps: epoch={first_epoch} worker={self._worker}", flush=True)

    def epoch(
        self, epoch: int, loss: float, timing: dict[str, float], lr: float, scores: dict[str, float], prints: bool
    ) -> None:
        """Record an epoch of this worker. The worker that records it last prints the sums of all workers.

        If the workers share no folder, each worker with `prints` prints its own figures instead.
        """
        rate = timing["train_images"] / timing["train_seconds"]
        with suppress(OSError):  # if this fails, writing the line fails too
            totals.forget(self._run, epoch)
        line = self._write("epoch", epoch=epoch, loss=loss, **timing, images_per_second=rate, lr=lr, **scores)
        if timing["corrupt_images"]:
            print(
                f"worker {self._worker} skipped {timing['corrupt_images']} corrupt images in epoch {epoch}", flush=True
            )
        print(progress_line(self._worker, epoch, loss, scores), flush=True)
        self._sum_up(line, prints)

    def _sum_up(self, line: totals.Line, prints: bool) -> None:
        sums = None
        if self._workers == 1 or not totals.are_shared(self._run, self._workers):
            sums = totals.add_up([line]) if prints else None
            with suppress(OSError):
                if sums:
                    totals.keep(self._run, sums)
        else:
            with suppress(OSError):
                sums = totals.complete(self._run, line["epoch"], self._workers, duties.lost(self._kv))
        if sums:
            print(epoch_line(sums, self._epochs, self._workers), flush=True)
            with suppress(OSError):
                totals.mark_best(self._run, sums)

    def end(self) -> None:
        self._write("end", epochs=self._epochs)

    def _write(self, event: str, **fields: Any) -> totals.Line:
        line = {"event": event} | fields | {"seconds": round(time.perf_counter() - self._began, 3)}
        line = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
        with self._dropping(), self._path.open("a+b") as file:
            # A worker that was killed while writing leaves half a line, which must not spoil this one.
            half = file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"
            file.write(b"\n" * bool(half) + json.dumps(line).encode() + b"\n")
        return line

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        """Continue if a file cannot be written."""
        try:
            yield
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                warn(f"lines of worker {self._worker} cannot be written to {self._path.parent}: {error.strerror}")
            self._is_failing = True


def warn(message: str) -> None:
    """Report on standard error a problem that does not end the training."""
    print(f"train.py: {message}", file=sys.stderr, flush=True)


def progress_line(worker: int, epoch: int, loss: float, scores: dict[str, float]) -> str:
    """Return the line that `hybridps run` reads, and from which it computes means over the workers."""
    words = [f"epoch={epoch}", f"loss={loss:.6g}", f"worker={worker}"]
    images = scores.get("val_images")
    if images:
        words += [f"accuracy={scores['val_top1_correct'] / images:.6g}", f"images={images}"]
        if "centre_top1_correct" in scores:
            words.append(f"centre_accuracy={scores['centre_top1_correct'] / images:.6g}")
    return f"hybridps: {' '.join(words)}"


def epoch_line(sums: totals.Line, epochs: int, workers: int) -> str:
    """Return the line about an epoch for people: the sums over all workers or, as it then says, over fewer of them."""
    words = [f"epoch {sums['epoch']}/{epochs}"]
    if workers > 1:
        words.append(f"{workers} workers" if sums["workers"] == workers else f"{sums['workers']} of {workers} workers")
    words.append(f"loss {sums['loss']:.4f}")
    if images := sums.get("val_images"):
        named = {"top-1": "val_top1_correct", "top-5": "val_top5_correct", "centre top-1": "centre_top1_correct"}
        named["EMA top-1"] = "ema_top1_correct"
        words += [f"{name} {100 * sums[field] / images:.2f} %" for name, field in named.items() if field in sums]
    return "  ".join([*words, f"{sums['images_per_second']:.0f} images/s"])


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), "mxnet": mx.__version__, "numpy": np.__version__}


def plain(args: Namespace) -> dict[str, Any]:
    """Return the options in types that JSON supports."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
