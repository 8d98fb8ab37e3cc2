"""Which algorithm for which size: the table, what overrides it, and the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridps.errors import ConfigError
from hybridps.tensor_collectives import ALGORITHMS, BUILT_IN, Chooser, Entry, Tuning
from hybridps.tensor_collectives.choice import ANY_SIZE, VERSION
from hybridps.tune import candidates, merged

MEASURED = Tuning(
    VERSION,
    "host, 2 cores",
    (
        Entry(2, 1, 1000, "flat"),
        Entry(2, 1, ANY_SIZE, "node"),
        Entry(8, 1, ANY_SIZE, "flat"),
        Entry(4, 2, 5000, "library", 4096),
        Entry(4, 2, ANY_SIZE, "ring", 8192),
        Entry(64, 16, ANY_SIZE, "halving_doubling"),
    ),
)


@pytest.mark.parametrize(
    ("ranks", "nodes", "nbytes", "algorithm"),
    [
        (2, 1, 0, "flat"),
        (2, 1, 1000, "flat"),
        (2, 1, 1001, "node"),
        (3, 1, 1001, "node"),
        (7, 1, 10, "flat"),
        (4, 2, 5000, "library"),
        (4, 2, 1 << 30, "ring"),
        (6, 2, 1 << 30, "ring"),
        (100, 12, 1, "halving_doubling"),
    ],
)
def test_the_nearest_row_wins(ranks: int, nodes: int, nbytes: int, algorithm: str) -> None:
    choice = Chooser(ranks, nodes, MEASURED).of(nbytes)
    assert (choice.algorithm, choice.source) == (algorithm, "measured")


def test_a_table_without_the_kind_of_machine_leaves_it_to_the_built_in_one() -> None:
    one_node = Tuning(VERSION, "host", MEASURED.entries[:2])
    choice = Chooser(4, 2, one_node).of(1 << 20)
    assert choice.source == "built-in"
    assert choice.algorithm in ("ring", "halving_doubling")


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "node"])
def test_forced(algorithm: str) -> None:
    for nbytes in (1, 10**9):
        choice = Chooser(4, 2, MEASURED, algorithm, 2048).of(nbytes)
        assert (choice.algorithm, choice.chunk_bytes, choice.source) == (algorithm, 2048, "forced")


def test_what_cannot_be_had() -> None:
    with pytest.raises(ConfigError, match="'node' is for one node, and there are 2"):
        Chooser(4, 2, forced="node")
    with pytest.raises(ConfigError, match="'library' is the MPI library's, and it must be ours: use one of node, ring"):
        Chooser(4, 2, forced="library", only_own="it must be ours")


def test_only_own_algorithms() -> None:
    assert Chooser(4, 2, MEASURED, only_own="so").of(1).algorithm == "ring"
    assert Chooser(8, 1, MEASURED, only_own="so").of(1).algorithm == "node"
    assert Chooser(64, 16, MEASURED, only_own="so").of(1).algorithm == "halving_doubling"


def test_the_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tuning.json"
    MEASURED.write(path)
    assert Tuning.read(path) == MEASURED
    assert '"algorithm": "ring"' in path.read_text()
    path.write_text(path.read_text().replace('"version": 1', '"version": 99'))
    with pytest.raises(ConfigError, match=r"version 99, not 1: run `hybridps tune` again"):
        Tuning.read(path)
    path.write_text(path.read_text().replace("ring", "wring"))
    with pytest.raises(ConfigError, match=r"cannot be used: .*wring.*measure it with `hybridps tune`"):
        Tuning.read(path)
    with pytest.raises(ConfigError, match="No such file"):
        Tuning.read(tmp_path / "nowhere")


def test_measured_rows_replace_those_of_the_same_machine(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    MEASURED.write(path)
    best = [
        Entry(2, 1, 4096, "flat", 1024, 1.0),
        Entry(2, 1, 16384, "node", 1024, 2.0),
        Entry(2, 1, 65536, "node", 1024, 3.0),
    ]
    found = merged(path, best)
    assert [(e.up_to_bytes, e.algorithm) for e in found.entries if (e.ranks, e.nodes) == (2, 1)] == [
        (8192, "flat"),
        (ANY_SIZE, "node"),
    ]
    assert set(MEASURED.entries[2:]) <= set(found.entries)
    assert found.machine
    assert merged(tmp_path / "new.json", best).entries == tuple(
        e for e in found.entries if (e.ranks, e.nodes) == (2, 1)
    )


def test_candidates() -> None:
    assert {algorithm for algorithm, _ in candidates(1, 1 << 20)} == {"flat", "node"}
    assert {algorithm for algorithm, _ in candidates(3, 1 << 20)} == set(ALGORITHMS) - {"node"}
    assert BUILT_IN.machine == ""
