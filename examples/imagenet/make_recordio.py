"""Pack a folder of images into RecordIO files: python make_recordio.py FOLDER OUT

FOLDER has train/<class>/<image> and, optionally, val/<class>/<image>. OUT gets train.rec, train.idx,
val.rec, val.idx, and classes.txt with the class names in the order of their numbers. The images are
stored as they are, in a random order, so that reading the file from the beginning sees all classes.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
from pipeline.records import DataError, ImageError
from pipeline.sources import FolderImages
from tqdm import tqdm


def pack(images: FolderImages, out: Path, seed: int = 0) -> None:
    """Write `out`.rec and `out`.idx, and print a line. They get their names only when they are complete."""
    partial = [out.with_suffix(f"{suffix}.partial") for suffix in (".idx", ".rec")]
    records = mx.recordio.MXIndexedRecordIO(*map(str, partial), "w")
    order = np.random.default_rng(seed).permutation(len(images))
    for key, index in enumerate(tqdm(order, desc=out.name, file=sys.stdout, disable=None)):
        encoded, label = images.encoded(int(index))
        header = mx.recordio.IRHeader(flag=0, label=float(label), id=int(index), id2=0)
        records.write_idx(key, mx.recordio.pack(header, encoded))
    records.close()
    for path in partial:
        os.replace(path, path.with_suffix(""))
    classes = len(np.unique(images.labels()))
    print(f"{out}.rec: {len(images):,} images of {classes:,} classes", flush=True)


def make_recordio(folder: Path, out: Path) -> None:
    """Pack `folder`/train and, if it exists, `folder`/val into `out`. Raises DataError."""
    if not (folder / "train").is_dir():
        raise DataError(f"{folder} has no folder train/")
    train = FolderImages(folder / "train")
    out.mkdir(parents=True, exist_ok=True)
    pack(train, out / "train")
    if (folder / "val").is_dir():
        pack(FolderImages(folder / "val", train.names), out / "val")
    else:
        print(f"{folder} has no val/: train.py can hold out images with --val-fraction", flush=True)
    (out / "classes.txt").write_text("".join(f"{name}\n" for name in train.names))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    try:
        make_recordio(given.folder, given.out)
    except (DataError, ImageError, OSError) as error:
        sys.exit(f"make_recordio.py: {error}")
