"""Networks as data: what is built in, what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hybridps.errors import OracleError
from hybridps.oracle.networks import (
    NETWORKS,
    Layer,
    Network,
    built_in,
    checked,
    read_mask,
    read_network,
    write_network,
)
from hybridps.oracle.networks.files import read_table

TABLE = """Dataset|Toy
Input|100x3x8x8
Model|Toy
# a comment
CONV1|3x8x8|3x4x3x3|4x8x8|{first}
RELU|4x8x8|4x4x0x0|4x8x8|{second}
MPOOL|4x8x8|0x0x2x2|4x4x4|0
FC|4x4x4|4x10x4x4|10x1x1 |0"""


def table(first: str = "0.5", second: str = "0") -> str:
    return TABLE.format(first=first, second=second)


@pytest.mark.parametrize(
    ("name", "items"),
    [
        ("alexnet", 62_378_344),
        ("VGG16", 138_357_544),
        ("ResNet-50", 25_557_032),
        ("resnet152", 60_192_808),
        ("googlenet", 6_998_552),
        ("cosmoflow", 2_128_064),
        ("cosmoflow_256", 2_128_064),
    ],
)
def test_built_in_networks_have_the_published_number_of_parameters(name: str, items: int) -> None:
    assert built_in(name).weight_items == items


@pytest.mark.parametrize("name", NETWORKS)
def test_json_keeps_a_network(name: str, tmp_path: Path) -> None:
    network = built_in(name)
    write_network(network, tmp_path / "network.json")
    assert read_network(tmp_path / "network.json") == network


def test_an_unknown_network_lists_the_known_ones() -> None:
    with pytest.raises(OracleError, match="resnet51.*resnet50, resnet152"):
        built_in("resnet51")


def test_a_table_is_read() -> None:
    network = read_table(table(), "toy.net")
    assert (network.name, network.samples, network.seconds_per_sample) == ("Toy", 100, 0.5)
    assert [layer.kind for layer in network.layers] == ["CONV", "RELU", "MPOOL", "FC"]
    assert network.weight_items == 3 * 4 * 9 + 4 * 10 * 16
    assert [layer.forward_flops for layer in network.layers] == [2 * 108 * 64, 256, 64 * 4, 2 * 640]


def test_times_of_several_layers_are_their_own() -> None:
    network = read_table(table(second="0.3"), "toy.net")
    assert network.seconds_per_sample is None
    times = [(layer.forward_seconds or 0) + (layer.backward_seconds or 0) for layer in network.layers]
    assert times == pytest.approx([0.5, 0.3, 0, 0])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("MPOOL|4x8x8|", "MPOOL|4x9x9|", "layer 2 .MPOOL. of Toy does not chain: it takes 4x9x9, but RELU gives 4x8x8"),
        ("4x10x4x4", "4x10x3x3", "weights for 36 items, but 64 of input"),
        ("3x4x3x3", "3x5x3x3", "5 filters, but 4 channels"),
        ("3x4x3x3", "2x4x3x3", "weights for 2 channels, but 3 of input"),
        ("|4x8x8|0.5", "|4x8xy|0.5", "'4x8xy' must be whole numbers"),
        ("|0.5", "|-0.5", "-0.5 seconds"),
        ("|0.5", "|soon", "'soon' is not a time"),
        ("Model|", "Net|", "must begin with Dataset"),
        ("100x3x8x8", "0x3x8x8", "0 samples"),
        ("RELU|4x8x8|4x4x0x0|4x8x8", "RELU|4x8x8|4x4x0x0|4x7x8", "keeps the shape"),
    ],
)
def test_a_table_that_cannot_be_is_refused(old: str, new: str, message: str) -> None:
    assert old in table()
    with pytest.raises(OracleError, match=message):
        read_table(table().replace(old, new), "toy.net")


def test_a_missing_layer_breaks_the_chain() -> None:
    text = "\n".join(line for line in table().splitlines() if not line.startswith("MPOOL"))
    with pytest.raises(OracleError, match="FC"):
        read_table(text, "toy.net")


def test_a_misprint_of_an_element_wise_layer_is_noted() -> None:
    network = read_table(table().replace("RELU|4x8x8", "RELU|4x88x8"), "toy.net")
    assert network.layers[1].input == (4, 8, 8)
    assert "RELU" in network.notes[0]


def test_a_mask_names_the_layers(tmp_path: Path) -> None:
    network, path = read_table(table(), "toy.net"), tmp_path / "split.lc"
    path.write_text("0 CONV1 |1\n1 RELU |0\r\nMPOOL|0\nFC|1")
    assert read_mask(path, network) == (True, False, False, True)
    for text, message in (
        ("CONV1|1\nRELU|0\nMPOOL|0", "3 layers"),
        ("CONV2|1\nRELU|0\nMPOOL|0\nFC|1", "'CONV2' where Toy has layer 0"),
        ("CONV1|2\nRELU|0\nMPOOL|0\nFC|1", "must be NAME"),
    ):
        path.write_text(text)
        with pytest.raises(OracleError, match=message):
            read_mask(path, network)


def add_of(*shapes: tuple[int, ...]) -> Network:
    sources = [
        Layer(name=f"CONV{at}", kind="OTHER", input=(3, 4, 4), output=shape, after=())
        for at, shape in enumerate(shapes)
    ]
    joined = Layer(name="ADD", kind="ADD", input=shapes[0], output=shapes[0], after=tuple(range(len(shapes))))
    return Network(name="branches", samples=1, layers=(*sources, joined))


def test_branches_must_fit() -> None:
    assert checked(add_of((8, 4, 4), (8, 4, 4))).crossing_items == (128, 256, 0)
    with pytest.raises(OracleError, match="CONV0 gives 8x4x4, CONV1 gives 8x2x2"):
        checked(add_of((8, 4, 4), (8, 2, 2)))


def test_a_layer_comes_after_what_it_needs() -> None:
    network = add_of((8, 4, 4), (8, 4, 4))
    late = msgspec.structs.replace(network.layers[-1], after=(0, 2))
    with pytest.raises(OracleError, match="must be before it"):
        checked(msgspec.structs.replace(network, layers=(*network.layers[:-1], late)))
