"""The ImageNet example: what recipes are made of: optimizers, mixing, averaging, augmentation, forecasts."""

from __future__ import annotations

import importlib
import json
from argparse import Namespace
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from example_runs import EXAMPLE, digits

mx = pytest.importorskip("mxnet")
pytestmark = pytest.mark.mxnet


def dense(example, scales: bool):
    """A layer, and a function that trains it for a step."""
    mx.random.seed(3)
    net = mx.gluon.nn.Dense(3, in_units=2)
    net.initialize(mx.init.Normal(1.0))
    options = Namespace(optimizer="sgd", lr=0.1, wd=1e-4, momentum=0.9, dtype="float32")
    trainer = example.optimizers.make_trainer(options, net, None, True)
    if scales:
        example.optimizers.scale_losses(trainer)

    def step(factor: float = 1.0) -> None:
        with mx.autograd.record():
            losses = [(factor * net(mx.nd.array([[1.0, 2.0]])) ** 2).sum()]
            example.optimizers.backward(losses, trainer)
        trainer.step(1)

    return net, trainer, step


def weights(net) -> np.ndarray:
    return np.concatenate([parameter.data().asnumpy().ravel() for parameter in net.collect_params().values()])


def test_scaled_losses_give_the_same_weights(example):
    """The scale is a power of two, so not even the last bit differs."""
    (plain, _, step), (scaled, _, scaled_step) = dense(example, False), dense(example, True)
    for _ in range(3):
        step()
        scaled_step()
    np.testing.assert_array_equal(weights(plain), weights(scaled))


def test_an_update_that_overflows_is_left_out_and_halves_the_scale(example, tmp_path):
    net, trainer, step = dense(example, True)
    step()
    before = weights(net)
    step(factor=1e38)
    np.testing.assert_array_equal(weights(net), before)
    assert trainer._amp_loss_scaler._next_loss_scale == 2.0**15
    saved = example.checkpoint.save(tmp_path, example.checkpoint.Position(1), net, trainer, {})
    step()
    _, resumed, _ = other = dense(example, True)
    other[0].load_parameters(str(saved / "model.params"))
    example.checkpoint.load_states(example.checkpoint.check(saved), resumed)
    other[2]()
    np.testing.assert_array_equal(weights(other[0]), weights(net))
    assert resumed._amp_loss_scaler.loss_scale == 2.0**15


def test_moving_average(example):
    trained, average = mx.gluon.nn.Dense(2, in_units=3), mx.gluon.nn.Dense(2, in_units=3)
    for net in (trained, average):
        net.initialize(mx.init.Normal(1.0))
    moving = example.averaging.MovingAverage(average, trained, 0.9)
    moving.begin()
    expected = weights(trained)
    for step in range(1, 201):
        for parameter in trained.collect_params().values():
            parameter.set_data(mx.nd.random.normal(shape=parameter.shape))
        moving.update()
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weights(trained)
    np.testing.assert_allclose(weights(average), expected, rtol=1e-4, atol=1e-5)


def test_the_steps_of_a_moving_average_are_kept_where_the_store_updates(example, tmp_path):
    """The optimizer counts nothing there. Checkpoints of earlier versions have no number of steps."""
    device = [mx.cpu()]

    def new():
        net, _, step = dense(example, False)
        return net, step, example.averaging.MovingAverage(dense(example, False)[0], net, 0.9)

    net, step, average = new()
    for _ in range(3):
        step()
        average.update(0)
    assert average.steps == 3
    saved = example.checkpoint.save(tmp_path, example.checkpoint.Position(1), net, None, {}, average)
    resumed = new()[2]
    example.resuming.load_states(example.checkpoint.check(saved), None, resumed, device)
    assert resumed.steps == 3
    np.testing.assert_array_equal(weights(resumed.net), weights(average.net))
    resumed.update(7)
    assert resumed.steps == 7, "another group has handed over its optimizer and average"
    manifest = json.loads((saved / "manifest.json").read_text())
    del manifest["averaged"]
    for updates in (0, 5):
        (saved / "manifest.json").write_text(json.dumps(manifest | {"updates": updates}))
        example.resuming.load_states(example.checkpoint.check(saved), None, resumed, device)
        assert resumed.steps == updates


def test_mixed_precision_is_validated_with_float32_images(example):
    parse = example.options.parser().parse_args
    args, plain = (parse(["--data", "digits", "--network", "digits", "--dtype", kind]) for kind in ("amp", "float32"))
    images, device = example.train.open_data(args), [mx.cpu()]
    nets = {"val": example.train.build(args, images, device)}
    found, expected = (
        example.evaluation.evaluate(each, images, np.arange(70), nets, device, None) for each in (args, plain)
    )
    assert found == expected
    assert found["val_images"] == 70


def test_mixup_is_linear_in_the_labels(example, tmp_path):
    """The loss of a mixed image, by hand."""
    args = example.options.parser().parse_args(["--data", "digits", "--network", "digits", "--kvstore", "none"])
    args.run = tmp_path
    training = example.train.Training(args, None, example.train.open_data(args))
    x = mx.nd.array(np.random.default_rng(0).integers(0, 16, (4, 8, 8, 1)), dtype=np.uint8)
    y = mx.nd.array([1, 2, 3, 4])
    images = training.images.normalise(x, "float32").asnumpy()
    output = training.net(mx.nd.array(0.3 * images + 0.7 * images[::-1])).log_softmax().asnumpy()
    expected = [-0.3 * output[i, 1 + i] - 0.7 * output[i, 4 - i] for i in range(4)]
    np.testing.assert_allclose(training.forward(x, y, 0.3).asnumpy(), expected, rtol=1e-4)
    np.testing.assert_array_equal(
        training.forward(x, y, 1.0).asnumpy(), -np.array([row[1 + i] for i, row in enumerate(plain(training, x))])
    )


def plain(training, x) -> np.ndarray:
    return training.net(training.images.normalise(x, "float32")).log_softmax().asnumpy()


@pytest.mark.parametrize("strength", [-1.0, -0.4, 0.0, 0.9])
def test_operations_of_rand_augment(example, strength):
    image = np.random.default_rng(0).integers(40, 220, size=(30, 44, 3), dtype=np.uint8)
    before = image.copy()
    changed = 0
    for operation in example.augment.OPERATIONS:
        found = operation(image, strength)
        assert (found.shape, found.dtype) == (image.shape, np.uint8)
        changed += not np.array_equal(found, image)
    np.testing.assert_array_equal(image, before)
    assert changed == (2 if strength == 0.0 else 13), "without strength only equalizing and full contrast change it"


def test_augmentation_depends_on_the_seed_alone(example):
    image = np.random.default_rng(0).integers(0, 256, size=(30, 44, 3), dtype=np.uint8)
    transform = example.transforms.in_turn(*example.augment.augmentation((2, 9), 0.5))
    one, same, other = (transform(image, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_cutout_is_a_square_within_the_image(example):
    image, cut = np.zeros((40, 40, 3), np.uint8), example.augment.cutout(0.5)
    areas = [(cut(image, np.random.default_rng(seed))[..., 0] > 0).sum() for seed in range(200)]
    assert max(areas) == 400
    assert min(areas) >= 100


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--rand-augment 2", "'2': expected a number of operations and a magnitude of 0 to 10"),
        ("--rand-augment 2,11", "'2,11': expected"),
        ("--ema 1", "--ema 1.0: expected a number below 1"),
        ("--dtype amp", "--dtype amp: MXNet has no float16 on the CPU"),
        ("--cutout 0.5", "--data digits: --rand-augment and --cutout are for photographs"),
        ("--dry-run --machine nowhere", "--dry-run: the oracle cannot answer"),
    ],
)
def test_bad_options(example, tmp_path, option, message, capsys):
    with suppress(SystemExit):  # of options that are no options
        assert digits(example, tmp_path, *option.split()) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "train-0.jsonl").exists()


def test_dry_run(example, tmp_path, capsys):
    assert digits(example, tmp_path, "--dry-run", "4", epochs=10) == 0
    said = capsys.readouterr().out
    assert "images: 1,438 for training, 359 for validation" in said
    assert "steps: 11 in an epoch with 4 workers and batches of 32; 110 in 10 epochs" in said
    forecast = [line.split() for line in said.splitlines() if "group" in line and "oracle" not in line]
    assert [row[0] for row in forecast] == 3 * ["2"] + 3 * ["4"] + 3 * ["8"]
    assert list(tmp_path.iterdir()) == []


def test_dry_run_measures_nothing_for_a_machine_that_is_not_there(example, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(example.train, "Training", None)
    assert digits(example, tmp_path, "--dry-run", "4", "--machine", tmp_path / "cluster.json") == 2
    assert f"there is no file {tmp_path / 'cluster.json'}" in capsys.readouterr().err


def test_the_epochs_of_a_dry_run_have_whole_steps(example, tmp_path, monkeypatch, capsys):
    """Of 100 s each: 2.8 steps are 2, and 1.4 are 1. Twelve workers have no full batch each."""
    forecast = importlib.import_module("forecast")
    monkeypatch.setattr(forecast, "measure", lambda training: forecast.Measured(100.0, 1.0, 1, 1))
    assert digits(example, tmp_path, "--dry-run", "6", "--batch-size", "170", epochs=1) == 0
    said = capsys.readouterr().out
    rows = [line.split() for line in said.splitlines() if "one group" in line or "fewer images" in line]
    assert [row[:5] for row in rows] == [
        ["3", "one", "group", "3.3", "min"],
        ["6", "one", "group", "1.7", "min"],
        ["12", "fewer", "images", "than", "a"],
    ]
    assert "steps: 1 in an epoch with 6 workers and batches of 170" in said


def test_a_dry_run_of_a_recipe_resumes_nothing(example, capsys):
    pytest.importorskip("sklearn")
    words = "--data digits --network digits --dtype float32 --batch-size 16 --dry-run 2"
    assert example.train.main([f"@{EXAMPLE / 'recipes' / 'resnet50-90-epochs.txt'}", *words.split()]) == 0
    assert "90 epochs" in capsys.readouterr().out


@pytest.mark.parametrize("path", sorted((EXAMPLE / "recipes").glob("*.txt")), ids=lambda path: path.stem)
def test_recipes_are_options(example, path: Path):
    args = example.options.parser().parse_args([f"@{path}", "--data", "somewhere", "--lr", "7"])
    example.options.check(args)
    assert (args.data, args.lr, args.resume, args.optimizer) == ("somewhere", 7.0, "auto", "sgd")
    assert str(args.epochs) in path.stem


def test_help_names_every_kind_of_option(example):
    said = example.options.parser().format_help()
    assert [group for group in ("data:", "training:", "optimizer:", "run:") if f"\n{group}\n" not in said] == []
