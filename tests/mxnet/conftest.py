"""The ImageNet example for its tests, and images for it."""

from __future__ import annotations

import importlib
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "imagenet"
NAMES = ("train", "models", "checkpoint", "make_recordio", "options", "journal", "losses")
NAMES += ("trainer_states", "duties", "resuming", "totals", "averaging", "evaluation", "optimizers")
PIPELINE = ("augment", "data", "loader", "records", "sources", "transforms")


@pytest.fixture(scope="module")
def example():
    """The modules of the example; they have short names, which other tests must not see."""
    sys.path.insert(0, str(EXAMPLE))
    kept = _forget()
    try:
        found = {name: importlib.import_module(name) for name in NAMES}
        yield Namespace(**found, **{name: importlib.import_module(f"pipeline.{name}") for name in PIPELINE})
    finally:
        sys.path.remove(str(EXAMPLE))
        _forget()
        sys.modules.update(kept)


def _forget() -> dict[str, ModuleType]:
    """Take the modules of these names out of those that are imported."""
    names = [name for name in sys.modules if name.partition(".")[0] in (*NAMES, "pipeline", "forecast")]
    return {name: sys.modules.pop(name) for name in names}


@pytest.fixture
def folder(tmp_path) -> Path:
    """JPEG files of different sizes and shades in the ILSVRC layout: 3 classes, 8 and 2 images each."""
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    for part, count in (("train", 8), ("val", 2)):
        for label, name in enumerate(("n01", "n02 a bird", "n03")):
            (tmp_path / "images" / part / name).mkdir(parents=True)
            for number in range(count):
                shape = (40 + 3 * number, 36 + label, 3)
                pixels = random.integers(80 * label, 80 * label + 60, size=shape, dtype=np.uint8)
                image.fromarray(pixels).save(tmp_path / "images" / part / name / f"{name}_{number}.JPEG")
    return tmp_path / "images"
