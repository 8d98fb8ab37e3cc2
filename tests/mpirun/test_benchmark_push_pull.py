"""The benchmarks of the parameter server: what they write, and that results are checked. Never how fast anything is."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
import time
from contextlib import suppress
from importlib import util
from pathlib import Path
from typing import Any

import psutil
import pytest
from worlds import environment

TOP = Path(__file__).parents[2]
sys.path.insert(0, str(TOP))

from benchmarks import ablation, exchanges, push_pull  # noqa: E402
from hybridps import links  # noqa: E402


def start(module: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"benchmarks.{module}", *options]
    return subprocess.run(command, cwd=TOP, env=environment(), capture_output=True, text=True, timeout=200, check=False)


def run(module: str, folder: Path, *options: str) -> list[dict[str, Any]]:
    file = folder / "results.json"
    done = start(module, *options, "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(file.read_text())


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("rule", "ways"), [("momentum", exchanges.OURS), pytest.param("sum", exchanges.OURS[:1], marks=pytest.mark.nightly)]
)
def test_json(tmp_path: Path, rule: str, ways: tuple[str, ...]) -> None:
    """Each rule, and each way to the servers: one does not depend on the other."""
    options = ["--workers", "2", "--servers", "2", "--cases", "small_keys,one_key", "--rounds", "2", "--rule", rule]
    found = run("push_pull", tmp_path, *options, "--contenders", ",".join(ways))
    assert [(result["case"], result["bytes"]) for result in found] == [("small_keys", 404_896), ("one_key", 16 << 20)]
    for result in found:
        assert (result["workers"], result["groups"], result["servers"], result["rule"]) == (2, 2, 2, rule)
        assert set(result["seconds"]) == set(ways)
        for name, seconds in result["seconds"].items():
            assert result["exchanges_per_second"][name] == pytest.approx(1 / seconds)
            assert result["bytes_per_second_per_worker"][name] == pytest.approx(result["bytes"] / seconds)
            assert result["server_cpu_seconds"][name] > 0
        assert result["ratios"] == {}


@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_racks_send_as_much_as_one_group(tmp_path: Path) -> None:
    reason = links.missing()
    if reason:
        pytest.skip(reason)
    (result,) = run("hierarchy", tmp_path, "--megabytes", "4", "--rounds", "1", "--rate", "1gbit")
    assert (result["racks"], result["groups_per_rack"], result["bytes"]) == (2, 2, 4 << 20)
    for kind in ("bytes_sent", "bytes_received"):
        assert result["ratios"][kind] == pytest.approx(2, rel=0.1)
        assert 4 << 20 < result[kind]["hierarchy"] < 1.1 * (4 << 20)


@pytest.mark.timeout(240)
def test_groups_of_several_workers(tmp_path: Path) -> None:
    options = ["--workers", "3", "--groups", "2", "--cases", "small_keys", "--rounds", "2"]
    options += ["--chunk", "32K", "--bucket", "32K"]
    (result,) = run("push_pull", tmp_path, *options, "--contenders", "hybridps_shm,hybridps_tcp")
    assert (result["workers"], result["groups"], result["bucket_bytes"]) == (3, 2, 1 << 15)
    assert set(result["seconds"]) == {"hybridps_shm", "hybridps_tcp"}


@pytest.mark.nightly
@pytest.mark.mxnet
@pytest.mark.skipif(util.find_spec("mxnet") is None, reason="MXNet is not installed")
def test_a_dead_scheduler_ends_it() -> None:
    """Its workers, who are there already, would wait for ever."""
    words = ["--workers", "2", "--cases", "small_keys", "--peer", "mxnet", "--contenders", "hybridps_shm"]
    command = [sys.executable, "-m", "benchmarks.push_pull", *words]
    with subprocess.Popen(command, cwd=TOP, env=environment(), stderr=subprocess.PIPE, text=True) as started:
        try:
            of_mxnet = descendants(psutil.Process(started.pid), {"DMLC_ROLE": "worker"}, 2)
            (scheduler, *_) = descendants(psutil.Process(started.pid), {"DMLC_ROLE": "scheduler"}, 1)
            scheduler.kill()
            said = started.communicate(timeout=60)[1]
        finally:
            started.kill()
    assert f"process {scheduler.pid}, ended with signal 9, and with it the ranks" in said
    assert started.returncode == 1
    assert not psutil.wait_procs(of_mxnet, timeout=10)[1]


def descendants(process: psutil.Process, variables: dict[str, str], count: int) -> list[psutil.Process]:
    """So many descendants, at least, that have these environment variables; once they are there, within a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = []
        for one in process.children(recursive=True):
            with suppress(psutil.Error):
                if variables.items() <= one.environ().items():
                    found.append(one)
        if len(found) >= count:
            return found
        time.sleep(0.05)
    raise TimeoutError(f"there are no {count} descendants with {variables}")


@pytest.mark.nightly
@pytest.mark.mxnet
@pytest.mark.timeout(240)
@pytest.mark.skipif(util.find_spec("mxnet") is None, reason="MXNet is not installed")
def test_beside_mxnet(tmp_path: Path) -> None:
    options = ["--workers", "2", "--cases", "small_keys", "--rounds", "2", "--peer", "mxnet"]
    (result,) = run("push_pull", tmp_path, *options, "--contenders", "hybridps_shm")
    assert set(result["seconds"]) == {"hybridps_shm", *exchanges.PEERS}
    for name in exchanges.PEERS:
        ratio = result["seconds"][name] / result["seconds"]["hybridps_shm"]
        assert result["ratios"][name]["hybridps_shm"] == pytest.approx(ratio)


@pytest.mark.timeout(120)
def test_rules(tmp_path: Path) -> None:
    found = run("rules", tmp_path, "--size", "100K", "--chunk", "16K", "--rounds", "2", "--groups", "3")
    assert {result["case"] for result in found} >= {"sum", "momentum", "adam", "elastic"}
    for result in found:
        assert set(result["seconds"]) == {"fused", "numpy", "numpy_chunks"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--peer", "mxmet"], "'mxmet' is unknown: use mxnet"),
        (["--rule", "product"], "'product' is unknown: use momentum, sum"),
        (["--workers", "2", "--groups", "3"], "2 workers cannot be in 3 groups"),
        (["--chunk", "10"], "'10' is no size"),
        (["--chunk", "32K", "--bucket", "48K"], "buckets of 49152 bytes are no chunks of 32768"),
        (["--contenders", "hybridps_rdma"], "'hybridps_rdma' is unknown"),
    ],
)
def test_wrong_options(capsys, options: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as ended:
        push_pull.app(options)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_plot_of_the_ablation(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    chosen = ablation.variants()
    seconds = {variant.name: 1e-3 * (1 + number) for number, variant in enumerate(chosen)}
    ablation.plot({"seconds": seconds, "workers": 2, "hardware": {"cores": 2}}, chosen, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_examples() -> None:
    failed, tried = doctest.testmod(push_pull)
    assert (failed, tried > 0) == (0, True)
