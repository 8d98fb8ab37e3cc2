"""The benchmark of a training step: what it writes, and what it refuses. Never how fast anything is."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from worlds import environment

TOP = Path(__file__).parents[2]
sys.path.insert(0, str(TOP))

from benchmarks import step, step_overlap  # noqa: E402
from benchmarks.step_task import Round, Timed, Told, TracedBucket, TracedStep  # noqa: E402
from hybridps import links  # noqa: E402

needs_mxnet = pytest.mark.skipif(util.find_spec("mxnet") is None, reason="MXNet is not installed")
WITHOUT_STORE = ("compute", "barrier")
CONTENDERS = (*WITHOUT_STORE, "dist_sync", "dist_device_sync", "hybridps_group", "hybridps_servers")
TINY = ["--network", "mobilenet0.25", "--image-size", "32", "--batch-size", "1", "--steps", "2", "--untimed", "3"]


def start(*options: str, seconds: float = 200) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.step", *options]
    return subprocess.run(
        command, cwd=TOP, env=environment(), capture_output=True, text=True, timeout=seconds, check=False
    )


def run(folder: Path, *options: str) -> dict[tuple[str, str], dict[str, Any]]:
    file = folder / "results.json"
    done = start(*TINY, *options, "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    lines = 1 + len(found) + sum(result["overlap"] is not None for result in found)
    assert len(done.stdout.splitlines()) == lines, done.stdout
    return {(result["contender"], result["update"]): result for result in found}


@pytest.mark.mxnet
@needs_mxnet
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("contenders", "updates"),
    [
        ((*WITHOUT_STORE, "dist_sync", "hybridps_servers"), ["server"]),
        pytest.param(CONTENDERS, ["server", "worker"], marks=pytest.mark.nightly),
    ],
)
def test_who_updates(tmp_path: Path, contenders: tuple[str, ...], updates: list[str]) -> None:
    found = run(tmp_path, "--rounds", "1", "--contenders", ",".join(contenders), "--update", ",".join(updates))
    with_store = {(name, by) for name in contenders for by in updates if name not in WITHOUT_STORE}
    assert set(found) == {(name, "worker") for name in WITHOUT_STORE} | with_store
    alone = found["compute", "worker"]["milliseconds"]
    for (name, by), result in found.items():
        assert (result["network"], result["workers"], len(result["rounds"])) == ("mobilenet0.25", 2, 1)
        assert result["milliseconds"] > 0
        if name != "compute":
            assert result["beyond_compute"] == pytest.approx(result["milliseconds"] - alone)
        peer = found["dist_sync", by]["beyond_compute"] if name not in WITHOUT_STORE else 0
        if peer > 0:
            assert result["of_dist_sync"] == pytest.approx(result["beyond_compute"] / peer)


@pytest.mark.nightly
@pytest.mark.mxnet
@needs_mxnet
@pytest.mark.timeout(240)
def test_some_contenders_in_rounds(tmp_path: Path) -> None:
    options = ["--contenders", "hybridps_group,hybridps_servers", "--update", "worker", "--rounds", "2"]
    found = run(tmp_path, *options)
    assert set(found) == {("hybridps_group", "worker"), ("hybridps_servers", "worker")}
    for result in found.values():
        assert len(result["rounds"]) == len(result["disturbance"]) == 2
        assert all(0 <= share <= 1 for share in result["disturbance"])
        assert (result["beyond_compute"], result["of_dist_sync"], result["of_dist_sync_error"]) == (None, None, None)


@pytest.mark.nightly
@pytest.mark.mxnet
@needs_mxnet
@pytest.mark.timeout(240)
def test_links(tmp_path: Path) -> None:
    if reason := links.missing():
        pytest.skip(reason)
    found = run(tmp_path, "--rounds", "1", "--link", "1gbit", "--update", "worker")
    assert set(found) == {(name, "worker") for name in CONTENDERS}
    for (name, _), result in found.items():
        assert result["link_rate"] == 1e9
        assert (result["overlap"] is None) == (not name.startswith("hybridps"))
        # 2 (p - 1) / p of the bytes in a group of 2; those of both workers at the server
        times = {"hybridps_group": 1, "hybridps_servers": 2}.get(name, 0)
        if times:
            wire_seconds = times * result["parameter_bytes"] * 8 / 1e9
            assert result["overlap"]["oracle_communication"] == pytest.approx(1e3 * wire_seconds, rel=0.05)
            assert 0 <= result["overlap"]["hidden"] <= result["overlap"]["communication"]


@pytest.mark.mxnet
@needs_mxnet
@pytest.mark.parametrize("contender", ["compute", pytest.param("hybridps_group", marks=pytest.mark.nightly)])
def test_workers_that_fail_end_it(contender: str) -> None:
    done = start(*TINY, "--network", "resnet51", "--contenders", contender, seconds=100)
    assert done.returncode == 1
    assert f"benchmarks.step: the workers of {contender} ended with status 1" in done.stderr
    assert "resnet51" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--contenders", "dist_async"], "'dist_async' is unknown: use compute, barrier, dist_sync, dist_device_sync"),
        (["--update", "nobody"], "'nobody' is unknown: use server, worker"),
    ],
)
def test_wrong_options(capsys, options: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as ended:
        step.app(options)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def a_round(*spans: tuple[float, float], norm: float = 1.0) -> Round:
    timed = [Timed(began, ended, cpu_seconds=0.01, last_norm=norm, parameter_bytes=8) for began, ended in spans]
    return Round(timed, disturbance=0.0)


def test_medians_and_what_is_beyond_compute_in_the_same_round() -> None:
    told = Told("net", 8, 1, 2, untimed_steps=1, steps=2)
    rounds = {
        ("compute", "worker"): [a_round((0, 0.2), (0.1, 0.3)), a_round((0, 0.2), (0, 0.1))],
        ("dist_sync", "worker"): [a_round((0, 0.8), (0, 0.9)), a_round((1, 2.0), (1, 2.1))],
        ("hybridps_group", "worker"): [a_round((0, 0.35), (0, 0.3)), a_round((0, 0.35), (0, 0.35))],
    }
    results = {result["contender"]: result for result in step.make_results(told, rounds)}
    assert [results[name]["milliseconds"] for name, _ in rounds] == pytest.approx([125, 500, 175])
    assert results["dist_sync"]["beyond_compute"] == pytest.approx(375)
    assert results["hybridps_group"]["of_dist_sync"] == pytest.approx(50 / 375)
    assert results["hybridps_group"]["worker_cpu"] == pytest.approx(5)
    assert (results["compute"]["beyond_compute"], results["compute"]["of_dist_sync"]) == (None, None)


def test_rounds_in_which_the_host_is_slower_count_like_the_others() -> None:
    """In every second round all takes twice as long, but what is beyond compute is the same."""
    way, peer = ("hybridps_group", "worker"), ("dist_sync", "worker")
    alone = [50.0, 100.0] * 10
    rounds = {("compute", "worker"): alone, peer: [each + 40 for each in alone], way: [each + 4 for each in alone]}
    ratio, error = step.of_peer(step.beyond_compute(rounds), way)
    assert (ratio, error) == (pytest.approx(0.1), pytest.approx(0, abs=1e-12))


def test_the_error_of_a_ratio_is_that_of_more_measurements() -> None:
    """Compared with the scatter of the ratio over many measurements of as many rounds."""
    random, way, peer = np.random.default_rng(1), ("hybridps_group", "worker"), ("dist_sync", "worker")
    found = np.array(
        [
            step.of_peer({peer: random.normal(40, 4, 30).tolist(), way: random.normal(8, 4, 30).tolist()}, way)
            for _ in range(100)
        ]
    )
    assert found[:, 1].mean() == pytest.approx(found[:, 0].std(), rel=0.25)


def test_other_weights_are_an_error() -> None:
    rounds = {("dist_sync", "server"): [a_round((0, 1))], ("hybridps_group", "server"): [a_round((0, 1), norm=0.5)]}
    with pytest.raises(RuntimeError, match="trained to different weights"):
        step.check_same(rounds)


def test_overlap() -> None:
    """Buckets of 10 s on the links, complete after 0, 12 and 30 s of backward; the second one was sent late."""
    buckets = [TracedBucket(100, 100, 110, 10), TracedBucket(112, 115, 125, 10), TracedBucket(130, 130, 140, 10)]
    found = step_overlap.overlap([TracedStep(130, buckets)], seconds_of=lambda nbytes: nbytes)
    assert found["communication"] == pytest.approx(30e3)
    assert found["hidden"] == found["could_be_hidden"] == found["oracle_hidden"] == pytest.approx(20e3)
    assert found["hidden_part"] == found["hidden_of_oracle"] == pytest.approx(1)


def test_a_group_waits_for_the_last_worker_that_completes_a_bucket() -> None:
    first = TracedStep(130, [TracedBucket(100, 105, 110, 10), TracedBucket(130, 130, 140, 10)])
    second = TracedStep(131, [TracedBucket(105, 105, 110, 10), TracedBucket(131, 131, 140, 10)])
    together = step_overlap.complete_together([first, second])
    assert [[bucket.ready for bucket in step.buckets] for step in together] == [[105, 131], [105, 131]]
    assert [step.last_gradient for step in together] == [130, 131]


def test_a_worker_hides_nothing_behind_the_backward_of_a_slower_one() -> None:
    """Neither as measured nor by the oracle's schedule: its own backward takes 10 s after the first bucket, not 25."""
    quick = TracedStep(110, [TracedBucket(100, 100, 120, 20), TracedBucket(110, 125, 145, 20)])
    slow = TracedStep(125, [TracedBucket(95, 100, 120, 20), TracedBucket(125, 125, 145, 20)])
    found = step_overlap.overlap(step_overlap.complete_together([quick, slow])[:1], seconds_of=lambda nbytes: nbytes)
    assert found["hidden"] == found["could_be_hidden"] == found["oracle_hidden"] == pytest.approx(10e3)


def test_overlap_of_communication_that_waits_for_the_end_of_backward() -> None:
    buckets = [TracedBucket(100, 125, 135, 10), TracedBucket(112, 135, 145, 10), TracedBucket(130, 145, 155, 10)]
    found = step_overlap.overlap([TracedStep(130, buckets)], seconds_of=lambda nbytes: nbytes)
    assert found["hidden"] == pytest.approx(5e3)
    assert found["could_be_hidden"] == pytest.approx(20e3)
    assert found["hidden_of_oracle"] == found["hidden_part"] == pytest.approx(0.25)


@pytest.mark.parametrize("module", [step, step_overlap], ids=lambda module: module.__name__)
def test_examples(module: ModuleType) -> None:
    failed, tried = doctest.testmod(module)
    assert (failed, tried > 0) == (0, True)
