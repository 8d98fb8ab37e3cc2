"""Reading a file of optimizer states on several workers: all of them get its contents, or all raise an error."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np

from hybridps.algorithms import Algorithm
from hybridps.memory import Layout
from hybridps.step import Schedule
from hybridps.tensor_collectives import Tensor

PART_BYTES = 64 << 20
"""How much of a file travels at a time. It is small, so that the servers need little memory for it."""


def read_together(path: Path, worker: int, algorithm: Algorithm, schedule: Schedule, table: str | None) -> bytes:
    """Return the contents of the first worker's file, on all workers of all groups.

    All workers call this, with a `table` name that was not used before. Without one, or in a group that comes late, it
    is the file of the group's leader, and only the workers of the group call it. Raises OSError on all of these workers
    if that file cannot be read.
    """
    is_leader = algorithm.levels.group.rank == 0
    given = b"\n".join(_read(path, worker)) if is_leader else b""
    told: bytes = schedule.call("reading optimizer states", lambda: _of_first(algorithm, table, given))
    problem, content = told.split(b"\n", 1)
    if problem:
        raise OSError(*json.loads(problem))
    return content


def _read(path: Path, worker: int) -> tuple[bytes, bytes]:
    """Return the arguments of OSError as JSON in one line, if a file cannot be read, and its contents otherwise."""
    try:
        return b"", path.read_bytes()
    except OSError as error:
        why = f"worker {worker} cannot read it: {error.strerror}"
        return json.dumps([error.errno or errno.EIO, why, str(path)]).encode(), b""


def _of_first(algorithm: Algorithm, table: str | None, given: bytes) -> bytes:
    """Return what the first worker gives, or else the leader of the group. On the communication thread."""
    size = np.array([len(given)])
    if table is None or _share_(algorithm, f"{table}.size", size):
        return algorithm.levels.group.allgather_bytes(given)[0]
    words = np.zeros(-(-int(size[0]) // size.itemsize), size.dtype)
    own = np.frombuffer(given, np.uint8)[: words.nbytes]
    words.view(np.uint8)[: len(own)] = own
    step = PART_BYTES // size.itemsize
    for start in range(0, len(words), step):
        if _share_(algorithm, f"{table}.{start}", words[start : start + step]):
            return algorithm.levels.group.allgather_bytes(given)[0]
    return words.tobytes()[: int(size[0])]


def _share_(algorithm: Algorithm, table: str, values: np.ndarray) -> bool:
    """Replace the values by the first worker's. Return whether this group came too late for that."""
    layout = Layout.of(values.dtype.name, {"states": values.shape})
    flat = np.resize(values, layout.length)
    is_late = algorithm.initialise(table, layout, Tensor([flat]))
    values[:] = flat[: values.size]
    return is_late
