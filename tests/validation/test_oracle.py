"""The oracle against what the ParaDL authors printed, on the layer tables that they published."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from hybridps.oracle.machines import ABCI, machine_of, with_settings
from hybridps.oracle.networks import Network, built_in, read_mask, read_network
from hybridps.oracle.paradl import Prediction, Work, predict

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "paradl"
GOLDEN = DATA / "golden.csv"
pytestmark = pytest.mark.skipif(not GOLDEN.exists(), reason=f"{GOLDEN.name} is not here")
FILES = {
    "AlexNet": ("ALEXNET_ImageNet_profall.net_sc", "filter_alexnet.lc"),
    "VGG16": ("VGG_ImageNet_profall.net_sc", "filter_vgg.lc"),
    "ResNet50": ("RESNET50_ImageNet_profall.net_sc", "filter_resnet.lc"),
}
LOGGED = [
    "ResNet50,data,512,32768,15,7.798755,1.8473165088",
    "ResNet50,filter,2,64,15,2097.95068038,1423.6449216",
    "ResNet50,filter,64,64,15,262.157921995,16616.8494576",
    "ResNet50,data+filter,8,128,20,575.222370284,1670.3757008",
    "ResNet50,data+filter,1024,16384,20,4.54425672524,19.4024909069",
    "VGG16,filter,4,32,15,2920.48484805,3253.71168",
    "VGG16,channel,32,32,15,693.939702069,18059.01528",
    "VGG16,data+filter,64,512,20,182.530303003,2243.997126",
]
"""Lines of the logs that the authors published beside their program, in the columns of golden.csv."""


def printed() -> list[dict[str, str]]:
    return list(csv.DictReader(GOLDEN.read_text().splitlines() + LOGGED)) if GOLDEN.exists() else []


@cache
def network(name: str) -> Network:
    return read_network(DATA / FILES[name][0])


def ask(row: dict[str, str], machine: str = "abci", *, masked: bool = True) -> Prediction:
    net = network(row["network"])
    mask = read_mask(DATA / FILES[row["network"]][1], net) if masked and row["strategy"] != "data" else None
    settings = {"latency_plx_us": float(row["latency_plx_us"])}
    work = Work(net, with_settings(machine_of(machine), settings), mask)
    return predict(work, row["strategy"], int(row["pes"]), int(row["global_batch"]), variant="code").prediction


def digits(value: float) -> str:
    """As the program prints a number."""
    return f"{value:.12g}"


@pytest.mark.parametrize("row", printed(), ids=lambda row: "-".join(list(row.values())[:4]))
def test_the_program_s_numbers_to_all_digits(row: dict[str, str]) -> None:
    for one in (ask(row), ask(row, str(DATA / "ABCI.plat")), ask(row, masked=False)):
        assert digits(one.compute_seconds_per_epoch) == row["compute_seconds_per_epoch"]
        assert digits(one.communication_seconds_per_epoch) == row["communication_seconds_per_epoch"]
        assert one.feasible


@pytest.mark.parametrize("path", sorted(DATA.glob("*.net*")), ids=lambda path: path.name)
def test_published_tables_are_read(path: Path) -> None:
    assert read_network(path).weight_items > 0


@pytest.mark.parametrize(("name", "table"), [("cosmoflow", "COSMOFLOW.net"), ("cosmoflow256", "COSMOFLOW.net_256")])
def test_built_in_cosmoflow_is_the_published_table(name: str, table: str) -> None:
    ours, theirs = built_in(name), read_network(DATA / table)
    assert [(one.kind, one.input, one.output, one.matrix_items) for one in ours.layers] == [
        (one.kind, one.input, one.output, one.matrix_items) for one in theirs.layers
    ]


@pytest.mark.parametrize(("name", "ours"), [("AlexNet", "alexnet"), ("VGG16", "vgg16"), ("ResNet50", "resnet50")])
def test_built_in_convolutions_have_the_published_weights(name: str, ours: str) -> None:
    """The table of ResNet-50 has no convolutions in its shortcuts; ours are called CONV_<block>0."""
    built = [one.matrix_items for one in built_in(ours).layers if one.kind == "CONV" and not one.name.endswith("0")]
    assert built == [one.matrix_items for one in network(name).layers if one.kind == "CONV"]


def test_the_command_prints_the_same() -> None:
    row = next(row for row in printed() if row["strategy"] == "filter" and row["pes"] == "64")
    command = [sys.executable, "-m", "hybridps", "oracle", "predict", "--machine", str(DATA / "ABCI.plat")]
    command += ["--network", str(DATA / FILES[row["network"]][0]), "--mask", str(DATA / FILES[row["network"]][1])]
    command += ["--strategy", row["strategy"], "--pes", row["pes"], "--pes", "8", "--batch", row["global_batch"]]
    command += ["--set", f"latency_plx_us={row['latency_plx_us']}", "--variant", "code", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    first, second = json.loads(done.stdout)
    assert digits(first["compute_seconds_per_epoch"]) == row["compute_seconds_per_epoch"]
    assert digits(first["communication_seconds_per_epoch"]) == row["communication_seconds_per_epoch"]
    assert second["pes"] == 8


def test_the_levels_of_abci_are_used_where_a_platform_file_has_one_link() -> None:
    row = printed()[0]
    assert ask(row, str(DATA / "ABCI.plat")) == ask(row)
    assert machine_of(str(DATA / "ABCI.plat")).max_pes == ABCI.max_pes


ROWS = ("| ResNet50 |", "| VGG16 |")


def documented() -> list[list[str]]:
    """The rows of the table of measured epochs in docs/oracle.md."""
    lines = (Path(__file__).parents[2] / "docs" / "oracle.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith(ROWS)]
    return [row for row in rows if len(row) == 8]


SAMPLES_PER_NODE = {"data+filter": {"ResNet50": 64, "VGG16": 32}, "data+spatial": {"ResNet50": 256, "VGG16": 32}}


def spatial_mask(net: Network) -> tuple[bool, ...]:
    """What the authors split: convolutions, and the pools of VGG16."""
    kinds = ("CONV", "MPOOL") if net.name == "VGG16" else ("CONV",)
    return tuple(layer.kind in kinds for layer in net.layers)


@pytest.mark.parametrize("row", documented(), ids=lambda row: "-".join(row[:3]))
def test_the_accuracy_in_the_docs_is_what_comes_out(row: list[str]) -> None:
    name, strategy, pes = row[0], row[1], int(row[2])
    measured = sum(float(second) for second in row[3].split("/"))
    net = network(name)
    batch = 64 if strategy == "filter" else SAMPLES_PER_NODE[strategy][name] * pes // 4
    published_mask = read_mask(DATA / FILES[name][1], net)
    for variant, seconds, accuracy in (("paper", row[4], row[5]), ("code", row[6], row[7])):
        spatial = spatial_mask(net) if variant == "code" else None
        work = Work(
            net,
            with_settings(ABCI, {"latency_plx_us": 20}),
            spatial if strategy == "data+spatial" else published_mask,
        )
        one = predict(work, strategy, pes, batch, variant=variant).prediction
        parts = (one.compute_seconds_per_epoch, one.communication_seconds_per_epoch)
        assert " / ".join(f"{part:.0f}" for part in parts) == seconds
        assert f"{100 * (1 - abs(sum(parts) - measured) / measured):.1f} %" == accuracy


def test_the_docs_have_all_measured_epochs() -> None:
    assert len(documented()) == 7
