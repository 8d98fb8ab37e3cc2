"""The ImageNet example: its data, its checkpoints, and short trainings in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace

import numpy as np
import pytest
from example_runs import EXAMPLE, digits, lines

from hybridps.addresses import Scheduler
from hybridps.algorithms import KNOWN, choose_row
from hybridps.cli.serve.mxnet import reserved_port
from hybridps.config import Settings
from hybridps.ps.rules import SGD
from hybridps.resuming import notice

mx = pytest.importorskip("mxnet")
pytestmark = pytest.mark.mxnet

MXNET = [sys.executable, "-c", "import mxnet"]


def test_digits_are_learnt(example, tmp_path, capsys):
    assert digits(example, tmp_path, epochs=3) == 0
    epochs = lines(tmp_path, "epoch")
    assert [epoch["epoch"] for epoch in epochs] == [1, 2, 3]
    assert epochs[-1]["val_images"] == 359
    assert epochs[-1]["val_top1_correct"] > 0.9 * 359
    assert epochs[-1]["val_top5_correct"] >= epochs[-1]["val_top1_correct"]
    assert epochs[-1]["train_images"] == 1438 // 32 * 32
    assert epochs[-1]["loss"] < epochs[0]["loss"]
    assert "centre_top1_correct" not in epochs[-1]
    assert lines(tmp_path, "end")[0]["epochs"] == 3
    settings = json.loads((tmp_path / "config.json").read_text())
    assert (settings["classes"], settings["image_size"], settings["workers"]) == (10, 8, 1)
    assert settings["channels"] == 1
    assert sum("top-1" in line for line in capsys.readouterr().out.splitlines()) == 3


def test_no_hybridps_in_the_script():
    assert not [path for path in EXAMPLE.glob("*.py") if "import hybridps" in path.read_text()]


def test_same_seed_same_result_with_local_store_and_devices(example, tmp_path):
    digits(example, tmp_path / "a", "--lr", "0.01")
    digits(example, tmp_path / "b", "--lr", "0.01", "--devices", "cpu:0", "--loader-threads", "2", kvstore="local")
    a, b = ([epoch["loss"] for epoch in lines(tmp_path / name, "epoch")] for name in "ab")
    assert a == pytest.approx(b, rel=1e-4)
    digits(example, tmp_path / "c", "--devices", "cpu:0,cpu:1", "--max-batches", "3", epochs=1, kvstore="local")
    assert lines(tmp_path / "c", "epoch")[0]["train_images"] == 96


@pytest.mark.parametrize("kvstore", ["none", "local"])
def test_a_finished_training_that_is_resumed_ends_at_once(example, tmp_path, kvstore, capsys):
    """Also one that is to have fewer epochs now; and it writes nothing."""
    digits(example, tmp_path, "--max-batches", "1", kvstore=kvstore)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for epochs in (2, 1):
        capsys.readouterr()
        assert digits(example, tmp_path, "--max-batches", "1", "--resume", epochs=epochs, kvstore=kvstore) == 0
        resumed, *said = capsys.readouterr().out.splitlines()
        assert resumed.startswith("resumed from")
        assert said == [f"epoch {epochs} of {epochs} is done: nothing is left to train"]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(("count", "batch"), [(1438, 32), (100, 3), (64, 8)])
def test_training_shards(example, count, batch, workers):
    shards = [example.data.train_shard(count, worker, workers, batch, seed=5) for worker in range(workers)]
    assert {len(shard) for shard in shards} == {count // workers // batch * batch}
    together = np.concatenate(shards)
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0
    assert together.max() < count
    other = example.data.train_shard(count, 0, workers, batch, seed=6)
    assert not np.array_equal(shards[0], other)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
def test_validation_shards_have_each_image_once(example, workers):
    shards = [example.data.val_shard(359, worker, workers) for worker in range(workers)]
    assert sorted(np.concatenate(shards)) == list(range(359))


def test_too_few_images(example, tmp_path, capsys):
    with pytest.raises(example.records.DataError, match="--batch-size 25 or less"):
        example.data.train_shard(100, 0, 4, 32, seed=0)
    assert digits(example, tmp_path, "--batch-size", "2000") == 2
    assert capsys.readouterr().err.startswith("train.py: 1438 training images are less than one batch of 2000")


def test_split_is_stratified(example):
    labels = np.repeat(np.arange(4), 25)
    train, val = example.data.split(labels, 0.2)
    assert sorted([*train, *val]) == list(range(100))
    assert np.bincount(labels[val]).tolist() == [5, 5, 5, 5]


@pytest.mark.parametrize(("fraction", "held"), [(0.1, [0, 1, 1]), (0.9, [0, 1, 3])])
def test_split_of_few_images_leaves_some_in_each_part(example, fraction, held):
    labels = np.repeat(np.arange(3), [1, 2, 4])
    train, val = example.data.split(labels, fraction)
    assert sorted([*train, *val]) == list(range(7))
    assert np.bincount(labels[val], minlength=3).tolist() == held


def test_half_a_line_does_not_spoil_the_next(example, tmp_path):
    (tmp_path / "train-0.jsonl").write_text('{"event":"ep')
    digits(example, tmp_path, "--max-batches", "1", epochs=1)
    read = (tmp_path / "train-0.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in read[1:]] == ["run", "epoch", "end"]


def test_mxnets_own_asynchronous_store(example, tmp_path, capsys):
    """It updates by itself, so that its checkpoints have no states of an optimizer."""
    pytest.importorskip("sklearn")
    fixed = "--data digits --network digits --kvstore dist_async --lr-decay none --lr-warmup-epochs 0 --max-batches 2"
    command = [sys.executable, str(EXAMPLE / "train.py"), *fixed.split(), "--epochs", "1", "--run", str(tmp_path)]
    with reserved_port("127.0.0.1") as port:
        scheduler = Scheduler("127.0.0.1", port, 1, 1)
        roles = {"scheduler": MXNET, "server": MXNET, "worker": command}
        processes = [
            subprocess.Popen(words, env=os.environ | scheduler.environment(role, "127.0.0.1"))
            for role, words in roles.items()
        ]
        try:
            assert [process.wait(60) for process in processes] == [0, 0, 0]
        finally:
            for process in processes:
                process.kill()
    found, problems = example.checkpoint.newest(tmp_path)
    assert (found.position.epoch, problems) == (1, [])
    assert digits(example, tmp_path, "--resume") == 2
    assert "has no optimizer states" in capsys.readouterr().err


class FrozenElastic(mx.kv.KVStoreBase):
    """A store with Elastic SGD's face: its centre is what was broadcast first, for ever."""

    rank, num_workers, type = 0, 1, "dist_frozen_elastic"

    def __init__(self) -> None:
        self.centre: dict[int, mx.nd.NDArray] = {}

    @staticmethod
    def is_capable(capability):
        return False

    def broadcast(self, key, value, out, priority=0):
        self.centre[key] = value.copy()

    def pushpull(self, key, value, out=None, priority=0):
        pass

    def pull(self, key, out=None, priority=0, ignore_sparse=True):
        for array in out:
            self.centre[key].copyto(array)


def test_centre_is_evaluated_and_saved(example, tmp_path, monkeypatch, capsys):
    store = FrozenElastic()
    monkeypatch.setattr(mx.kv, "create", lambda name: store)
    assert digits(example, tmp_path, kvstore="dist_frozen_elastic", epochs=3) == 0
    epochs = lines(tmp_path, "epoch")
    assert len({(epoch["centre_top1_correct"], epoch["centre_loss_sum"]) for epoch in epochs}) == 1
    assert epochs[-1]["centre_top1_correct"] < epochs[-1]["val_top1_correct"]
    assert "centre top-1" in capsys.readouterr().out
    saved = mx.nd.load(str(tmp_path / "checkpoints" / "epoch-0003" / "model.params"))
    sums = sorted(float(array.asnumpy().sum()) for array in saved.values())
    assert sums == pytest.approx(sorted(float(array.asnumpy().sum()) for array in store.centre.values()))


def test_an_elastic_training_that_ends_at_the_last_step_of_an_epoch_is_resumed(example, tmp_path, monkeypatch):
    """The first step of the resumed training is in the next epoch. Until then, the centre is that of the checkpoint."""
    monkeypatch.setattr(mx.kv, "create", lambda name: FrozenElastic())
    rate = example.train.learning_rate

    def leave_in_the_second_step(args, done, one_step=0.0):
        notice.agreed = done > 0
        return rate(args, done, one_step)

    with monkeypatch.context() as patch:
        patch.setattr(notice, "agreed", False)
        patch.setattr(example.train, "learning_rate", leave_in_the_second_step)
        assert digits(example, tmp_path, "--max-batches", "2", kvstore="dist_frozen_elastic") == 0
    left, _ = example.checkpoint.newest(tmp_path)
    assert (left.position.epoch, left.position.step) == (0, 2)
    centre = mx.nd.load(str(left.folder / "model.params"))
    assert digits(example, tmp_path, "--max-batches", "2", "--resume", kvstore="dist_frozen_elastic") == 0
    assert [epoch["train_images"] for epoch in lines(tmp_path, "epoch")] == [0, 64]
    saved = mx.nd.load(str(tmp_path / "checkpoints" / "epoch-0001" / "model.params"))
    for name, array in centre.items():
        np.testing.assert_array_equal(saved[name].asnumpy(), array.asnumpy(), name)


@pytest.mark.parametrize("name", KNOWN)
def test_what_a_store_averages_follows_from_its_type(example, name):
    from hybridps.kvstore.store import PREFIX, mode_of

    rule = SGD(rate=0.1) if name in ("async", "stale") else None
    row = choose_row(name, Settings(), groups=2, has_servers=True, rule=rule, clock=None)
    store = Namespace(type=f"{PREFIX}{name}{mode_of(name)}")
    assert example.options.averages_weights(store) == (row.sends == "weights")
    assert example.options.has_centre(store) == (row.sends == "weights" and row.tier == "servers")


@pytest.mark.parametrize("kind", [None, "local", "device", "dist_sync", "dist_async", "dist_device_sync"])
def test_mxnets_own_stores_average_nothing(example, kind):
    store = kind and Namespace(type=kind)
    assert not example.options.averages_weights(store)
    assert not example.options.has_centre(store)


@pytest.mark.parametrize("kind", ["elastic", "local", "gossip"])
def test_float16_is_refused_where_weights_are_averaged(example, tmp_path, kind, monkeypatch, capsys):
    monkeypatch.setattr(mx.kv, "create", lambda name: Namespace(type=f"dist_hybridps_{kind}_sync", rank=0))
    assert digits(example, tmp_path, "--dtype", "float16", kvstore="dist_x") == 2
    assert "--dtype float16 trains float32 weights, which --kvstore dist_x does not average" in capsys.readouterr().err


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("size", [None, 80])
def test_training_on_a_folder_and_on_records(example, folder, tmp_path, records, size):
    if records:
        example.make_recordio.make_recordio(folder, tmp_path / "records")
    options = ["--data", tmp_path / "records" if records else folder, "--network", "cifar_resnet8", "--width", "4"]
    options += ["--image-size", size, "--colour-jitter", "0.2"] if size else []
    options += ["--kvstore", "none", "--epochs", "1", "--batch-size", "8", "--run", tmp_path / "run"]
    assert example.train.main([*map(str, options)]) == 0
    epoch = lines(tmp_path / "run", "epoch")[0]
    assert epoch["train_images"] == 24
    assert epoch["val_images"] == 6
    settings = json.loads((tmp_path / "run" / "config.json").read_text())
    assert settings["classes"] == 3
    assert settings["image_size"] in ([size] if size else [36, 37, 38])  # of the image that comes first


def test_without_validation_images(example, folder, tmp_path, capsys):
    for path in (folder / "val").rglob("*.JPEG"):
        path.unlink()
    for path in (folder / "val").iterdir():
        path.rmdir()
    (folder / "val").rmdir()
    common = ["--data", folder, "--network", "cifar_resnet8", "--width", "2", "--kvstore", "none", "--epochs", "1"]
    common += ["--batch-size", "4", "--run", tmp_path / "run"]
    assert example.train.main([*map(str, common)]) == 0
    assert "there are no validation images" in capsys.readouterr().out
    assert example.train.main([*map(str, [*common, "--val-fraction", "0.25"])]) == 0
    assert [epoch["val_images"] for epoch in lines(tmp_path / "run", "epoch")] == [0, 6]
    for path in (folder / "train").rglob("*_[1-9].JPEG"):
        path.unlink()
    capsys.readouterr()
    assert example.train.main([*map(str, [*common, "--val-fraction", "0.25", "--batch-size", "1"])]) == 0
    said = capsys.readouterr().out
    assert "no validation images: --val-fraction 0.25 needs a class with two images, and each has only one" in said


def test_transforms(example):
    random = np.random.default_rng(0)
    image = random.integers(0, 256, size=(50, 70, 3), dtype=np.uint8)
    assert np.array_equal(example.transforms.centre_crop(50, 1.0)(image, random), image[:, 10:60])
    assert example.transforms.centre_crop(64, 256 / 224)(image, random).shape == (64, 64, 3)
    for _ in range(20):
        assert example.transforms.resized_crop(32, 0.4)(image, random).shape == (32, 32, 3)
    assert np.array_equal(example.transforms.colour_jitter(image, 0.0, random), image)
    shifts = {example.transforms.shift_crop(1, flip=False)(image, random).tobytes() for _ in range(200)}
    assert len(shifts) == 9


def test_learning_rate(example):
    args = example.options.parser().parse_args(["--epochs", "10", "--lr", "1", "--lr-warmup-epochs", "2"])
    assert example.optimizers.learning_rate(args, 0, 0.1) == pytest.approx(0.05)
    assert example.optimizers.learning_rate(args, 1.9, 0.1) == pytest.approx(1.0)
    assert example.optimizers.learning_rate(args, 6) == pytest.approx(0.5)
    assert example.optimizers.learning_rate(args, 10) == pytest.approx(0.0)
    args.lr_decay, args.lr_steps = "step", [4, 8]
    assert [example.optimizers.learning_rate(args, epoch) for epoch in (3.9, 4, 8)] == pytest.approx([1, 0.1, 0.01])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--network resnet50", "--network resnet50: expected one of digits"),
        ("--network cifar_resnet9", "6 n + 2"),
        ("--kvstore dist_hybridps_never", "MXNet does not know --kvstore dist_hybridps_never"),
        ("--data no-such-folder", "--data no-such-folder: expected"),
        ("--devices tpu", "--devices tpu: expected auto"),
        ("--batch-size 7 --devices cpu:0,cpu:1", "cannot be split"),
        ("--label-smoothing 1.5", "--label-smoothing 1.5: expected a number below 1"),
    ],
)
def test_bad_options_have_one_message(example, tmp_path, option, message, capsys):
    assert digits(example, tmp_path, *option.split()) == 2
    err = capsys.readouterr().err
    assert len(err.strip().splitlines()) == 1
    assert message in err
