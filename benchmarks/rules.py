"""Rules of a server on one thread: fused in one pass, or sum and update separately in NumPy. See docs/benchmarks.md.

python -m benchmarks.rules --groups 2 --json rules.json
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import typer

from benchmarks.cases import parse_sizes, resnet50_tensors
from benchmarks.results import describe_hardware
from hybridps.memory import private_memory
from hybridps.ps.rules import SGD, Adam, Elastic, Mean, Momentum, Nesterov, Outer, Rule, Sum, apply_, warm_up

RULES: dict[str, Rule] = {
    "sum": Sum(),
    "mean": Mean(),
    "sgd": SGD(rate=1e-3, weight_decay=1e-4),
    "momentum": Momentum(rate=1e-3, weight_decay=1e-4),
    "nesterov": Nesterov(rate=1e-3, weight_decay=1e-4),
    "adam": Adam(weight_decay=1e-4),
    "elastic": Elastic(0.45),
    "outer": Outer(),
}

Arrays = Sequence[np.ndarray]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def rules(
    groups: Annotated[int, typer.Option(min=1, help="Groups whose values make a round.")] = 2,
    size: Annotated[str, typer.Option(help="Bytes of the parameters: 16M. Default: those of ResNet-50.")] = "",
    chunk: Annotated[str, typer.Option(help="Bytes of a chunk.")] = "1M",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the result is their median.")] = 9,
    json_path: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the results here.")] = None,
) -> None:
    """Measure the ways, alternating, and print medians in milliseconds.

    `numpy` sums and then updates the whole buffer, `numpy_chunks` chunk by chunk.
    """
    length = parse_sizes(size)[0] // 4 if size else sum(resnet50_tensors())
    step = parse_sizes(chunk)[0] // 4
    results = []
    for name, rule in RULES.items():
        seconds = measure(rule, 1 if rule.separate else groups, length, step, rounds)
        ratios = {way: taken / seconds["fused"] for way, taken in seconds.items() if way != "fused"}
        sizes = {"bytes": 4 * length, "groups": groups, "chunk_bytes": 4 * step}
        results.append(
            {"case": name, **sizes, "seconds": seconds, "ratios": ratios, "rounds": rounds}
            | {"hardware": describe_hardware()}
        )
        others = "".join(f"   {way} {1e3 * seconds[way]:6.1f} ({ratio:.2f}x)" for way, ratio in ratios.items())
        print(f"{name:9} fused {1e3 * seconds['fused']:6.1f}{others}")
    if json_path:
        json_path.write_text(json.dumps(results, indent=1) + "\n")


def measure(rule: Rule, groups: int, length: int, step: int, rounds: int) -> dict[str, float]:
    """Return the median seconds of a round over all chunks, with an answer for every group.

    Raises RuntimeError if bits differ.
    """
    servers = {
        "fused": _Server(rule, groups, length, step, fused=True),
        "numpy": _Server(rule, groups, length, length, fused=False),
        "numpy_chunks": _Server(rule, groups, length, step, fused=False),
    }
    seconds: dict[str, list[float]] = {name: [] for name in servers}
    for _ in range(rounds):
        for name, server in servers.items():
            seconds[name].append(server.round())
            if not np.array_equal(server.centre, servers["fused"].centre):
                raise RuntimeError(f"{type(rule).__name__}: {name} differs from fused in its bits")
    return {name: median(times) for name, times in seconds.items()}


class _Server:
    """The memory of a table, and one way to process it in parts of `step` elements."""

    def __init__(self, rule: Rule, groups: int, length: int, step: int, fused: bool) -> None:
        self._rule = rule
        self._step = step
        self._work = self._fused if fused else self._apart
        self._values = [_zeros(length) for _ in range(groups)]
        self.centre = _zeros(length)
        self._state = [_zeros(length) for _ in range(rule.states)]
        self._spare = [_zeros(0 if fused else step) for _ in range(3)]
        self._rounds = 0
        self._whole_bytes = 4 * length
        warm_up(rule, "float32")

    def round(self) -> float:
        """Run a round, and return its seconds."""
        self._rounds += 1
        for number, values in enumerate(self._values):
            values[:] = np.float32(1 / (2 + number))
        begin = time.perf_counter()
        for start in range(0, len(self.centre), self._step):
            place = slice(start, start + self._step)
            values = [array[place] for array in self._values]
            self._work(values, self.centre[place], [array[place] for array in self._state])
        return time.perf_counter() - begin

    def _fused(self, values: Arrays, centre: np.ndarray, state: Arrays) -> None:
        numbers = {"step": self._rounds, "contributions": len(values), "whole_bytes": self._whole_bytes}
        apply_(self._rule, values, values, centre, state, **numbers, check_finite=True)

    def _apart(self, values: Arrays, centre: np.ndarray, state: Arrays) -> None:
        """Sum, update and copy to all groups, one after the other, with NumPy, in existing memory, without clipping."""
        total, *spare = (array[: len(centre)] for array in self._spare)
        np.copyto(total, values[0])
        for value in values[1:]:
            np.add(total, value, out=total)
        numbers = tuple(map(np.float32, self._rule.numbers(self._rounds, len(values))))
        UPDATES[type(self._rule)](total, centre, *state, *spare, *numbers)
        for value in values:
            np.copyto(value, total)


def _sgd(total, w, a, b, rate, rescale, decay, clip):  # type: ignore[no-untyped-def]
    _gradient(total, w, a, b, rescale, decay)
    np.subtract(w, np.multiply(a, rate, out=a), out=w)
    np.copyto(total, w)


def _momentum(total, w, v, a, b, rate, rescale, decay, clip, momentum):  # type: ignore[no-untyped-def]
    _gradient(total, w, a, b, rescale, decay)
    np.subtract(np.multiply(v, momentum, out=v), np.multiply(a, rate, out=a), out=v)
    np.add(w, v, out=w)
    np.copyto(total, w)


def _nesterov(total, w, v, a, b, rate, rescale, decay, clip, momentum):  # type: ignore[no-untyped-def]
    _gradient(total, w, a, b, rescale, decay)
    np.multiply(a, rate, out=a)
    np.multiply(v, momentum, out=v)
    np.multiply(np.subtract(v, a, out=b), momentum, out=b)
    np.add(w, np.subtract(b, a, out=b), out=w)
    _gradient(total, w, a, b, rescale, decay)
    np.subtract(v, np.multiply(a, rate, out=a), out=v)
    np.copyto(total, w)


def _adam(  # type: ignore[no-untyped-def]
    total, w, m, v, a, b, rate, rescale, decay, clip, beta1, beta2, rest1, rest2, epsilon
):
    _gradient(total, w, a, b, rescale, decay)
    np.add(np.multiply(m, beta1, out=m), np.multiply(a, rest1, out=b), out=m)
    np.multiply(np.multiply(a, rest2, out=b), a, out=b)
    np.add(np.multiply(v, beta2, out=v), b, out=v)
    np.add(np.sqrt(v, out=b), epsilon, out=b)
    np.subtract(w, np.divide(np.multiply(m, rate, out=a), b, out=a), out=w)
    np.copyto(total, w)


def _sum(total, centre, a, b, groups):  # type: ignore[no-untyped-def]
    np.copyto(centre, total)


def _mean(total, centre, a, b, groups):  # type: ignore[no-untyped-def]
    np.copyto(centre, np.divide(total, groups, out=total))


def _elastic(total, centre, a, b, alpha, groups):  # type: ignore[no-untyped-def]
    np.multiply(np.subtract(total, centre, out=total), alpha, out=total)
    np.add(centre, total, out=centre)


def _outer(total, centre, v, a, b, rate, momentum, groups):  # type: ignore[no-untyped-def]
    np.subtract(centre, np.divide(total, groups, out=a), out=a)
    np.add(np.multiply(v, momentum, out=v), a, out=v)
    np.add(a, np.multiply(v, momentum, out=b), out=a)
    np.subtract(centre, np.multiply(a, rate, out=a), out=centre)
    np.copyto(total, centre)


def _gradient(total, w, a, b, rescale, decay):  # type: ignore[no-untyped-def]
    np.add(np.multiply(total, rescale, out=a), np.multiply(w, decay, out=b), out=a)


UPDATES: dict[type, Callable[..., None]] = {
    Sum: _sum,
    Mean: _mean,
    SGD: _sgd,
    Momentum: _momentum,
    Nesterov: _nesterov,
    Adam: _adam,
    Elastic: _elastic,
    Outer: _outer,
}
"""The updates in NumPy, which allocate no temporary array."""


def _zeros(length: int) -> np.ndarray:
    """Return memory whose pages have been touched."""
    array = private_memory(4 * length).view(np.float32)
    array[:] = 0
    return array


if __name__ == "__main__":
    app()
