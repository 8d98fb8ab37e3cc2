"""Groups that train in step: one that is killed comes back alone, with what another one hands over to it."""

from __future__ import annotations

import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from worlds import environment

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(150)]

SCRIPT = Path(__file__).parent / "hands_over.py"
OTHER_KINDS = Path(__file__).parent / "hands_over_kinds.py"
SECONDS = 140
WEIGHTS = re.compile(r"worker (\d+) in life (\d+): epoch (\d+) ([0-9a-f]+)")


def launch(script: Path, *words: object, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hybridps.cli", "run", "--groups", "2", "--restarts", "2", *options, "--"]
    command += ["python", str(script), *map(str, words)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=SECONDS)


def weights_in(text: str) -> dict[tuple[int, int, int], np.ndarray]:
    """The weights by worker, life and epoch."""
    return {
        (int(worker), int(life), int(epoch)): np.frombuffer(bytes.fromhex(numbers), "f4")
        for worker, life, epoch, numbers in WEIGHTS.findall(text)
    }


@pytest.mark.parametrize(
    ("updates", "victim", "optimizer", "workers", "options"),
    [
        ("workers", 1, "adam", 2, ("-s", "2", "--algorithm", "sync")),
        ("servers", 0, "sgd", 2, ()),
        ("checkpoint", 1, "nag", 2, ()),
        pytest.param("workers", 0, "adam", 4, ("-s", "2", "--algorithm", "sync"), marks=pytest.mark.nightly),
        pytest.param("workers", 1, "sgd", 2, (), marks=pytest.mark.nightly),
        pytest.param("servers", 1, "adam", 4, ("-s", "2"), marks=pytest.mark.nightly),
        pytest.param("servers", 0, "nag", 2, ("-s", "3"), marks=pytest.mark.nightly),
    ],
)
def test_a_killed_group_rejoins_alone_with_the_numbers_of_one_process(
    tmp_path: Path, updates: str, victim: int, optimizer: str, workers: int, options: tuple[str, ...]
) -> None:
    from hands_over import alone  # it needs MXNet

    done = launch(SCRIPT, tmp_path, updates, victim, optimizer, options=("-n", str(workers), *options))
    assert done.returncode == 0, done.stderr
    assert f"group {victim} ended with exit status 137" in done.stderr
    assert "all groups are started again" not in done.stderr
    assert "restarts=" not in done.stdout
    found = weights_in(done.stdout)
    victims = [worker for worker in range(workers) if worker // (workers // 2) == victim]
    back = min(epoch for worker, life, epoch in found if life)
    assert 3 <= back < 7, "it came in at a later epoch, and trained to the end"
    reference = list(alone(workers, victims, back, optimizer))
    for (worker, life, epoch), weights in found.items():
        np.testing.assert_allclose(weights, reference[epoch], rtol=2e-4, atol=2e-5)
        if epoch >= back:
            other = next(each for (of, _, at), each in found.items() if at == epoch and of != worker)
            np.testing.assert_array_equal(weights, other, f"worker {worker} in life {life}, epoch {epoch}")
    assert {epoch for worker, _, epoch in found if worker in victims} == {0, *range(back, 7)}
    assert f"this group trains from epoch {back} on, with the weights of group {1 - victim}" in done.stderr


@pytest.mark.parametrize(("kind", "workers"), [("amp", 2), ("numbers", 3), ("rows", 2)])
def test_a_killed_group_gets_the_states_of_all_devices_the_loss_scale_and_rows(
    tmp_path: Path, kind: str, workers: int
) -> None:
    done = launch(OTHER_KINDS, tmp_path, kind, options=("-n", str(workers)))
    assert done.returncode == 0, done.stderr
    assert "all groups are started again" not in done.stderr
    found = dict(re.findall(r"worker (\d in life \d: epoch \d) (\w+ \d+ \S+)", done.stdout))
    back = min(int(each[-1]) for each in found if "life 1" in each)
    assert 3 <= back < 7
    for epoch in range(back, 7):
        same = {state for at, state in found.items() if at.endswith(f"epoch {epoch}")}
        assert len(same) == 1, f"epoch {epoch}"
        assert f"1 in life 1: epoch {epoch}" in found


@pytest.mark.parametrize(
    ("reached", "begin", "total", "expected"),
    [
        ("2.5", 0, 4, [2, 3]),
        ("2.5", 3, 4, [3]),
        ("4.0", 0, 4, [3]),
        ("4.0", 3, 4, [3]),
        ("4.0", 4, 4, []),
        ("0", 0, 2, [0, 1]),
    ],
)
def test_groups_that_do_not_meet_begin_where_the_job_is_and_train_at_least_the_last_epoch(
    monkeypatch: pytest.MonkeyPatch, reached: str, begin: int, total: int, expected: list[int]
) -> None:
    from hybridps.kvstore.hand_over import epochs

    monkeypatch.setenv("HYBRIDPS_LIFE", "1")
    monkeypatch.setenv("HYBRIDPS_RESUME_EPOCH", reached)
    alone = Namespace(meets_others=False)
    assert list(epochs(None, alone, None, range(begin, total), [])) == expected


@pytest.mark.parametrize("width", [2, 0])
def test_what_is_handed_over_fits_mxnet_s_numpy_interface(width: int) -> None:
    """Also weights whose shapes are not known yet (0)."""
    import mxnet as mx
    from mxnet import gluon

    from hybridps.kvstore.hand_over import pack, unpack

    def make() -> tuple[gluon.Block, gluon.Trainer]:
        network = gluon.nn.Dense(3, in_units=width)
        network.initialize(mx.init.Xavier())
        return network, gluon.Trainer(network.collect_params(), "adam", kvstore=None)

    mx.npx.set_np()
    try:
        images = mx.np.ones((4, 2))
        (network, gives), (other, takes) = make(), make()
        expected = network(images)
        assert unpack(pack([gives], 3, 20), [takes]) == (3, 20)
        found = other(images)
        assert type(other.weight.data()) is mx.np.ndarray
        np.testing.assert_array_equal(found.asnumpy(), expected.asnumpy())
    finally:
        mx.npx.reset_np()
