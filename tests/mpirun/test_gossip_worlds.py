"""Groups that gossip as processes: in one MPI world, in worlds of their own, and with a partner that is gone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pytest
from worlds import command, environment, mpirun

pytestmark = pytest.mark.timeout(120)

SCRIPT = str(Path(__file__).with_name("gossiping_ranks.py"))
SECONDS = 90
EVERY_STEP = {"HYBRIDPS_TRIGGER": "every:1", "HYBRIDPS_LOST_SECONDS": "2"}


def said(folder: Path) -> list[dict]:
    """What each rank has said, by group and rank."""
    files = sorted(folder.glob("said-*.json"))
    return [json.loads(file.read_text()) for file in files]


def check(ranks: list[dict], groups: int, workers: int) -> list[dict]:
    """Ranks of a group are equal, and nothing was served; the leaders."""
    assert len(ranks) == workers
    leaders = [rank for rank in ranks if rank["rank"] == 0]
    assert [leader["group"] for leader in leaders] == list(range(groups))
    for rank in ranks:
        assert rank["digest"] == leaders[rank["group"]]["digest"]
        assert rank["sent"] == leaders[rank["group"]]["sent"] > 0
        assert rank["servers"] == 0
        assert rank["initial"] == [0.0]
    return leaders


def check_average(leaders: list[dict]) -> None:
    """All have come together, and what the algorithm conserves is as it was."""
    began, ended = (np.array([leader[when] for leader in leaders]) for when in ("began", "ended"))
    if leaders[0]["share"] is None:
        shares = np.full(len(leaders), 1 / len(leaders))
    else:
        shares = np.array([leader["share"] for leader in leaders])
        assert shares.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(shares @ ended, began.mean(0), atol=1e-9)
    assert np.ptp(ended, axis=0).max() < 0.05 * np.ptp(began, axis=0).max()


@pytest.mark.parametrize(
    ("name", "sizes", "more"),
    [
        pytest.param("gossip", (1, 1), {}, marks=pytest.mark.nightly),
        ("gossip", (2, 1), {"HYBRIDPS_TOPOLOGY": "ring"}),
        pytest.param("gossip", (1, 1, 1), {"HYBRIDPS_PARTNERS": "fast"}, marks=pytest.mark.nightly),
        ("gosgd", (1, 1, 1), {}),
        ("sgp", (1, 1, 1), {"HYBRIDPS_TOPOLOGY": "complete"}),
        pytest.param("gosgd", (2, 1, 1), {}, marks=pytest.mark.nightly),
        pytest.param("gossip", (2, 2), {"HYBRIDPS_TOPOLOGY": "ring"}, marks=pytest.mark.nightly),
        pytest.param("sgp", (2, 1, 1), {"HYBRIDPS_TOPOLOGY": "complete"}, marks=pytest.mark.nightly),
        pytest.param("sgp", (1, 1, 1, 1), {}, marks=pytest.mark.nightly),
        pytest.param("sgp", (2, 2, 2), {"HYBRIDPS_TOPOLOGY": "complete"}, marks=pytest.mark.nightly),
    ],
)
def test_groups_of_one_world(tmp_path: Path, name: str, sizes: tuple[int, ...], more: Mapping[str, str]) -> None:
    settings = {"HYBRIDPS_ALGORITHM": name, "HYBRIDPS_GROUP_SIZES": ",".join(map(str, sizes)), **EVERY_STEP, **more}
    done = mpirun(sum(sizes), ["-m", "mpi4py", SCRIPT, name, "150", "together", str(tmp_path)], settings, SECONDS)
    assert done.returncode == 0, done.stderr
    check_average(check(said(tmp_path), len(sizes), sum(sizes)))


def command_of(folder: Path, name: str, what: str, *options: str, steps: int = 150) -> list[str]:
    run = [sys.executable, "-m", "hybridps.cli", "run", "--algorithm", name, *options]
    return [*run, "--set", "lost_seconds=2", "--", "python", SCRIPT, name, str(steps), what, str(folder)]


@pytest.mark.parametrize(
    ("name", "workers", "groups"),
    [
        ("gossip", 3, 2),
        pytest.param("gosgd", 3, 3, marks=pytest.mark.nightly),
        pytest.param("sgp", 2, 2, marks=pytest.mark.nightly),
    ],
)
def test_groups_that_are_worlds_of_their_own(tmp_path: Path, name: str, workers: int, groups: int) -> None:
    options = ("-n", str(workers), "--groups", str(groups), "--set", "trigger=every:1", "--run", str(tmp_path / "run"))
    started = command_of(tmp_path, name, "together", *options)
    done = subprocess.run(started, env=environment(), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert "server" not in done.stdout.replace("servers: 0", "")
    check_average(check(said(tmp_path), groups, workers))


def test_servers_in_the_world_are_left_alone(tmp_path: Path) -> None:
    """The third way of starting: `mpirun -n 1 hybridps serve : -n 2 python train.py`."""
    serve = command(1, ["-m", "hybridps.cli", "serve"])
    train = [":", "-n", "2", sys.executable, "-m", "mpi4py", SCRIPT, "gossip", "100", "together", str(tmp_path)]
    settings = environment({"HYBRIDPS_ALGORITHM": "gossip", "HYBRIDPS_GROUPS": "2", **EVERY_STEP})
    done = subprocess.run([*serve, *train], env=settings, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert [leader["servers"] for leader in said(tmp_path)] == [1, 1]
    check_average(said(tmp_path))


def outside_addresses(count: int) -> list[str]:
    """Free addresses at which other hosts reach this one."""
    hosts = [
        each.address
        for addresses in psutil.net_if_addrs().values()
        for each in addresses
        if each.family == socket.AF_INET and not each.address.startswith("127.")
    ]
    if not hosts:
        pytest.skip("this host has no address but the loopback's")
    with ExitStack() as stack:
        listening = [stack.enter_context(socket.create_server((hosts[0], 0))) for _ in range(count)]
        return [f"tcp://{hosts[0]}:{each.getsockname()[1]}" for each in listening]


def test_groups_on_the_network_get_keys(tmp_path: Path) -> None:
    peers = ",".join(outside_addresses(2))
    started = command_of(
        tmp_path, "gossip", "together", "-n", "2", "--set", "trigger=every:1", "--set", f"peers={peers}"
    )
    done = subprocess.run(started, env=environment(), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    check_average(check(said(tmp_path), 2, 2))


@pytest.mark.parametrize(
    ("what", "name"),
    [
        pytest.param("kill", "gossip", marks=pytest.mark.nightly),
        ("freeze", "gosgd"),
        pytest.param("kill", "gosgd", marks=pytest.mark.nightly),
        pytest.param("freeze", "gossip", marks=pytest.mark.nightly),
    ],
)
def test_a_partner_that_is_gone_holds_nobody_up(tmp_path: Path, name: str, what: str) -> None:
    options = ("-n", "3", "--groups", "3", "--set", "trigger=every:1")
    started = command_of(tmp_path, name, what, *options, steps=100)
    process = subprocess.Popen(started, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        end = time.monotonic() + SECONDS
        while len(said(tmp_path)) < 2 and process.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        assert len(said(tmp_path)) == 2
    finally:
        if what == "freeze":
            os.kill(int((tmp_path / "gone").read_text()), signal.SIGKILL)
        out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode != 0
    assert "group 1 ended with" in out
    leaders = said(tmp_path)
    assert [leader["group"] for leader in leaders] == [0, 2]
    assert all(1 in leader["silent"] for leader in leaders)
    ended = np.array([leader["ended"] for leader in leaders])
    assert np.isfinite(ended).all()
    if name == "gossip":  # how far pushes mix depends on the pace of those that are left
        assert np.ptp(ended, axis=0).max() < 0.1
        assert leaders[0]["share"] is None
    else:
        assert 0 < sum(leader["share"] for leader in leaders) <= 1 + 1e-9


@pytest.mark.parametrize("name", ["gossip", pytest.param("gosgd", marks=pytest.mark.nightly)])
def test_a_partner_of_the_same_world_that_freezes_and_goes_on(tmp_path: Path, name: str) -> None:
    """The others finish meanwhile, and it finishes alone."""
    started = command(3, ["-m", "mpi4py", SCRIPT, name, "100", "freeze", str(tmp_path)])
    settings = environment({"HYBRIDPS_ALGORITHM": name, "HYBRIDPS_GROUPS": "3", **EVERY_STEP})
    process = subprocess.Popen(started, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        end = time.monotonic() + SECONDS
        while len(said(tmp_path)) < 2 and process.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        before = said(tmp_path)
    finally:
        os.kill(int((tmp_path / "gone").read_text()), signal.SIGCONT)
        out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out
    assert [leader["group"] for leader in before] == [0, 2]
    leaders = said(tmp_path)
    assert [leader["group"] for leader in leaders] == [0, 1, 2]
    assert np.isfinite([leader["ended"] for leader in leaders]).all()


def test_a_group_that_comes_late_takes_the_weights_of_the_others(tmp_path: Path) -> None:
    options = ("-n", "2", "--groups", "2", "--set", "trigger=every:1")
    started = command_of(tmp_path, "gossip", "late", *options)
    done = subprocess.run(started, env=environment(), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    leaders = said(tmp_path)
    assert [leader["late"] for leader in leaders] == [False, True]
    assert leaders[1]["began"] != leaders[0]["began"]
    np.testing.assert_array_equal(leaders[1]["ended"], leaders[0]["began"])
    np.testing.assert_array_equal(leaders[0]["ended"], leaders[0]["began"])


def test_layouts_are_compared_between_worlds(tmp_path: Path) -> None:
    script = tmp_path / "differs.py"
    script.write_text(
        "from hybridps.job import open_job\n"
        "from hybridps.memory import Arena, Layout\n"
        "from hybridps.tensor_collectives import Tensor\n"
        "with open_job() as job:\n"
        "    algorithm = job.algorithm()\n"
        "    layout = Layout.of('float32', {'w': (8 + job.session.place.group,)})\n"
        "    algorithm.initialise('model', layout, Tensor([Arena(layout).flat]))\n"
        "    algorithm.barrier()\n"
    )
    run = [sys.executable, "-m", "hybridps.cli", "run", "--algorithm", "gossip", "-n", "2", "--groups", "2"]
    done = subprocess.run(
        [*run, "--", "python", str(script)], env=environment(), capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode != 0
    assert "group 1 registers another layout of table" in done.stderr
    assert "key 'w' has the shape (9,) instead of (8,)" in done.stderr


def test_what_needs_a_server_is_refused_in_a_job_without_one() -> None:
    script = (
        "from hybridps.job import open_job\n"
        "from hybridps.errors import ConfigError\n"
        "with open_job() as job:\n"
        "    try: job.algorithm('sync')\n"
        "    except ConfigError as error: print(error)\n"
    )
    settings = {"HYBRIDPS_ALGORITHM": "gossip"}
    done = mpirun(2, ["-m", "mpi4py", "-c", script], settings, SECONDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("HYBRIDPS_ALGORITHM says 'gossip': drop one of the two") == 2


def test_worlds_of_their_own_without_addresses_are_refused() -> None:
    script = "from hybridps.job import open_job\nwith open_job() as job: job.algorithm()"
    settings = {"HYBRIDPS_ALGORITHM": "gossip", "HYBRIDPS_GROUP_SIZES": "1,1", "HYBRIDPS_GROUP_INDEX": "0"}
    done = mpirun(1, ["-m", "mpi4py", "-c", script], settings, SECONDS)
    assert done.returncode == 2
    assert "HYBRIDPS_PEERS has 0 addresses, and the 2 groups gossip in MPI worlds of their own" in done.stderr
