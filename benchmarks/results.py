"""The results of the benchmark as JSON and as a table: medians and ratios for each case. Pure functions."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cases import Case
from benchmarks.task import Answer, Task
from hybridps.links import Links, bits_per_second

Result = dict[str, Any]

OURS = "hybridps"
LIMITS = ("memory_limit", "link_limit")
WIRE_BYTES = {"": 4, "float16": 2}
"""The size of an element between nodes, by `wire`."""


def make_results(task: Task, answer: Answer, links: Links | None, hardware: dict[str, Any]) -> list[Result]:
    """Return one object for each case of the task."""
    shared = {
        "ranks": len(task.node_of_rank),
        "nodes": len(set(task.node_of_rank)),
        "vectors": task.vectors,
    }
    extras = {
        "rounds": task.rounds,
        "link_rate": links.rate if links else None,
        "wire": task.wire or None,
        "absent": answer.absent,
        "versions": answer.versions,
        "hardware": hardware,
    }
    results = []
    for case, measured in zip(task.cases, answer.seconds, strict=True):
        seconds = {name: median(rounds) for name, rounds in measured.items()}
        if links:
            seconds["link_limit"] = link_limit(case, links, task.wire)
        named = {"case": case.name, "bytes": case.nbytes}
        fastest = {name: min(rounds) for name, rounds in measured.items()}
        results.append(named | shared | {"seconds": seconds, "ratios": ratios(seconds), "fastest": fastest} | extras)
    return results


def link_limit(case: Case, links: Links, wire: str) -> float:
    """Return the seconds in which a link carries what a node must send: 2 (p - 1) / p of the bytes, for p nodes."""
    nbytes = case.length * WIRE_BYTES[wire]
    return 2 * (links.nodes - 1) / links.nodes * nbytes * 8 / bits_per_second(links.rate)


def ratios(seconds: dict[str, float]) -> dict[str, float]:
    """Return the times of the contenders relative to hybridps, and that of hybridps relative to the limits."""
    ours = seconds[OURS]
    others = {name: taken / ours for name, taken in seconds.items() if name not in (OURS, *LIMITS)}
    return others | {f"{OURS}_over_{name}": ours / seconds[name] for name in LIMITS if seconds.get(name)}


def describe_hardware() -> dict[str, Any]:
    """Return the name of the processor, and the number of its cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {"processor": models[0] if models else platform.processor(), "cores": os.cpu_count()}


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of those packages that are installed."""
    names = ("hybridps", "numpy", "mpi4py", "numba", "torch", "mxnet", "horovod")
    found = {"python": platform.python_version()}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def table(results: Sequence[Result]) -> list[list[str]]:
    """Return rows of text, the heading first: milliseconds, and the ratio to hybridps."""
    names = list(dict.fromkeys(name for result in results for name in result["seconds"]))
    rows = [["case", "size", *names]]
    for result in results:
        cells = [_cell(name, result["seconds"]) for name in names]
        rows.append([result["case"], size_text(result["bytes"]), *cells])
    return rows


def _cell(name: str, seconds: dict[str, float]) -> str:
    if name not in seconds:
        return "-"
    text = f"{1e3 * seconds[name]:.3g}"
    return text if name == OURS else f"{text} ({seconds[name] / seconds[OURS]:.2f}x)"


def size_text(nbytes: int) -> str:
    """Return a number of bytes as text: powers of two in units of 1024, others in units of 1000.

    >>> size_text(4096), size_text(102_400_000), size_text(100)
    ('4 KB', '102.4 MB', '100 B')
    """
    step = 1024 if nbytes & (nbytes - 1) == 0 else 1000
    for power, name in ((2, "MB"), (1, "KB")):
        if nbytes >= step**power:
            return f"{nbytes / step**power:.4g} {name}"
    return f"{nbytes} B"
