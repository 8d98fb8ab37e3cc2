"""Reads networks from files: the published layer tables and masks, and JSON."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hybridps.errors import OracleError
from hybridps.oracle.networks.network import ELEMENTWISE, Layer, Network, checked, kind_of

NETWORKS = ("alexnet", "vgg16", "resnet50", "resnet152", "googlenet", "cosmoflow", "cosmoflow256")
TABLES = Path(__file__).parent / "tables"
"""The well-known networks as layer tables, from their published architectures. Each table names its source."""

Shape = tuple[int, ...]


def built_in(name: str) -> Network:
    """Return a well-known network by name; case, - and _ are ignored. Raises OracleError, which lists the names."""
    known = name.lower().replace("-", "").replace("_", "")
    if known not in NETWORKS:
        raise OracleError(f"unknown network {name!r}: use one of {', '.join(NETWORKS)}")
    return read_network(TABLES / f"{known}.net")


def read_network(path: Path) -> Network:
    """Read a network from a file: JSON of `Network`, or a published `.net` table. Raises OracleError for others."""
    text = read_text(path)
    if not text.lstrip().startswith("{"):
        return read_table(text, path.name)
    try:
        return checked(msgspec.json.decode(text, type=Network))
    except msgspec.DecodeError as error:
        raise OracleError(f"{path} is not a network: {error}") from None


def read_text(path: Path) -> str:
    """Return the text of a file. Raises OracleError if it cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise OracleError(f"{path} cannot be read: {error}") from None


def write_network(network: Network, path: Path) -> None:
    """Write the JSON that `read_network` reads."""
    write_json(network, path)


def write_json(content: msgspec.Struct, path: Path) -> None:
    """Write indented JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")


def rows_of(text: str, source: str) -> list[tuple[str, list[str]]]:
    """Return where each line of a published table is, and its cells. Comments and empty lines are left out."""
    return [
        (f"{source}, line {number}", [cell.strip() for cell in line.split("|")])
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]


def read_table(text: str, source: str) -> Network:
    """Read a `.net` table: Dataset|, Input| and Model| lines, then NAME|input|weight|output|seconds per sample.

    Lines that start with # are comments. A time may be missing. If only one layer has a time, it is the time of the
    whole network, as in the published tables; otherwise each layer has the time of all its passes. Two more cells may
    follow: the items of bias, scale and shift, and the positions of the layers that the layer reads. Raises
    OracleError.
    """
    rows = rows_of(text, source)
    if len(rows) < 4 or [cells[0] for _, cells in rows[:3]] != ["Dataset", "Input", "Model"]:
        raise OracleError(f"{source} is not a layer table: it must begin with Dataset|, Input| and Model|")
    (_, dataset), (at, data), (_, model) = rows[:3]
    layers: list[Layer] = []
    notes: list[str] = []
    for where, cells in rows[3:]:
        layers.append(_without_misprint(_layer(cells, where), layers, notes, where))
    times = [_seconds(cells, where) for where, cells in rows[3:]]
    above = [seconds for seconds in times if seconds]
    return checked(
        Network(
            name=model[1],
            dataset=dataset[1],
            samples=sum(_shape(data[1], at)[:1]),
            notes=tuple(notes),
            layers=_timed(layers, times),
            seconds_per_sample=above[0] if len(above) == 1 else None,
        )
    )


def read_mask(path: Path, network: Network) -> tuple[bool, ...]:
    """Read a `.lc` file: for each layer of the network, in order, whether the strategy splits it (NAME|1 or NAME|0).

    Raises OracleError if it does not fit the network.
    """
    rows = rows_of(read_text(path), str(path))
    for where, cells in rows:
        if cells[1:] not in (["0"], ["1"]):
            raise OracleError(f"{where}: {'|'.join(cells)!r} must be NAME|0 or NAME|1")
    if len(rows) != len(network.layers):
        raise OracleError(f"{path} has {len(rows)} layers, and {network.name} has {len(network.layers)}")
    for position, ((_, cells), layer) in enumerate(zip(rows, network.layers, strict=True)):
        name = cells[0].split()[-1:]
        if name != [layer.name]:
            raise OracleError(f"{path} has {cells[0]!r} where {network.name} has layer {position}, {layer.name!r}")
    return tuple(cells[1] == "1" for _, cells in rows)


def _layer(cells: list[str], where: str) -> Layer:
    if len(cells) < 4:
        raise OracleError(f"{where}: {'|'.join(cells)!r} must be NAME|input|weight|output|seconds")
    given, weight, output = (_shape(cell, where) for cell in cells[1:4])
    return Layer(
        name=cells[0],
        kind=kind_of(cells[0]),
        input=given,
        output=output,
        weight=weight,
        vector_items=sum(_shape(cells[5], where)) if cells[5:] else 0,
        after=_shape(cells[6], where, between=",") if cells[6:] else None,
    )


def _seconds(cells: list[str], where: str) -> float | None:
    try:
        return float(cells[4]) if len(cells) > 4 and cells[4] else None
    except ValueError:
        raise OracleError(f"{where}: {cells[4]!r} is not a time in seconds") from None


def _shape(text: str, where: str, between: str = "x") -> Shape:
    try:
        return tuple(int(size) for size in text.split(between)) if text else ()
    except ValueError:
        raise OracleError(f"{where}: {text!r} must be whole numbers with {between} between them") from None


def _without_misprint(layer: Layer, before: list[Layer], notes: list[str], where: str) -> Layer:
    """Correct a misprinted input. An element-wise layer keeps its shape, so its output is used if that fits the chain.

    The published COSMOFLOW.net_256 has such a misprint.
    """
    if layer.kind not in ELEMENTWISE or layer.input == layer.output or not before or before[-1].output != layer.output:
        return layer
    notes.append(f"{where}: {layer.name} has the input {layer.input}, read as its output {layer.output}")
    return msgspec.structs.replace(layer, input=layer.output)


def _timed(layers: list[Layer], times: list[float | None]) -> tuple[Layer, ...]:
    """Return the layers with their times from the table; backward takes two thirds."""
    known = [seconds for seconds in times if seconds is not None]
    if any(seconds < 0 for seconds in known):
        raise OracleError(f"the table has a time of {min(known)} seconds: it must be 0 or more")
    if sum(seconds > 0 for seconds in known) <= 1:
        return tuple(layers)
    if len(known) < len(layers):
        raise OracleError(
            f"the table has times for {len(known)} of {len(layers)} layers: give one for the whole or all"
        )
    return tuple(
        msgspec.structs.replace(layer, forward_seconds=seconds / 3, backward_seconds=2 * seconds / 3)
        for layer, seconds in zip(layers, known, strict=True)
    )
