"""Users' scripts under real mpirun, with real MXNet: the weights, step by step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from worlds import command, environment, mpirun

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(180)]

SCRIPT = str(Path(__file__).with_name("train_steps.py"))
APIS = ["gluon", "gluon-local", "module"]


def weights(folder: Path, api: str, rank: int) -> list[np.ndarray]:
    with np.load(folder / f"{api}-{rank}.npz") as file:
        return [file[name] for name in file.files]


def train(
    folder: Path, ranks: int, store: str, apis: list[str], *more: str, **settings: str
) -> dict[str, list[list[np.ndarray]]]:
    """By API, in whose order one world trains: the weights after each step, of each rank."""
    folder.mkdir()
    extra = {f"HYBRIDPS_{name.upper()}": text for name, text in settings.items()}
    done = mpirun(ranks, ["-m", "hybridps", SCRIPT, store, ",".join(apis), str(folder), *more], extra, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    return {api: [weights(folder, api, rank) for rank in range(ranks)] for api in apis}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The weights of one process with the whole batch and MXNet's own store, for each API."""
    folder = tmp_path_factory.mktemp("alone")
    # A single local device needs no store: Module and Trainer then update by themselves.
    command = [sys.executable, SCRIPT, "local", "gluon-local,module", str(folder)]
    subprocess.run(command, env=environment(), check=True, timeout=100)
    by_itself = {api: weights(folder, api, 0) for api in ("gluon-local", "module")}
    return by_itself | {"gluon": by_itself["gluon-local"]}


def assert_equal_one_process(trained: list[list[np.ndarray]], alone: list[np.ndarray]) -> None:
    for of_rank in trained:
        assert len(of_rank) == len(alone) == 4
        for here, expected in zip(of_rank, alone, strict=True):
            np.testing.assert_allclose(here, expected, rtol=1e-4, atol=1e-6)
        assert of_rank[-1].tobytes() == trained[0][-1].tobytes()


@pytest.mark.parametrize(
    ("ranks", "groups"),
    [
        (1, 1),
        (2, 1),
        pytest.param(3, 1, marks=pytest.mark.nightly),
        pytest.param(4, 1, marks=pytest.mark.nightly),
        pytest.param(2, 2, marks=pytest.mark.nightly),
        (3, 2),
        pytest.param(4, 2, marks=pytest.mark.nightly),
    ],
)
def test_sync_equals_one_process(tmp_path, alone, ranks: int, groups: int) -> None:
    first = ranks % len(APIS)  # each of them is the first of a process once
    apis = APIS[first:] + APIS[:first]
    trained = train(tmp_path / "out", ranks, "dist_hybridps_sync", apis, groups=str(groups))
    for api in APIS:
        assert_equal_one_process(trained[api], alone[api])


def test_elastic_in_two_groups(tmp_path) -> None:
    """Of two workers and of one."""
    apis = ["gluon", "module"]
    elastic = {"groups": "2", "algorithm": "elastic", "tau": "1"}
    several = {"bucket_bytes": "1024", "chunk_bytes": "1024"}
    both = train(tmp_path / "out", 3, "dist_hybridps", apis, **elastic, **several)
    independent = train(tmp_path / "apart", 3, "dist_hybridps", apis, **elastic, alpha="0")
    for api, trained in both.items():
        for step in range(4):
            assert trained[0][step].tobytes() == trained[1][step].tobytes()
        apart = np.abs(trained[0][-1] - trained[2][-1]).max()
        assert 0 < apart < np.abs(independent[api][0][-1] - independent[api][2][-1]).max()


def test_sync_at_mxnet_s_servers_equals_one_process(tmp_path, alone) -> None:
    trained = train(
        tmp_path / "out", 3, "dist_hybridps_sync", ["gluon"], groups="2", backend="mxnet", bucket_bytes="1024",
        chunk_bytes="1024",
    )  # fmt: skip
    assert_equal_one_process(trained["gluon"], alone["gluon"])


@pytest.mark.parametrize("groups", ["1", pytest.param("2", marks=pytest.mark.nightly)])
def test_all_workers_take_over_the_first_one_s_weights(tmp_path, groups: str) -> None:
    """Each worker initialises its network in its own way."""
    both = train(tmp_path / "out", 2, "dist_hybridps_sync", ["gluon", "module"], "1", groups=groups)
    for trained in both.values():
        assert trained[0][0].tobytes() == trained[1][0].tobytes()
        assert trained[0][-1].tobytes() == trained[1][-1].tobytes()


def test_a_store_by_its_name_communicates_with_one_device_per_process(tmp_path) -> None:
    """MXNet drops a store whose name has no `dist` in it when there is one device, and says nothing."""
    both = train(tmp_path / "out", 2, "dist_hybridps", ["gluon", "gluon-local@device"])
    trained, silent = both.values()
    assert trained[0][-1].tobytes() == trained[1][-1].tobytes()
    assert trained[0][-1].tobytes() != silent[0][-1].tobytes()
    assert silent[0][-1].tobytes() != silent[1][-1].tobytes()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        pytest.param(
            {"group_sizes": "3,3"}, "2 workers cannot form groups of 3 + 3 = 6 workers", marks=pytest.mark.nightly
        ),
        pytest.param(
            {"algorithm": "elastik"},
            "algorithm 'elastik' is unknown; did you mean 'elastic'",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            {"grups": "2"},
            "HYBRIDPS_GRUPS is not a setting of hybridps; did you mean 'HYBRIDPS_GROUPS'",
            marks=pytest.mark.nightly,
        ),
        ({"algorithm": "elastic"}, "the script asks for the algorithm 'sync', and HYBRIDPS_ALGORITHM says 'elastic'"),
        ({"groups": "2", "servers": "tcp://127.0.0.1:9", "connect_seconds": "2"}, "tcp://127.0.0.1:9"),
    ],
)
def test_wrong_settings_give_one_message(tmp_path, settings: dict[str, str], said: str) -> None:
    extra = {f"HYBRIDPS_{name.upper()}": text for name, text in settings.items()}
    arguments = ["-m", "hybridps", SCRIPT, "dist_hybridps_sync", "gluon", str(tmp_path)]
    done = mpirun(2, arguments, extra, timeout=30)
    assert done.returncode != 0
    assert said in done.stderr
    assert done.stderr.count("hybridps: error:") == 1, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.nightly
def test_racks_equal_one_process(tmp_path, alone) -> None:
    """Two groups in the first rack and one in the second, started by the launcher: each is an MPI world."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, runpy\n"
        "os.environ |= {'RANK_BASE': os.environ['HYBRIDPS_GROUP_INDEX'], 'WORKERS': '3'}\n"
        f"runpy.run_path({SCRIPT!r}, run_name='__main__')\n"
    )
    run = [sys.executable, "-m", "hybridps", "run", "-n", "3", "--groups", "3", "--racks", "2", "--servers", "1"]
    run += ["--set", "chunk_bytes=1024", "--", "python", str(script), "dist_hybridps_sync", "gluon", str(tmp_path)]
    done = subprocess.run(run, env=environment(), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("parent", "rack 0 server 0", "rack 1 server 0"):
        assert f"[{name}] hybridps: serving at tcp://127.0.0.1:" in done.stdout
    for rank in range(3):
        np.testing.assert_allclose(weights(tmp_path, "gluon", rank)[-1], alone["gluon"][-1], rtol=1e-4, atol=1e-6)


def test_servers_of_the_same_world_announce_themselves(tmp_path, alone) -> None:
    """Two of four ranks are servers; nobody types an address."""
    worker = [sys.executable, "-m", "hybridps", SCRIPT, "dist_hybridps_sync", "gluon", str(tmp_path)]
    server = [sys.executable, "-m", "hybridps", "serve"]
    whole = command(1, server[1:])
    whole = [*whole[: whole.index("-n")], "-n", "2", *server, ":", "-n", "2", *worker]
    extra = {"HYBRIDPS_GROUPS": "2", "RANK_BASE": "-2", "WORKERS": "2", "HYBRIDPS_CHUNK_BYTES": "1024"}
    done = subprocess.run(whole, env=environment(extra), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 workers in 2 groups (1 + 1), 2 servers" in done.stderr
    for rank in range(2):
        np.testing.assert_allclose(weights(tmp_path, "gluon", rank)[-1], alone["gluon"][-1], rtol=1e-4, atol=1e-6)
