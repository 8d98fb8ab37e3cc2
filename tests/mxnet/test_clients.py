"""Scripts as users of MXNet have them give the same results with our stores as with MXNet's own."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from own_servers import dist_sync
from worlds import environment, mpirun

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(170)]

CLIENTS = Path(__file__).parents[1] / "clients"
SEVERAL = str(CLIENTS / "several.py")
ROUNDING = 2e-5
"""Of the largest weight of an array, after all steps. Seen: 6e-6, with Adam at the servers; 1e-6 elsewhere."""
QUICK = [
    "images.py",
    "images.py --devices 2",
    "images.py --optimizer lbsgd",
    "bucketing_lstm.py",
    "sparse_linear.py",
    "sparse_linear.py --optimizer adagrad",
    "matrix_factorisation.py",
    "gan.py",
    "gan.py --stores 2",
    "gan.py --stores 2 --on-store 0",
    "fine_tuning.py",
    "fine_tuning.py --on-store 0 --freeze-again 1",
    "language_model.py",
    "estimated.py",
    "by_hand.py",
    "by_hand.py --optimizer 1",
    "feed_forward.py",
    "resumed.py",
    "resumed.py --on-store 0",
    "two_tasks.py",
    "mixed_precision.py",  # the last: it changes MXNet in its process
]
OPTIMIZERS = "adadelta adagrad adam adamax dcasgd ftml ftrl lamb lars nadam nag rmsprop signum"
"""Of MXNet, but for SGLD, which draws random numbers, and those that need matrices or do nothing."""
SMALL = {"HYBRIDPS_CHUNK_BYTES": "1024", "HYBRIDPS_BUCKET_BYTES": "2048", "HYBRIDPS_DEADLINE_SECONDS": "60"}
STORES = "all stores of a process keep their keys at the same servers, and the second one waits for ever"
NOT_DIST_SYNC = {
    "gan.py --stores 2": STORES,
    "gan.py --stores 2 --on-store 0": STORES,
    "resumed.py": STORES,
    "resumed.py --on-store 0": STORES,
    "two_tasks.py": STORES,
    "matrix_factorisation.py": "a server mixes up the rows of two sparse keys and ends, and the workers wait for ever",
    "estimated.py": "its checkpoints have the optimizer's states, which are not saved in distributed training",
    "fine_tuning.py": "the servers are not told the lr_mult of Gluon's parameters",
}
"""Clients that MXNet's own servers cannot run, or run with other results than its local store, and why."""


def as_locally(client: str) -> str:
    """The client for one process, with the batches of all workers."""
    return client.replace("mixed_precision.py", "mixed_precision.py --devices 2")  # halves round as on two workers


def lines(clients: Iterable[str], store: str, folder: Path) -> list[str]:
    """Command lines of clients; the results of each begin with its number."""
    return [
        f"{file} {store} {folder / str(number)} {options}"
        for number, (file, _, options) in enumerate(client.partition(" ") for client in clients)
    ]


def run_locally(clients: Iterable[str], folder: Path) -> None:
    """Run clients in one process, with MXNet's own store."""
    subprocess.run(
        [sys.executable, SEVERAL, *lines(map(as_locally, clients), "local", folder)],
        env=environment(),
        check=True,
        timeout=150,
    )


def run_ours(clients: Iterable[str], folder: Path, groups: int) -> None:
    """Run clients on two workers of `dist_hybridps_sync`."""
    arguments = ["-m", "hybridps", SEVERAL, *lines(clients, "dist_hybridps_sync", folder)]
    done = mpirun(2, arguments, SMALL | {"HYBRIDPS_GROUPS": str(groups)}, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr


def check_results(folder: Path, wanted: Path, number: int) -> None:
    """Both workers have the same results, and these are the wanted ones to float32 rounding."""
    first, second, expected = (results(*of) for of in ((folder, number, 0), (folder, number, 1), (wanted, number, 0)))
    assert len(first) == len(second) == len(expected) > 0
    for mine, other, want in zip(first, second, expected, strict=True):
        np.testing.assert_array_equal(mine, other)
        assert np.isfinite(want).all()
        np.testing.assert_allclose(mine, want, rtol=0, atol=ROUNDING * np.abs(want).max())


def results(folder: Path, number: int, rank: int) -> list[np.ndarray]:
    with np.load(folder / f"{number}.{rank}.npz") as file:
        return [file[name] for name in file.files]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of MXNet's own store in one process."""
    folder = tmp_path_factory.mktemp("local")
    run_locally(QUICK, folder)
    return folder


@pytest.fixture(scope="module", params=[pytest.param("one group", marks=pytest.mark.nightly), "two groups"])
def ours(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of our store on two workers."""
    folder = tmp_path_factory.mktemp("ours")
    run_ours(QUICK, folder, groups=1 if request.param == "one group" else 2)
    return folder


@pytest.mark.parametrize("client", QUICK)
def test_the_results_are_those_of_the_local_store(client: str, ours: Path, local: Path) -> None:
    check_results(ours, local, QUICK.index(client))


@pytest.mark.nightly
@pytest.mark.parametrize("client", [client for client in QUICK if client not in NOT_DIST_SYNC])
def test_the_results_are_those_of_dist_sync(client: str, local: Path, tmp_path: Path) -> None:
    number = QUICK.index(client)
    file, *arguments = shlex.split(lines(QUICK, "dist_sync", tmp_path)[number])
    dist_sync(2, [str(CLIENTS / file), *arguments])
    check_results(tmp_path, local, number)


@pytest.mark.nightly
@pytest.mark.parametrize("groups", [1, 2])
def test_module_fit_with_every_optimizer(groups: int, tmp_path: Path) -> None:
    clients = [f"images.py --optimizer {name} --epochs 1" for name in OPTIMIZERS.split()]
    wanted, found = tmp_path / "local", tmp_path / "ours"
    wanted.mkdir()
    found.mkdir()
    run_locally(clients, wanted)
    run_ours(clients, found, groups)
    for number, _ in enumerate(clients):
        check_results(found, wanted, number)
