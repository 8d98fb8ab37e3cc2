"""Replays a measured trace of synchronous SGD with other ways to send the gradients."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hybridps.errors import OracleError
from hybridps.oracle.machines import Line, fit_cost
from hybridps.oracle.ssgd.dag import Iteration, Layer, exposed_communication_seconds, iteration_seconds
from hybridps.oracle.ssgd.merge import Message, all_in_one, merge_gradients

COLUMNS = ("layer", "parameters", "backward_us", "allreduce_us")
BYTES_PER_PARAMETER = 4


@dataclass(frozen=True)
class TracedLayer(Layer):
    """One line of a trace. `allreduce_seconds`: the time of an allreduce of this gradient alone."""

    allreduce_seconds: float = 0.0


class Replay(msgspec.Struct, frozen=True):
    """Milliseconds of one iteration, counting the backward pass and communication only; a and b of the assumed link."""

    naive_ms: float
    wfbp_ms: float
    exposed_ms: float
    single_message_ms: float
    merged_ms: float
    merged_groups: int
    a_us: float
    b_us_per_byte: float


def read_trace(path: Path) -> list[TracedLayer]:
    """Read the layers of a trace, in forward order. Raises OracleError with the number of the first bad line."""
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise OracleError(f"the trace {path} cannot be read: {error}") from None
    rows = csv.reader(text.splitlines())
    heading = [cell.strip() for cell in next(rows, [])]
    if tuple(heading) != COLUMNS:
        raise OracleError(f"{path}, line 1: the columns are {','.join(heading)[:80]!r}, expected {','.join(COLUMNS)!r}")
    layers = [_layer(row, f"{path}, line {rows.line_num}") for row in rows if any(cell.strip() for cell in row)]
    if not layers:
        raise OracleError(f"{path} has no layers: a line for each is expected after the heading")
    return layers


def fit_link(trace: Sequence[TracedLayer]) -> Line:
    """Fit a and b of an allreduce, a + b bytes, over all allreduces of the trace."""
    sent = [layer for layer in trace if layer.gradient_bytes or layer.allreduce_seconds]
    try:
        return fit_cost([layer.gradient_bytes for layer in sent], [layer.allreduce_seconds for layer in sent])
    except OracleError as error:
        raise OracleError(f"a and b cannot be fitted, give both: {error}") from None


def iterations(trace: Sequence[TracedLayer], link: Line) -> dict[str, tuple[Iteration, str]]:
    """Return the iteration for each way to send the gradients, and the variant of its graph.

    Messages layer by layer have the times of the trace; a single message and merged messages have those of `link`.
    """
    sizes = [layer.gradient_bytes for layer in trace]
    measured = [Message((number,), layer.allreduce_seconds) for number, layer in reversed(list(enumerate(trace)))]
    merged = merge_gradients([layer.backward_seconds for layer in trace], sizes, link.start_seconds, link)
    return {
        "naive": (Iteration(trace, measured), "naive"),
        "wfbp": (Iteration(trace, measured), "wait_free"),
        "single_message": (Iteration(trace, all_in_one(sizes, link)), "wait_free"),
        "merged": (Iteration(trace, merged), "wait_free"),
    }


def replay(trace: Sequence[TracedLayer], link: Line | None = None) -> Replay:
    """Replay a trace with `link`, or else with a link fitted to the trace."""
    link = link or fit_link(trace)
    ways = iterations(trace, link)
    milliseconds = {name: 1e3 * iteration_seconds(*way) for name, way in ways.items()}
    return Replay(
        naive_ms=milliseconds["naive"],
        wfbp_ms=milliseconds["wfbp"],
        exposed_ms=1e3 * exposed_communication_seconds(*ways["wfbp"]),
        single_message_ms=milliseconds["single_message"],
        merged_ms=milliseconds["merged"],
        merged_groups=len(ways["merged"][0].messages),
        a_us=1e6 * link.start_seconds,
        b_us_per_byte=1e6 * link.seconds_per_unit,
    )


def _layer(row: Sequence[str], where: str) -> TracedLayer:
    if len(row) != len(COLUMNS):
        raise OracleError(f"{where}: {len(row)} columns, expected {len(COLUMNS)}: {','.join(COLUMNS)}")
    parameters, backward_us, allreduce_us = (
        _number(text, name, where) for text, name in zip(row[1:], COLUMNS[1:], strict=True)
    )
    if not parameters.is_integer():
        raise OracleError(f"{where}: parameters {row[1].strip()} is not a whole number")
    return TracedLayer(
        row[0].strip(),
        1e-6 * backward_us,
        gradient_bytes=BYTES_PER_PARAMETER * parameters,
        allreduce_seconds=1e-6 * allreduce_us,
    )


def _number(text: str, name: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise OracleError(f"{where}: {name} is {text.strip()!r}, expected a number that is not negative")
    return value
