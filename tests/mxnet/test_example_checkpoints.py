"""The ImageNet example: its checkpoints, also damaged ones, those of strangers, and disks that are full."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from disks import fill, small_disk
from example_runs import digits, lines

from hybridps.resuming import notice

mx = pytest.importorskip("mxnet")
pytestmark = pytest.mark.mxnet


def bits(run: Path, name: str) -> dict[str, bytes]:
    """The weights and the optimizer's states of a checkpoint."""
    folder = run / "checkpoints" / name
    with np.load(folder / "states.npz", allow_pickle=False) as states:
        found = {key: array.tobytes() for key, array in states.items()}
    weights = mx.nd.load(str(folder / "model.params"))
    average = mx.nd.load(str(folder / "average.params"))
    found |= {f"average of {key}": array.asnumpy().tobytes() for key, array in average.items()}
    return found | {key: array.asnumpy().tobytes() for key, array in weights.items()}


@pytest.mark.parametrize(
    ("optimizer", "cut"),
    [
        ("sgd", "epoch-0001-step-000030"),
        ("lars", "epoch-0001-step-000030"),
        ("lamb", "epoch-0001-step-000030"),
        ("adam", "epoch-0002"),
    ],
)
def test_a_resumed_training_has_the_bits_of_one_that_was_not_interrupted(
    example, tmp_path, optimizer, cut, monkeypatch, capsys
):
    """Of a network with dropout, with mixup and a moving average; the schedule goes on where it was, too."""
    make = example.models.make

    def with_dropout(*arguments):
        net = make(*arguments)
        net.add(mx.gluon.nn.Dropout(0.1))
        return net

    monkeypatch.setattr(example.models, "make", with_dropout)
    monkeypatch.setattr(example.checkpoint, "prune", lambda *ignored: None)
    options = ("--checkpoint-steps", "30", "--optimizer", optimizer, "--mixup", "0.2", "--ema", "0.9")
    digits(example, tmp_path / "whole", *options, epochs=3)
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    for path in (tmp_path / "parts" / "checkpoints").iterdir():
        if path.name > cut:
            shutil.rmtree(path)
    capsys.readouterr()
    assert digits(example, tmp_path / "parts", *options, "--resume", epochs=3) == 0
    assert f"{cut}\n" in capsys.readouterr().out
    assert bits(tmp_path / "parts", "epoch-0003") == bits(tmp_path / "whole", "epoch-0003")
    whole, parts = (lines(tmp_path / name, "epoch") for name in ("whole", "parts"))
    for field in ("loss", "val_loss_sum", "ema_loss_sum", "lr"):
        assert parts[-1][field] == whole[-1][field]


def test_checkpoints_within_an_epoch_make_way(example, tmp_path, monkeypatch):
    """There is one at most, and none after the end of the epoch. The first epoch stays as the best one so far."""
    seen = []
    prune = example.checkpoint.prune

    def note(folder, *rest):
        prune(folder, *rest)
        seen.append(sorted(path.name for path in folder.glob("epoch-*")))

    monkeypatch.setattr(example.checkpoint, "prune", note)
    digits(example, tmp_path, "--checkpoint-steps", "1", "--max-batches", "3", "--keep", "1")
    assert seen == [
        ["epoch-0000-step-000001"],
        ["epoch-0000-step-000002"],
        ["epoch-0001"],
        ["epoch-0001", "epoch-0001-step-000001"],
        ["epoch-0001", "epoch-0001-step-000002"],
        ["epoch-0001", "epoch-0002"],
    ]


def test_checkpoints_stay_until_the_accuracy_of_their_epoch_is_known(example, tmp_path):
    """The other groups are at epoch 3, and the second epoch is the best so far. 20 more are kept, not all."""
    for epoch in range(1, 31):
        (tmp_path / f"epoch-{epoch:04d}").mkdir()
    (tmp_path / example.checkpoint.BEST).symlink_to("epoch-0002")

    def left(epoch, summed):
        example.checkpoint.prune(tmp_path, example.checkpoint.Position(epoch), 3, summed)
        return [int(path.name[-4:]) for path in sorted(tmp_path.glob("epoch-*"))]

    assert left(10, 3) == [2, *range(4, 31)]
    assert left(30, 3) == [2, *range(8, 31)]
    assert left(30, 29) == [2, 28, 29, 30]


def test_a_training_that_begins_anew_says_that_it_replaces_checkpoints(example, tmp_path, capsys):
    digits(example, tmp_path, "--max-batches", "1", epochs=1)
    assert "checkpoints" not in capsys.readouterr().err
    digits(example, tmp_path, "--max-batches", "1", epochs=1)
    said = f"{tmp_path} has checkpoints of an earlier training, which this one replaces: to continue it, give --resume"
    assert said in capsys.readouterr().err
    digits(example, tmp_path, "--max-batches", "1", "--resume", epochs=2)
    assert "checkpoints" not in capsys.readouterr().err


def test_another_order_of_images_begins_the_epoch_again(example, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(example.checkpoint, "prune", lambda *ignored: None)
    digits(example, tmp_path, "--checkpoint-steps", "2", "--max-batches", "3", epochs=1)
    shutil.rmtree(tmp_path / "checkpoints" / "epoch-0001")
    assert digits(example, tmp_path, "--resume", "--seed", "1", "--max-batches", "3", epochs=1) == 0
    (said,) = capsys.readouterr().err.splitlines()
    assert "epoch 1 starts over" in said
    assert "seed 0; now: 1438 images, 1 workers, batches of 32, seed 1" in said
    assert lines(tmp_path, "epoch")[-1]["train_images"] == 96


def test_a_group_that_is_to_leave_ends_within_the_epoch_and_leaves_a_checkpoint(example, tmp_path, monkeypatch):
    rates = []
    step = example.train.learning_rate

    def note(args, done, one_step=0.0):
        rates.append(done)
        monkeypatch.setattr(notice, "agreed", done > 1)
        return step(args, done, one_step)

    monkeypatch.setattr(example.train, "learning_rate", note)
    assert digits(example, tmp_path, epochs=3) == 0
    assert len([done for done in rates if done > 1]) == 1
    assert [epoch["epoch"] for epoch in lines(tmp_path, "epoch")] == [1]
    monkeypatch.undo()
    found, _ = example.checkpoint.newest(tmp_path)
    assert found.position.epoch == 1
    assert (found.position.step, found.updates) == (len(rates) - 44, len(rates))
    assert digits(example, tmp_path, "--resume", epochs=2) == 0
    assert [run["first_epoch"] for run in lines(tmp_path, "run")] == [0, 1]


@pytest.mark.parametrize("harm", ["flip", "truncate", "remove", "manifest"])
def test_damaged_checkpoint_is_passed_over(example, tmp_path, harm, capsys):
    digits(example, tmp_path, "--max-batches", "2")
    newest = tmp_path / "checkpoints" / "epoch-0002"
    target = newest / ("manifest.json" if harm == "manifest" else "model.params")
    content = bytearray(target.read_bytes())
    if harm == "remove":
        target.unlink()
    else:
        content[len(content) // 2] ^= 1
        target.write_bytes(bytes(content if harm == "flip" else content[: len(content) // 2]))
    assert digits(example, tmp_path, "--max-batches", "2", "--resume", "auto", epochs=3) == 0
    out = capsys.readouterr().out
    assert "checkpoint skipped" in out
    assert "epoch-0001" in out.partition("resumed from")[2].splitlines()[0]
    assert [epoch["epoch"] for epoch in lines(tmp_path, "epoch")] == [1, 2, 2, 3]


def test_a_directory_under_its_temporary_name_is_no_checkpoint(example, tmp_path):
    digits(example, tmp_path, "--max-batches", "1", epochs=1)
    complete = tmp_path / "checkpoints" / "epoch-0001"
    complete.rename(complete.with_name(".epoch-0001.partial"))
    assert example.checkpoint.newest(tmp_path) == (None, [])


def test_missing_checkpoint(example, tmp_path, capsys):
    assert digits(example, tmp_path, "--resume", "auto", "--max-batches", "1", epochs=1) == 0
    assert digits(example, tmp_path, "--resume", tmp_path / "none") == 2
    assert "there is no complete checkpoint" in capsys.readouterr().err


def test_resuming_needs_a_folder_and_the_same_optimizer(example, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYBRIDPS_RUN_FOLDER", raising=False)
    small = ("--data", "digits", "--network", "digits", "--kvstore", "none", "--max-batches", "1", "--epochs", "1")
    pytest.importorskip("sklearn")
    assert example.train.main([*small, "--resume"]) == 2
    assert "name it with --run" in capsys.readouterr().err
    digits(example, tmp_path, "--max-batches", "1", "--optimizer", "nag", epochs=1)
    assert digits(example, tmp_path, "--resume", "--optimizer", "adam") == 2
    assert "use --optimizer nag" in capsys.readouterr().err


class Harmful:
    """A pickle of it makes a file wherever it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self):
        return Path.touch, (self._path,)


def harmful_array(path: Path) -> bytes:
    """A file of arrays, one of which is a pickle."""
    file = BytesIO()
    np.savez(file, **{"0.0": np.array([Harmful(path)], dtype=object)})
    return file.getvalue()


def forge(folder: Path, name: str, content: bytes) -> Path:
    """Put a file into a checkpoint, with its digest, as who makes one for others to load."""
    (folder / name).write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["sha256"][name] = sha256(content).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder / name


@pytest.mark.parametrize("name", ["trainer.states", "states.npz", "model.params", "manifest.json", "array"])
def test_a_pickle_of_a_stranger_is_refused_by_name_and_not_run(example, tmp_path, name, capsys):
    digits(example, tmp_path, "--max-batches", "1", epochs=1)
    foreign, trap = tmp_path / "checkpoints" / "epoch-0001", tmp_path / "trap"
    content = harmful_array(trap) if name == "array" else pickle.dumps(Harmful(trap))
    pickle.loads(pickle.dumps(Harmful(trap)))
    assert trap.exists(), "the pickle is harmless"
    trap.unlink()
    if name == "manifest.json":
        path = foreign / name
        path.write_bytes(content)
    else:
        path = forge(foreign, "states.npz" if name == "array" else name, content)
    capsys.readouterr()
    assert digits(example, tmp_path / "new", "--resume", foreign) == 2
    out, err = capsys.readouterr()
    assert (str(path.parent) if name == "manifest.json" else str(path)) in out + err
    assert len(err.splitlines()) == 1
    assert not trap.exists()
    assert not (tmp_path / "new" / "train-0.jsonl").exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epoch", "1"),
        ("epoch", -1),
        ("epoch", 10**30),
        ("step", -1),
        ("loss_sum", "x"),
        ("order", "\x1b[2J"),
        ("updates", None),
        ("averaged", -1),
        ("written_at", float("nan")),
        ("written_at", 10**400),
        ("optimizer", "nag\x1b[2J"),
        ("optimizer", {}),
        ("optimizer", None),
        ("sha256", {"../../config.json": ""}),
        ("sha256", []),
    ],
)
def test_a_manifest_of_a_stranger_is_checked(example, tmp_path, field, value):
    digits(example, tmp_path, "--max-batches", "1", epochs=1)
    path = tmp_path / "checkpoints" / "epoch-0001" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(example.checkpoint.DamagedError, match="epoch-0001"):
        example.checkpoint.check(path.parent)
    path.write_text("[" * 100_000)
    with pytest.raises(example.checkpoint.DamagedError, match="epoch-0001"):
        example.checkpoint.check(path.parent)


def test_a_pipe_in_a_checkpoint_is_not_waited_for(example, tmp_path):
    digits(example, tmp_path, "--max-batches", "1", epochs=1)
    folder = tmp_path / "checkpoints" / "epoch-0001"
    (folder / "states.npz").unlink()
    os.mkfifo(folder / "states.npz")
    with pytest.raises(example.checkpoint.DamagedError, match="states.npz is not a file of a checkpoint"):
        example.checkpoint.check(folder)


@pytest.mark.parametrize("optimizer", ["sgd", "nag", "adam"])
def test_states_are_arrays_and_come_back(example, tmp_path, optimizer):
    """On two devices, of which the first one's are saved."""
    net = mx.gluon.nn.Dense(3, in_units=2)
    devices = [mx.cpu(0), mx.cpu(1)]
    net.initialize(ctx=devices)
    settings = {"learning_rate": 0.1} | ({} if optimizer == "adam" else {"momentum": 0.9})

    def step(trainer) -> None:
        with mx.autograd.record():
            losses = [(net(mx.nd.ones((4, 2), device)) ** 2).sum() for device in devices]
        mx.autograd.backward(losses)
        trainer.step(8)

    trainer = mx.gluon.Trainer(net.collect_params(), optimizer, settings, kvstore="local", update_on_kvstore=False)
    for _ in range(3):
        step(trainer)
    folder = example.checkpoint.save(tmp_path, example.checkpoint.Position(3), net, trainer, {})
    with np.load(folder / "states.npz", allow_pickle=False) as file:
        assert {array.dtype for array in file.values()} == {np.dtype("float32")}
    step(trainer)
    expected = [parameter.data(devices[1]).asnumpy() for parameter in net.collect_params().values()]
    net.load_parameters(str(folder / "model.params"), ctx=devices)
    trainer = mx.gluon.Trainer(net.collect_params(), optimizer, settings, kvstore="local", update_on_kvstore=False)
    example.checkpoint.load_states(example.checkpoint.check(folder), trainer)
    step(trainer)
    for parameter, values in zip(net.collect_params().values(), expected, strict=True):
        np.testing.assert_array_equal(parameter.data(devices[1]).asnumpy(), values)
    other = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=None)
    with pytest.raises(example.trainer_states.StatesError, match="use the --optimizer, --momentum"):
        example.checkpoint.load_states(example.checkpoint.check(folder), other)


def test_a_full_disk_costs_checkpoints_and_no_more(example, tmp_path, capsys, monkeypatch):
    """The second epoch meets a full disk, and finds room again before the third."""
    with small_disk(tmp_path / "disk", 2048) as disk:
        filling = []

        def save(*arguments):
            if arguments[1].epoch == 2:
                filling.append(fill(disk))
            try:
                return kept(*arguments)
            finally:
                if arguments[1].epoch == 2:
                    assert example.checkpoint.newest(disk)[0].position.epoch == 1
                    filling[0].unlink()

        kept = example.checkpoint.save
        monkeypatch.setattr(example.checkpoint, "save", save)
        assert digits(example, disk, "--max-batches", "1", epochs=3) == 0
        assert sorted(path.name for path in (disk / "checkpoints").glob("epoch-*")) == ["epoch-0001", "epoch-0003"]
        assert example.checkpoint.newest(disk) == (example.checkpoint.check(disk / "checkpoints" / "epoch-0003"), [])
        assert [epoch["epoch"] for epoch in lines(disk, "epoch")] == [1, 2, 3]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "epoch-0002 cannot be written: " in said[0]


@pytest.mark.parametrize("with_states", [True, False])
@pytest.mark.parametrize("part", [0, 10, 25, 40, 60, 80, 99])
def test_a_checkpoint_that_is_cut_short_is_none(example, tmp_path, part, with_states):
    """However much of it fits on the disk. MXNet itself closes a file that it could not write without a word."""
    net = mx.gluon.nn.Dense(30, in_units=100)
    net.initialize()
    trainer = None
    if with_states:
        trainer = mx.gluon.Trainer(net.collect_params(), "adam", kvstore=None)
        with mx.autograd.record():
            loss = net(mx.nd.ones((1, 100))).sum()
        loss.backward()
        trainer.step(1)
    whole = example.checkpoint.save(tmp_path, example.checkpoint.Position(1), net, trainer, {})
    largest = max(path.stat().st_size for path in whole.iterdir())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest * part // 100, before[1]))
    try:
        with pytest.raises(example.checkpoint.WriteError, match="epoch-0002 cannot be written: (?!Traceback)"):
            example.checkpoint.save(tmp_path, example.checkpoint.Position(2), net, trainer, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-0001"]
    assert example.checkpoint.newest(tmp_path)[0].folder == whole
    example.checkpoint.save(tmp_path, example.checkpoint.Position(2), net, trainer, {})
    assert example.checkpoint.newest(tmp_path)[0].position.epoch == 2


def test_a_disk_that_is_full_from_the_beginning(example, tmp_path, capsys):
    """Training ends well, with one line about the journal and one for each checkpoint."""
    with small_disk(tmp_path / "disk", 64) as disk:
        fill(disk)
        assert digits(example, disk, "--max-batches", "1", epochs=2) == 0
        shutil.rmtree(disk / "checkpoints", ignore_errors=True)
    out, err = capsys.readouterr()
    assert ["cannot be written" in line for line in err.splitlines()] == 3 * [True]
    assert sum("top-1" in line for line in out.splitlines()) == 2
