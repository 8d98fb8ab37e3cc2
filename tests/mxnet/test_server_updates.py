"""Weights that the servers update: the same as under MXNet's `local`, and what is different in asynchronous SGD."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from in_thread import in_thread
from rightness import assert_right
from worlds import environment, mpirun

from hybridps.config import Settings
from hybridps.errors import HybridPSError
from hybridps.memory import Layout
from hybridps.ps.client import Client
from hybridps.ps.rules import SGD, Foreign
from hybridps.ps.server import Server

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(170)]

UPDATES = str(Path(__file__).with_name("updates.py"))
SMALL = {"HYBRIDPS_CHUNK_BYTES": "1024", "HYBRIDPS_BUCKET_BYTES": "2048", "HYBRIDPS_DEADLINE_SECONDS": "40"}
SYNCHRONOUS = ["pushed", "trained", "set_anew", "resumed"]
OWN = ["random_numbers", "updaters"]
"""What workers update by themselves: an optimizer that draws random numbers, and functions."""

ASYNCHRONOUS = ["asynchronous", "asynchronous", "schedules_from_the_middle", "states_that_do_not_fit", "refused"]


def ours(ranks: int, programs: list[str], folder: Path, **settings: str):
    extra = SMALL | {f"HYBRIDPS_{name.upper()}": text for name, text in settings.items()} | {"WORKERS": str(ranks)}
    return mpirun(ranks, ["-m", "hybridps", UPDATES, str(folder), *programs], extra, timeout=150)


def of_local(workers: int, folder: Path, programs: list[str]) -> None:
    environ = environment({"STORE": "local", "WORKERS": str(workers)})
    subprocess.run([sys.executable, UPDATES, str(folder), *programs], env=environ, check=True, timeout=100)


@pytest.mark.parametrize(
    ("ranks", "groups", "servers"),
    [
        pytest.param(2, 2, 0, marks=pytest.mark.nightly),
        (2, 2, 2),
        pytest.param(1, 1, 1, marks=pytest.mark.nightly),
        pytest.param(3, 3, 0, marks=pytest.mark.nightly),
        pytest.param(4, 2, 2, marks=pytest.mark.nightly),
        pytest.param(2, 1, 0, marks=pytest.mark.nightly),
    ],
)
def test_equals_local(ranks: int, groups: int, servers: int, tmp_path: Path) -> None:
    """0 servers: an embedded one, or the group updates by itself."""
    with ExitStack() as running:
        there = [running.enter_context(in_thread(Server())) for _ in range(servers)]
        addresses = ",".join(server.address for server in there)
        done = ours(ranks, [*SYNCHRONOUS, *OWN], tmp_path, groups=str(groups), servers=addresses)
    assert_right(done, [*SYNCHRONOUS, *OWN], ranks)
    of_local(ranks, tmp_path, SYNCHRONOUS)
    assert len(list(tmp_path.glob("*-local-0.npz"))) == 19
    check_as_local(ranks, tmp_path)


@pytest.mark.parametrize(
    "ranks", [pytest.param(1, marks=pytest.mark.nightly), 2, pytest.param(3, marks=pytest.mark.nightly)]
)
def test_a_group_that_updates_does_all_that_the_local_store_does(ranks: int, tmp_path: Path) -> None:
    done = ours(ranks, ["all_that_workers_may"], tmp_path, groups="1")
    assert_right(done, ["all_that_workers_may"], ranks)
    of_local(ranks, tmp_path, ["all_that_workers_may"])
    assert len(list(tmp_path.glob("*-local-0.npz"))) == 3
    check_as_local(ranks, tmp_path)


def check_as_local(ranks: int, folder: Path) -> None:
    """All workers have what the local store has."""
    for path in folder.glob("*-local-0.npz"):
        right = np.load(path)
        for rank in range(ranks):
            found = np.load(str(path).replace("-local-0", f"-dist_hybridps_sync-{rank}"))
            for key in right.files:
                scale = np.abs(right[key]).max()
                np.testing.assert_allclose(
                    found[key], right[key], rtol=0, atol=2e-5 * scale, err_msg=f"{path.name}, key {key}"
                )


def test_every_optimizer_of_mxnet_runs_in_servers(tmp_path: Path) -> None:
    """With weights of float32 and float16, keys larger than a chunk, and states that are saved and loaded."""
    program = str(Path(__file__).with_name("all_optimizers.py"))
    with in_thread(Server()) as first, in_thread(Server()) as second:
        extra = SMALL | {"HYBRIDPS_SERVERS": f"{first.address},{second.address}"}
        done = mpirun(1, ["-m", "hybridps", program, str(tmp_path)], extra, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all optimizers are right" in done.stdout


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (Foreign(framework="numpy", optimizer="sgd"), "no framework 'numpy'"),
        (Foreign(framework="mxnet", optimizer="nothing"), "MXNet has no optimizer 'nothing'"),
        (Foreign(framework="mxnet", optimizer="sgd", settings='{"path": "x"}'), "it has no path"),
        (Foreign(framework="mxnet", optimizer="sgd", settings='{"momentum": [1]}'), "cannot use the optimizer"),
        (Foreign(framework="mxnet", optimizer="sgd", settings="{"), "cannot use the optimizer"),
        (Foreign(framework="mxnet", optimizer="rmsprop", settings='{"gamma1": "x"}', states=1), "the server failed"),
        (Foreign(framework="mxnet", optimizer="adam", states=1), "it keeps 2 states, and not 1"),
        (Foreign(framework="mxnet", optimizer="groupadagrad", states=1), "cannot use the optimizer"),
    ],
)
def test_what_a_server_cannot_run_is_refused(rule: Foreign, said: str) -> None:
    layout = Layout.of("float32", {"w": (8,)})
    values, options = np.ones(layout.length, np.float32), {"job": "job", "group": 0, "groups": 1}
    with in_thread(Server()) as server, Client([server.address], **options, settings=Settings()) as store:
        with pytest.raises(HybridPSError, match=said):  # noqa: PT012
            store.register("w", layout, values, rule)
            store.exchange("w", values, values, 0, layout.length).wait()
        store.register("other", layout, None, SGD(rate=1.0))  # the server goes on


@pytest.mark.parametrize(
    ("shapes", "said"),
    [({"w": (1 << 27,)}, "key 'w' has 536870912 bytes"), ({"w": (3,), "v": (3,)}, "needs tables of one key")],
)
def test_whole_keys_that_cannot_be_are_refused(shapes: dict[str, tuple[int, ...]], said: str) -> None:
    rule = Foreign(framework="mxnet", optimizer="lamb", states=2, whole_keys=True)
    options = {"job": "job", "group": 0, "groups": 1, "settings": Settings()}
    with in_thread(Server()) as server, Client([server.address], **options) as store:
        with pytest.raises(HybridPSError, match=said):
            store.register("w", Layout.of("float32", shapes), None, rule)
        store.register("other", Layout.of("float32", {"w": (8,)}), None, SGD(rate=1.0))


@pytest.mark.parametrize(
    ("ranks", "staleness"),
    [
        pytest.param(1, "", marks=pytest.mark.nightly),
        (2, ""),
        pytest.param(3, "0", marks=pytest.mark.nightly),
        pytest.param(3, "2", marks=pytest.mark.nightly),
    ],
)
def test_asynchronous(ranks: int, staleness: str, tmp_path: Path) -> None:
    programs = ASYNCHRONOUS if ranks == 2 else ASYNCHRONOUS[:2]
    done = ours(ranks, programs, tmp_path, staleness=staleness)
    assert_right(done, programs, ranks)


def test_asynchronous_pulls_in_a_group(tmp_path: Path) -> None:
    """A group of two, one of which pulls, and one of one."""
    done = ours(3, ["pulls_of_one"], tmp_path, groups="2", deadline_seconds="15")
    assert_right(done, ["pulls_of_one"], 3)


def test_asynchronous_states(tmp_path: Path) -> None:
    with in_thread(Server()) as server:
        done = ours(1, ["adam_goes_on"], tmp_path, servers=server.address)
    assert_right(done, ["adam_goes_on"], 1)


def test_racks_leave_the_update_to_the_workers(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "hybridps", "run", "-n", "2", "--groups", "2", "--racks", "2", "--"]
    environ = environment({"WORKERS": "2", "STORE": "dist_hybridps_sync"})
    done = subprocess.run(
        [*run, "python", UPDATES, str(tmp_path), "by_hand"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert_right(done, ["by_hand"], 2)


@pytest.mark.nightly
def test_asynchronous_with_groups_of_two(tmp_path: Path) -> None:
    """A group's mean gradient counts as one: that of equal gradients is each of them."""
    done = ours(4, ["refused", "equal_gradients"], tmp_path, groups="2", algorithm="async")
    assert_right(done, ["refused", "equal_gradients"], 4)


def test_groups_that_do_not_update_alike_end_with_an_error(tmp_path: Path) -> None:
    done = ours(2, ["different_rates"], tmp_path, groups="2")
    assert done.returncode != 0
    assert "groups 0 and 1 do not update" in done.stderr, done.stderr
    assert "rate=1.1" in done.stderr


@pytest.mark.parametrize("groups", ["1", pytest.param("2", marks=pytest.mark.nightly)])
def test_an_optimizer_that_one_worker_sets_is_an_error(groups: str, tmp_path: Path) -> None:
    done = ours(2, ["optimizer_of_one"], tmp_path, groups=groups, deadline_seconds="10")
    assert done.returncode != 0
    assert ("the optimizer SGD" if groups == "1" else "group") in done.stderr, done.stderr
