"""Draws the curves of a run of examples/imagenet: python docs/pictures/curves.py RUN PNG"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

SCORES = {"val_top1_correct": "weights", "ema_top1_correct": "moving average", "centre_top1_correct": "centre"}


def draw(run: Path, to: Path) -> None:
    """The loss and the top-1 of all workers, from the files in `epochs/` of the run folder."""
    epochs = [json.loads(path.read_text()) for path in sorted((run / "epochs").glob("*.json"))]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    left.plot([each["epoch"] for each in epochs], [each["loss"] for each in epochs])
    left.set(xlabel="epoch", ylabel="training loss")
    for field, label in SCORES.items():
        seen = [each for each in epochs if each.get("val_images") and field in each]
        if seen:
            shares = [100 * each[field] / each["val_images"] for each in seen]
            right.plot([each["epoch"] for each in seen], shares, label=f"{label}: {shares[-1]:.1f} %")
    right.set(xlabel="epoch", ylabel="validation top-1 (%)")
    right.legend()
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.xaxis.get_major_locator().set_params(integer=True)
    figure.savefig(to, dpi=100)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
