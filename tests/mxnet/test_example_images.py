"""The ImageNet example: its folders and RecordIO files, also damaged ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from example_runs import EXAMPLE, lines
from worlds import environment

mx = pytest.importorskip("mxnet")
pytestmark = pytest.mark.mxnet


@pytest.mark.parametrize("with_index", [True, False])
def test_records_have_the_images_of_the_folder(example, folder, tmp_path, with_index, capsys):
    example.make_recordio.make_recordio(folder, tmp_path / "records")
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/records/train.rec: 24 images of 3 classes",
        f"{tmp_path}/records/val.rec: 6 images of 3 classes",
    ]
    if not with_index:
        (tmp_path / "records" / "train.idx").unlink()
    images = example.sources.FolderImages(folder / "train")
    records = example.sources.RecordImages(tmp_path / "records" / "train.rec")
    assert len(records) == len(images) == 24

    def contents(source) -> set:
        return {(image.shape, image.tobytes(), label) for image, label in (source[i] for i in range(len(source)))}

    assert contents(records) == contents(images)
    assert sorted(records.labels()) == sorted(images.labels())
    assert (tmp_path / "records" / "classes.txt").read_text().splitlines() == ["n01", "n02 a bird", "n03"]


def test_packing_without_validation_images_says_so(example, folder, tmp_path, capsys):
    shutil.rmtree(folder / "val")
    example.make_recordio.make_recordio(folder, tmp_path / "records")
    train, val = capsys.readouterr().out.splitlines()
    assert train.endswith("train.rec: 24 images of 3 classes")
    assert val == f"{folder} has no val/: train.py can hold out images with --val-fraction"


def test_offsets_of_records_that_contain_the_magic_number(example, tmp_path):
    records = mx.recordio.MXIndexedRecordIO(str(tmp_path / "a.idx"), str(tmp_path / "a.rec"), "w")
    magic = (0xCED7230A).to_bytes(4, "little")
    contents = [b"x", magic * 3, b"", b"abcd" + magic + b"efg", b"12345"]
    for key, content in enumerate(contents):
        records.write_idx(key, content)
    records.close()
    written = [int(line.split()[1]) for line in (tmp_path / "a.idx").read_text().splitlines()]
    (tmp_path / "a.idx").unlink()
    found = example.records.RecordFile(tmp_path / "a.rec")
    assert found.offsets == written
    assert [found.read(number) for number in range(len(found))] == contents


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("where", ["last", "header", "payload"])
def test_records_cut_short_are_an_error_that_names_file_and_record(example, folder, tmp_path, with_index, where):
    """In the last of six records, and in the one before. With an index it is known that there must be a sixth."""
    example.make_recordio.make_recordio(folder, tmp_path)
    path, index = tmp_path / "val.rec", tmp_path / "val.idx"
    before_last = int(index.read_text().splitlines()[4].split("\t")[1])
    os.truncate(path, {"last": path.stat().st_size - 4, "header": before_last + 6, "payload": before_last + 20}[where])
    if not with_index:
        index.unlink()
    record = 5 if with_index or where == "last" else 4
    with pytest.raises(example.records.DataError, match=f"val.rec is cut short: .*record {record} ends later"):
        example.records.RecordFile(path)


def test_a_damaged_record_or_index_is_named(example, folder, tmp_path):
    example.make_recordio.make_recordio(folder, tmp_path)
    path, index = tmp_path / "val.rec", tmp_path / "val.idx"
    records = example.sources.RecordImages(path)
    content = bytearray(path.read_bytes())
    content[example.records.RecordFile(path).offsets[2]] ^= 1
    path.write_bytes(content)
    with pytest.raises(example.records.ImageError, match="record 2 of .*val.rec is damaged at byte"):
        records[2]
    assert records[1][0].shape[2] == 3
    assert [label == example.sources.UNKNOWN for label in records.labels()] == [number == 2 for number in range(6)]
    index.write_text(index.read_text()[:-3] + "x\n")
    with pytest.raises(example.records.DataError, match="val.idx is damaged in line 6"):
        example.records.RecordFile(path)


@pytest.mark.parametrize("by", ["classes.txt", "option"])
def test_a_record_with_a_label_beyond_the_classes_is_named(example, folder, tmp_path, by):
    example.make_recordio.make_recordio(folder, tmp_path)
    (tmp_path / "classes.txt").write_text("n01\nn02 a bird\n")
    if by == "option":
        (tmp_path / "classes.txt").unlink()
    classes = 2 if by == "option" else None
    images = example.data.open_data(str(tmp_path), classes=classes, skip_corrupt=True)
    for part, count in ((images.train, 8), (images.val, 2)):
        beyond = [number for number, label in enumerate(part.source.labels()) if label == example.sources.UNKNOWN]
        assert len(beyond) == count
        for number in beyond:
            with pytest.raises(example.records.ImageError, match=f"record {number} of .* has the label 2, and .* 2 cl"):
                part.source[number]
    images = example.data.open_data(str(tmp_path), classes=3)
    assert sorted(set(images.train.source.labels())) == [0, 1, 2]


@pytest.mark.parametrize(
    ("limit", "size", "used"), [(64, None, "whole"), (64, 80, "whole"), (30, None, "parts"), (30, 24, "parts")]
)
def test_images_are_used_whole_if_they_are_small_themselves(example, folder, monkeypatch, limit, size, used):
    """Whatever the size that the network gets. The images have 36 to 38 pixels."""
    chosen = []
    monkeypatch.setattr(example.data, "SMALL", limit)
    monkeypatch.setattr(example.data, "_small_training", lambda *given: chosen.append(("whole", given[0])))
    monkeypatch.setattr(example.data, "resized_crop", lambda *given: chosen.append(("parts", given[0])))
    images = example.data.open_data(str(folder), image_size=size)
    assert chosen == [(used, images.image_size)]
    assert images.image_size == size or images.image_size in ((36,) if used == "whole" else (224,))


def spoil(path: Path, how: str) -> None:
    content = path.read_bytes()
    path.write_bytes({"empty": b"", "text": b"no image", "half": content[: len(content) // 2]}[how])


@pytest.mark.parametrize("how", ["empty", "text", "half"])
@pytest.mark.parametrize("suffix", ["JPEG", "png", "bmp"])
def test_corrupt_image_is_named(example, folder, how, suffix):
    image = pytest.importorskip("PIL.Image")
    whole = next((folder / "train" / "n02 a bird").iterdir())
    path = whole.with_suffix(f".{suffix}")
    image.open(whole).save(path)
    example.sources.decode(path.read_bytes(), str(path))
    spoil(path, how)
    images = example.sources.FolderImages(folder / "train")
    with pytest.raises(example.records.ImageError, match=path.name):
        [images[index] for index in range(len(images))]


def test_jpeg_with_a_thumbnail_or_padding(example, folder):
    """The end of a thumbnail is not that of the image, and what follows the end does not matter."""
    path = next((folder / "train" / "n01").iterdir())
    content = path.read_bytes()
    application = b"\xff\xe1" + (2 + len(content)).to_bytes(2, "big") + content
    nested = content[:2] + application + content[2:]
    assert example.sources.decode(nested, "a").shape == example.sources.decode(content, "b").shape
    example.sources.decode(nested + b"\0" * 7, "a")
    example.sources.decode(content[:2] + b"\xff" + content[2:], "filled")
    with pytest.raises(example.records.ImageError, match="a is cut short"):
        example.sources.decode(nested[:-100], "a")


def options(data: Path, run: Path, *more: object) -> list[str]:
    given = ["--data", data, "--network", "cifar_resnet8", "--width", "2", "--batch-size", "4", "--run", run]
    return [*map(str, given), *map(str, more)]


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("threads", [0, 2])
def test_corrupt_images_end_the_training_or_are_skipped(example, folder, tmp_path, records, threads, capsys):
    """The first image too, whose size is looked at, and one for validation."""
    first, *_ = sorted((folder / "train" / "n01").iterdir())
    other = sorted((folder / "train" / "n03").iterdir())[5]
    held_out = sorted((folder / "val" / "n02 a bird").iterdir())[0]
    for path in (first, other, held_out):
        spoil(path, "half")
    if records:
        example.make_recordio.make_recordio(folder, tmp_path / "records")
    data = tmp_path / "records" if records else folder
    common = ["--kvstore", "none", "--epochs", "2", "--loader-threads", threads]
    assert example.train.main(options(data, tmp_path / "no", *common)) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert ("train.rec" if records else "n01_0.JPEG") in said or "n03_5.JPEG" in said
    assert "is cut short; use --skip-corrupt" in said
    assert example.train.main(options(data, tmp_path / "yes", *common, "--skip-corrupt")) == 0
    out, err = capsys.readouterr()
    assert len(err.splitlines()) == 3, "each is named once"
    epochs = lines(tmp_path / "yes", "epoch")
    assert [(epoch["train_images"], epoch["val_images"], epoch["corrupt_images"]) for epoch in epochs] == 2 * [
        (24, 5, 3)
    ]
    assert [f"worker 0 skipped 3 corrupt images in epoch {epoch}" in out for epoch in (1, 2)] == [True, True]


def test_nothing_but_corrupt_images(example, folder, tmp_path, capsys):
    for path in (folder / "train").rglob("*.JPEG"):
        spoil(path, "half")
    assert example.train.main(options(folder, tmp_path / "run", "--kvstore", "none", "--skip-corrupt")) == 2
    assert "--skip-corrupt leaves no image: all 24" in capsys.readouterr().err


def train_with_two(folder: Path, run: Path, *more: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "hybridps", "run", "-n", "2", "--algorithm", "sync", "--run", str(run)]
    command += ["--", sys.executable, str(EXAMPLE / "train.py"), *options(folder, run, "--epochs", "1"), *more]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=150, check=False)


@pytest.mark.timeout(170)
@pytest.mark.nightly
def test_workers_with_corrupt_images_take_the_same_steps(folder, tmp_path):
    """Two workers in one group wait for each other in every step."""
    for path in sorted((folder / "train" / "n02 a bird").iterdir())[:7]:
        spoil(path, "half")
    done = train_with_two(folder, tmp_path / "run", "--skip-corrupt")
    assert done.returncode == 0, done.stdout + done.stderr
    epochs = [
        [
            line
            for line in map(json.loads, (tmp_path / "run" / f"train-{worker}.jsonl").open())
            if line["event"] == "epoch"
        ]
        for worker in range(2)
    ]
    for both in zip(*epochs, strict=True):
        assert [epoch["train_images"] for epoch in both] == [12, 12]
        assert sum(epoch["corrupt_images"] for epoch in both) == 7
    (said,) = [line for line in done.stdout.splitlines() if "epoch 1/1" in line]
    assert "epoch 1/1  2 workers  loss " in said
    sums = json.loads((tmp_path / "run" / "epochs" / "0001.json").read_text())
    assert (sums["train_images"], sums["val_images"], sums["corrupt_images"]) == (24, 6, 7)
    assert sums["images_per_second"] == pytest.approx(sum(worker[0]["images_per_second"] for worker in epochs))
    assert (tmp_path / "run" / "checkpoints" / "best").resolve().name == "epoch-0001"


@pytest.mark.timeout(170)
def test_a_corrupt_image_of_one_worker_ends_all(folder, tmp_path):
    path = sorted((folder / "train" / "n02 a bird").iterdir())[3]
    spoil(path, "half")
    done = train_with_two(folder, tmp_path / "run")
    assert done.returncode != 0
    assert done.stderr.count(f"train.py: {path} is cut short; use --skip-corrupt to skip such images") == 1


def test_damaged_record_file(example, tmp_path):
    (tmp_path / "train.rec").write_bytes(b"x" * 100)
    with pytest.raises(example.records.DataError, match="record 0 of .*train.rec is damaged at byte 0"):
        example.sources.RecordImages(tmp_path / "train.rec")
