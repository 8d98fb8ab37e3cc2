"""Machines as data."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hybridps.errors import OracleError
from hybridps.oracle.machines import ABCI, Level, Machine, machine_of, with_settings
from hybridps.oracle.machines.machine import checked

PLAT = "MEM_PER_NODE|16e9|Bytes\r\nNODE_SPEED|7.8E12|FLOPS\r\nBANDWIDTH|12.5E9|Bps\r\nLATENCY|500E-9|second \r\n"
PLAT += "MAX_NODE|4096|GPUs\r\nGPU_PER_NODE|4|GPUs"


@pytest.mark.parametrize(
    ("pes", "switches_seconds"), [(5, 90e-9), (68, 90e-9), (69, 270e-9), (136, 270e-9), (137, 760e-9), (10**5, 760e-9)]
)
def test_latency_of_abci_by_distance(pes: int, switches_seconds: float) -> None:
    link = with_settings(ABCI, {"latency_plx_us": 20}).link(pes)
    assert link.latency_seconds == pytest.approx(2 * (20e-6 + 110e-9) + switches_seconds, rel=1e-12)
    assert 1 / link.seconds_per_byte == pytest.approx(12.5e9)


def test_inside_a_node_of_abci() -> None:
    assert ABCI.link(4) == (9e-6, 1 / 50e9)


def test_json_keeps_a_machine(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_bytes(msgspec.json.encode(ABCI))
    assert machine_of(str(path)) == ABCI == machine_of("ABCI")


def test_a_platform_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "small.plat"
    path.write_text(PLAT)
    machine = machine_of(str(path))
    assert (machine.memory_bytes, machine.speed_flops, machine.pes_per_node, machine.max_pes) == (16e9, 7.8e12, 4, 4096)
    assert machine.link(1000) == (500e-9, 1 / 12.5e9)
    path.write_text(PLAT.replace("LATENCY", "DELAY"))
    with pytest.raises(OracleError, match="no line LATENCY"):
        machine_of(str(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory_bytes": -1.0}, "memory_bytes of 'ABCI' is -1: it must be above 0"),
        ({"levels": ()}, "no levels"),
        (
            {"levels": (Level(name="far", latency_seconds=1e-6, bandwidth_bytes_per_second=-5.0),)},
            "bandwidth.*'far' is -5",
        ),
        ({"levels": (Level(name="far", latency_seconds=-1e-6, bandwidth_bytes_per_second=5.0),)}, "latency_seconds"),
        ({"levels": tuple(reversed(ABCI.levels))}, "from near to far"),
        ({"latency_plx_us": float("nan")}, "latency_plx_us"),
    ],
)
def test_a_machine_that_cannot_be_is_refused(change: dict, message: str) -> None:
    with pytest.raises(OracleError, match=message):
        checked(msgspec.structs.replace(ABCI, **change))


def test_unknown_names_list_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(OracleError, match="unknown machine 'fugaku': use one of abci"):
        machine_of("fugaku")
    with pytest.raises(OracleError, match="there is no file cluster.json: `hybridps oracle calibrate` writes one"):
        machine_of("cluster.json")
    with pytest.raises(OracleError, match="unknown setting 'latency' of a machine: use one of .*latency_plx_us"):
        with_settings(ABCI, {"latency": 1})
    path = tmp_path / "machine.json"
    path.write_text('{"name": "x", "memory": 3}')
    with pytest.raises(OracleError, match="not a machine"):
        machine_of(str(path))


def test_beyond_the_last_level() -> None:
    near = Level(name="node", latency_seconds=1e-6, bandwidth_bytes_per_second=1e9, pes=8)
    machine = checked(Machine(name="box", memory_bytes=1e9, speed_flops=1e12, levels=(near,)))
    with pytest.raises(OracleError, match="no link for 9 PEs"):
        machine.link(9)
