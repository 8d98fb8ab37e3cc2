"""`hybridps oracle predict` and `plan`, as a user meets them."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from hybridps.cli import main
from hybridps.cli.oracle.inputs import settings_of
from hybridps.errors import OracleError
from hybridps.oracle.machines import ABCI
from hybridps.oracle.networks import built_in, write_network

QUESTION = ["--network", "alexnet", "--machine", "abci", "--batch", "2048"]


class Done(NamedTuple):
    returncode: object
    stdout: str
    stderr: str


def oracle(*arguments: str) -> Done:
    """Run the command in this process, which saves the time to start one."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr), pytest.raises(SystemExit) as ended:
        main(["oracle", *arguments])
    return Done(ended.value.code, stdout.getvalue(), stderr.getvalue())


def answers(*arguments: str) -> list[dict]:
    done = oracle("predict", *arguments, "--format", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_one_object_for_each_strategy_and_number_of_elements() -> None:
    lines = answers(*QUESTION, "--strategy", "data", "--strategy", "pipeline", "--pes", "4", "--pes", "64")
    assert [(line["strategy"], line["pes"]) for line in lines] == [
        ("data", 4),
        ("data", 64),
        ("layer", 4),
        ("layer", 64),
    ]
    assert lines[0]["global_batch"] == 2048
    assert lines[3]["feasible"] is False
    assert "64 > 20, the number of layers" in lines[3]["limits"][0]


def test_settings_change_the_machine_and_the_question() -> None:
    ask = [*QUESTION, "--strategy", "data", "--pes", "64"]
    (usual,), (slow,), (half,) = (
        answers(*ask),
        answers(*ask, "--set", "latency_plx_us=1e4"),
        answers(*ask, "--set", "samples=640000"),
    )
    assert slow["communication_seconds_per_epoch"] > usual["communication_seconds_per_epoch"]
    assert half["compute_seconds_per_epoch"] / usual["compute_seconds_per_epoch"] == pytest.approx(640000 / 1281167)


def test_algorithms_of_this_package_are_strategies_too() -> None:
    ask = [*QUESTION, "--strategy", "elastic", "--pes", "64", "--set", "groups=16"]
    often, seldom = answers(*ask, "--set", "tau=1"), answers(*ask, "--set", "tau=16")
    assert often[0]["communication_seconds_per_epoch"] > seldom[0]["communication_seconds_per_epoch"]


def test_what_a_reader_may_miss_is_said_on_standard_error() -> None:
    resnet = ["--network", "resnet50", "--machine", "abci", "--batch", "2048", "--pes", "64"]
    alone = oracle("predict", *resnet, "--strategy", "data", "--strategy", "elastic")
    assert (
        "elastic: this is one group, which communicates with no other; give the number with --set groups=N"
        in alone.stderr
    )
    assert "the memory is an upper bound" in alone.stderr
    given = ["--set", "groups=8", "--set", "memory_bytes=32e9"]
    assert oracle("predict", *resnet, "--strategy", "elastic", *given).stderr == ""


def test_files_are_read_as_well_as_names(tmp_path: Path) -> None:
    network, machine = tmp_path / "network.json", tmp_path / "machine.json"
    write_network(built_in("alexnet"), network)
    machine.write_bytes(msgspec.json.encode(ABCI))
    ask = ["--batch", "2048", "--strategy", "all", "--pes", "16"]
    assert answers("--network", str(network), "--machine", str(machine), *ask) == answers(*QUESTION[:4], *ask)


def test_a_table_and_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = oracle("predict", *QUESTION, "--strategy", "all", "--pes", "16", "--plot", str(tmp_path / "answer.png"))
    assert done.returncode == 0, done.stderr
    assert "data+spatial" in done.stdout
    assert (tmp_path / "answer.png").stat().st_size > 10_000


def test_the_plan() -> None:
    done = oracle("plan", *QUESTION, "--pes", "16", "--pes", "64", "--most-tau", "4", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [choice["pes"] for choice in found["choices"]] == [16, 64]
    assert all(choice["tau"] <= 4 for choice in found["choices"])
    assert found["best"] in found["choices"]
    assert "what stops the next doubling" in oracle("plan", *QUESTION, "--pes", "16").stdout


@pytest.mark.parametrize("pair", ["samples=nan", "segments=inf", "bytes_per_item=inf", "latency_plx_us=-inf"])
def test_a_setting_is_a_finite_number(pair: str) -> None:
    with pytest.raises(OracleError, match=f"{pair!r} must be a finite number"):
        settings_of(["tau=4", pair])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--machine": "fugaku"}, "unknown machine 'fugaku': use one of abci"),
        ({"--strategy": "dta"}, "unknown strategy 'dta': use one of serial, data"),
        ({"--pes": "0"}, "pes=0: give 1 or more"),
        ({"--batch": "-1"}, "batch=-1: give 1 or more"),
        ({"--set": "latency_plx=15"}, "unknown setting 'latency_plx': use one of"),
        ({"--set": "latency_plx_us=low"}, "'latency_plx_us=low' must be NAME=NUMBER"),
        ({"--set": "server_bandwidth_bytes_per_second=-1"}, "server_bandwidth_bytes_per_second of 'ABCI' is -1"),
        ({"--variant": "draft"}, "unknown variant 'draft'"),
        ({"--mask": "/nowhere.lc"}, "/nowhere.lc cannot be read"),
        ({"--network": "nonet"}, "unknown network 'nonet'"),
    ],
)
def test_what_a_user_gets_wrong_is_one_line_and_status_2(change: dict[str, str], message: str) -> None:
    options = {
        "--network": "alexnet",
        "--machine": "abci",
        "--batch": "64",
        "--strategy": "data",
        "--pes": "4",
    } | change
    done = oracle("predict", *(word for pair in options.items() for word in pair))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("hybridps: error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_negative_bandwidth_and_a_broken_chain_are_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    slow = msgspec.structs.replace(ABCI.levels[0], bandwidth_bytes_per_second=-1.0)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(ABCI, levels=(slow,))))
    done = oracle("predict", *QUESTION[:2], "--machine", str(path), "--batch", "8", "--strategy", "data", "--pes", "4")
    assert "bandwidth_bytes_per_second of 'NVLink in a node' is -1: it must be above 0" in done.stderr
    network = built_in("alexnet")
    path.write_bytes(
        msgspec.json.encode(msgspec.structs.replace(network, layers=network.layers[:2] + network.layers[4:]))
    )
    done = oracle("predict", "--network", str(path), *QUESTION[2:], "--strategy", "data", "--pes", "4")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "layer 2 (RELU2) of AlexNet does not chain: it takes 256x27x27, but RELU1 gives 96x55x55" in done.stderr
