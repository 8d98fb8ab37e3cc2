"""Reads networks from files: the published layer tables and masks, and JSON."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hybridps.errors import OracleError
from hybridps.oracle.networks.network import ELEMENTWISE, Layer, Network, checked, kind_of

Shape = tuple[int, ...]


def read_network(path: Path) -> Network:
    """A network from a file: JSON of `Network`, or a published `.net` table. Raises OracleError if it is neither."""
    text = read_text(path)
    if not text.lstrip().startswith("{"):
        return read_table(text, path.name)
    try:
        return checked(msgspec.json.decode(text, type=Network))
    except msgspec.DecodeError as error:
        raise OracleError(f"{path} is no network: {error}") from None


def read_text(path: Path) -> str:
    """The text of a file. Raises OracleError if it cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise OracleError(f"{path} cannot be read: {error}") from None


def write_network(network: Network, path: Path) -> None:
    """Write the JSON that `read_network` reads."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(network), indent=1) + b"\n")


def read_table(text: str, source: str) -> Network:
    """A `.net` table: Dataset|, Input| and Model| lines, then NAME|input|weight|output|seconds per sample.

    Lines that start with # are comments. A time may be missing. If only one layer has a time, it is the time
    of the whole network, as in the published tables; otherwise each layer has the time of all its own passes.
    """
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    rows = [(number, line.split("|")) for number, line in lines if not line.startswith("#")]
    if len(rows) < 4 or [row[1][0] for row in rows[:3]] != ["Dataset", "Input", "Model"]:
        raise OracleError(f"{source} is no layer table: it must begin with Dataset|, Input| and Model|")
    (_, dataset), (at, data), (_, model) = rows[:3]
    samples, *_ = _shape(data[1], f"{source}, line {at}")
    layers: list[Layer] = []
    notes: list[str] = []
    times: list[float | None] = []
    for number, row in rows[3:]:
        layer, seconds = _row(row, f"{source}, line {number}")
        layers.append(_without_misprint(layer, layers, notes, f"{source}, line {number}"))
        times.append(seconds)
    return checked(
        Network(
            name=model[1].strip(),
            dataset=dataset[1].strip(),
            samples=samples,
            notes=tuple(notes),
            layers=_timed(layers, times),
            seconds_per_sample=_whole(times),
        )
    )


def read_mask(path: Path, network: Network) -> tuple[bool, ...]:
    """Read a `.lc` file: for each layer of the network, in order, whether the strategy splits it (NAME|1 or NAME|0)."""
    mask = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, value = line.partition("|")
        if value.strip() not in ("0", "1"):
            raise OracleError(f"{path}, line {number}: {line!r} must be NAME|0 or NAME|1")
        mask.append((name.split()[-1] if name.split() else "", value.strip() == "1"))
    if len(mask) != len(network.layers):
        raise OracleError(f"{path} has {len(mask)} layers, and {network.name} has {len(network.layers)}")
    for position, ((name, _), layer) in enumerate(zip(mask, network.layers, strict=True)):
        if name != layer.name:
            raise OracleError(f"{path} has {name!r} where {network.name} has layer {position}, {layer.name!r}")
    return tuple(split for _, split in mask)


def _row(row: list[str], where: str) -> tuple[Layer, float | None]:
    if len(row) < 4:
        raise OracleError(f"{where}: {'|'.join(row)!r} must be NAME|input|weight|output|seconds")
    name = row[0].strip()
    layer = Layer(
        name=name,
        kind=kind_of(name),
        input=_shape(row[1], where),
        weight=_shape(row[2], where),
        output=_shape(row[3], where),
    )
    try:
        return layer, float(row[4]) if len(row) > 4 and row[4].strip() else None
    except ValueError:
        raise OracleError(f"{where}: {row[4]!r} is no time in seconds") from None


def _shape(text: str, where: str) -> Shape:
    try:
        return tuple(int(size) for size in text.strip().split("x"))
    except ValueError:
        raise OracleError(f"{where}: {text!r} must be whole numbers with x between them") from None


def _without_misprint(layer: Layer, before: list[Layer], notes: list[str], where: str) -> Layer:
    """An element-wise layer keeps its shape: if its output continues the chain, another input is a misprint.

    The published COSMOFLOW.net_256 has one.
    """
    if layer.kind not in ELEMENTWISE or layer.input == layer.output or not before or before[-1].output != layer.output:
        return layer
    notes.append(f"{where}: {layer.name} has the input {layer.input}, read as its output {layer.output}")
    return msgspec.structs.replace(layer, input=layer.output)


def _whole(times: list[float | None]) -> float | None:
    """The time of the whole network, if the table has only that one."""
    above = [seconds for seconds in times if seconds]
    return above[0] if len(above) == 1 else None


def _timed(layers: list[Layer], times: list[float | None]) -> tuple[Layer, ...]:
    """The layers with the times that the table has for them; backward takes two thirds."""
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
