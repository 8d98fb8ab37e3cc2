"""Turns the options of the oracle's commands into networks, machines and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hybridps.errors import HybridPSError, OracleError
from hybridps.oracle.machines import SETTINGS, machine_of, with_settings
from hybridps.oracle.networks import Network, built_in, read_mask, read_network
from hybridps.oracle.networks.files import read_text
from hybridps.oracle.paradl import Work
from hybridps.oracle.ssgd.trace import TracedLayer

HYBRID_SETTINGS = ("groups", "servers", "tau", "chunk_bytes", "tenants", "racks", "traffic")
OTHER_SETTINGS = ("samples", "segments", "bytes_per_item", *HYBRID_SETTINGS)


def network_of(name: str, shape: str) -> Network:
    """Return a network by name: of a file, a built-in one, or one of Gluon's model zoo (for samples of `shape`)."""
    path = Path(name)
    if path.is_file():
        return _from_symbol(path, shape) if _is_symbol(path) else read_network(path)
    try:
        return built_in(name)
    except OracleError as unknown:
        return _from_zoo(name, shape, unknown)


def work_of(network: Network, machine: str, mask: Path | None, settings: dict[str, float]) -> Work:
    """Return the network on the machine, with the settings that concern either."""
    if "samples" in settings:
        network = msgspec.structs.replace(network, samples=int(settings["samples"]))
    known = {name: value for name, value in settings.items() if name in SETTINGS}
    return Work(
        network,
        with_settings(machine_of(machine), known),
        read_mask(mask, network) if mask else None,
        int(settings.get("bytes_per_item", 4)),
    )


def settings_of(pairs: Sequence[str]) -> dict[str, float]:
    """Return the numbers of NAME=NUMBER pairs. Raises OracleError for another form, an unknown name or a bad number."""
    settings = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in (*SETTINGS, *OTHER_SETTINGS):
            raise OracleError(f"unknown setting {name!r}: use one of {', '.join((*SETTINGS, *OTHER_SETTINGS))}")
        try:
            settings[name] = float(value)
        except ValueError:
            raise OracleError(f"the setting {pair!r} must be NAME=NUMBER") from None
        if not math.isfinite(settings[name]):
            raise OracleError(f"the setting {pair!r} must be a finite number")
    for name in ("samples", "segments", "bytes_per_item", "groups", "tau"):
        if settings.get(name, 1) < 1:
            raise OracleError(f"the setting {name}={settings[name]:g} must be 1 or more")
    return settings


def shape_of(text: str) -> tuple[int, ...]:
    """Return the shape of a sample from text such as 3x224x224. Raises OracleError."""
    try:
        return tuple(int(size) for size in text.replace(",", "x").split("x"))
    except ValueError:
        raise OracleError(f"the shape {text!r} must be whole numbers with x between them, e.g. 3x224x224") from None


def _from_zoo(name: str, shape: str, unknown: OracleError) -> Network:
    try:
        from hybridps.calibrate.mxnet_networks import from_zoo
    except (ImportError, HybridPSError):
        raise OracleError(f"{unknown}, a file, or with MXNet (pip install 'hybridps[mxnet]') its model zoo") from None
    try:
        return from_zoo(name, shape_of(shape))
    except OracleError as error:
        raise OracleError(f"{unknown}, or a file; {error}") from None


def _is_symbol(path: Path) -> bool:
    text = read_text(path)
    return text.lstrip().startswith("{") and '"arg_nodes"' in text


def _from_symbol(path: Path, shape: str) -> Network:
    try:
        from hybridps.calibrate.mxnet_networks import from_file
    except (ImportError, HybridPSError) as error:
        raise OracleError(f"{path} is an MXNet symbol file, but MXNet cannot be used here: {error}") from None
    return from_file(path, shape_of(shape))


def layers_of_trace(path: Path) -> list[TracedLayer]:
    """Return the layers of a traced run: its folder, a file of `hybridps trace`, or a CSV file. Raises OracleError."""
    from hybridps.oracle.ssgd.recorded import read_chrome_trace, recorded_layers
    from hybridps.oracle.ssgd.trace import read_trace as read_csv
    from hybridps.tracing import chrome_events, on_one_clock, read_trace

    if path.is_dir():
        return recorded_layers(chrome_events(on_one_clock(read_trace(path))), f"the run {path}")
    if path.suffix == ".json":
        return recorded_layers(read_chrome_trace(path), str(path))
    return read_csv(path)
