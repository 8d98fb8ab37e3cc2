"""The benchmark of allreduce: what it writes, and that it leaves nothing behind. Never how fast anything is."""

from __future__ import annotations

import doctest
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from worlds import environment, installed

TOP = Path(__file__).parents[2]
sys.path.insert(0, str(TOP))

from benchmarks import allreduce, cases, plot, results  # noqa: E402
from hybridps import links  # noqa: E402

INTEL_MPI = os.environ.get("INTEL_MPI", "")
"""The prefix of an environment that has Intel MPI, mpi4py and NumPy."""


def run(folder: Path, *options: str, peers: str = "none") -> list[dict[str, Any]]:
    file = folder / "results.json"
    command = [sys.executable, "-m", "benchmarks.allreduce", "--rounds", "2", "--peers", peers, *options]
    done = subprocess.run(
        [*command, "--json", str(file)],
        cwd=TOP,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert len(done.stdout.splitlines()) == 1 + len(found), done.stdout
    return found


@pytest.mark.timeout(240)
def test_json(tmp_path: Path) -> None:
    found = run(tmp_path, "--ranks", "2", "--vectors", "2", "--cases", "flat", "--sizes", "4,1K,10000")
    assert [result["bytes"] for result in found] == [4, 1024, 10000]
    for result in found:
        assert result["case"] == "flat"
        assert (result["ranks"], result["nodes"], result["vectors"]) == (2, 1, 2)
        assert set(result["seconds"]) == {"hybridps", "mpi_flat", "memory_limit"}
        assert all(taken > 0 for taken in result["seconds"].values())
        ratio = result["seconds"]["mpi_flat"] / result["seconds"]["hybridps"]
        assert result["ratios"]["mpi_flat"] == pytest.approx(ratio)
        assert result["absent"] == {}
        assert result["versions"]["numpy"]


@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_gradients_of_resnet50_on_nodes_of_different_sizes(tmp_path: Path) -> None:
    reason = links.missing()
    if reason:
        pytest.skip(reason)
    before = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    options = ["--ranks", "3", "--nodes", "2", "--rate", "10gbit", "--cases", "resnet50"]
    (result,) = run(tmp_path, *options)
    assert (result["case"], result["bytes"], result["nodes"]) == ("resnet50", 102_228_128, 2)
    assert set(result["seconds"]) == {"hybridps", "mpi_flat", "mpi_per_tensor", "memory_limit", "link_limit"}
    assert result["seconds"]["link_limit"] == pytest.approx(102_228_128 * 8 / 10e9)
    assert result["link_rate"] == "10gbit"
    assert subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout == before


@pytest.mark.timeout(240)
@pytest.mark.skipif(not INTEL_MPI, reason="INTEL_MPI does not name an environment that has Intel MPI")
def test_intel_mpi(tmp_path: Path) -> None:
    options = ["--ranks", "2", "--vectors", "2", "--cases", "flat,resnet50", "--sizes", "1K,1M"]
    found = run(tmp_path, *options, "--intel-mpi", INTEL_MPI, peers="intel_mpi")
    flat = {"hybridps", "mpi_flat", "memory_limit", "intel_mpi_flat", "intel_mpi_out_of_place"}
    assert [set(result["seconds"]) - flat for result in found[:2]] == [set(), set()]
    assert set(found[2]["seconds"]) == flat | {"mpi_per_tensor", "intel_mpi_per_tensor"}
    for result in found:
        assert result["absent"] == {}
        assert flat <= set(result["seconds"])
        assert all(taken > 0 for taken in result["seconds"].values())


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        pytest.param([], "no environment was given that has it", marks=pytest.mark.nightly),
        pytest.param(
            *(["--intel-mpi", str(Path(sys.prefix) / "absent")], "absent has no bin/mpirun"), marks=pytest.mark.nightly
        ),
        (["--intel-mpi", sys.prefix], "not Intel MPI"),
    ],
)
def test_intel_mpi_is_absent(tmp_path: Path, options: list[str], reason: str) -> None:
    if sys.prefix in options and "Intel" in installed().flavour:
        pytest.skip("this environment has Intel MPI")
    (result,) = run(tmp_path, "--ranks", "2", "--cases", "flat", "--sizes", "1K", *options, peers="intel_mpi")
    assert set(result["seconds"]) == {"hybridps", "mpi_flat", "memory_limit"}
    assert reason in result["absent"]["intel_mpi"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--peers", "glue"], "'glue' is unknown: use gloo, horovod, intel_mpi"),
        (["--sizes", "10"], "'10' is no size"),
        (["--ranks", "2", "--nodes", "3"], "2 ranks cannot be on 3 nodes"),
        (["--rate", "fast"], "'fast' is not a rate"),
    ],
)
def test_wrong_options(capsys, options: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as ended:
        allreduce.app(options)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    shared = {"ranks": 2, "nodes": 1, "vectors": 1, "link_rate": None, "wire": None, "hardware": {"cores": 2}}
    seconds = {"hybridps": 1e-3, "mpi_flat": 2e-3, "memory_limit": 5e-4}
    flat = [{"case": "flat", "bytes": size, "seconds": seconds} | shared for size in (4096, 102_400_000)]
    resnet = {"case": "resnet50", "bytes": 102_228_128, "seconds": seconds} | shared
    plot.plot([*flat, resnet], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_resnet50_has_its_published_parameters() -> None:
    assert len(cases.resnet50_tensors()) == 161
    assert sum(cases.resnet50_tensors()) == 25_557_032


@pytest.mark.parametrize("module", [allreduce, cases, links, results], ids=lambda module: module.__name__)
def test_examples(module: ModuleType) -> None:
    failed, tried = doctest.testmod(module)
    assert (failed, tried > 0) == (0, True)
