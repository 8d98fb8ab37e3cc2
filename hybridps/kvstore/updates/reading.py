"""Reading a file of optimizer states on several workers: all of them get its contents, or all raise an error."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hybridps.algorithms import Algorithm
from hybridps.memory import Layout
from hybridps.tensor_collectives import Tensor

PART_BYTES = 64 << 20
"""How much of a file travels at a time. It is small, so that the servers need little memory for it."""

Call = Callable[[str, Callable[[], Any]], Any]
"""Does named work that communicates, as `Schedule.call`."""

CALL = "reading optimizer states"


def read_together(path: Path, worker: int, algorithm: Algorithm, call: Call, table: str | None) -> tuple[bytes, bool]:
    """Return the contents of the first worker's file, on all workers; of this worker's own file if `table` is None.

    All workers call this. `table` is a name that was not used before. A group that comes late gets its leader's file
    instead of the first worker's. The second result says whether this is such a group. Raises OSError, on all workers
    of all groups, if the first worker cannot read its file; if `table` is None, on all workers of the group in which
    one cannot.
    """
    group = algorithm.levels.group
    reads, is_late = table is None or group.rank == 0, False
    problem, content = _read(path, worker) if reads else (b"", b"")
    if table is None:
        problems = call(CALL, lambda: group.allgather_bytes(problem))
    else:
        told, is_late = call(CALL, lambda: _of_first(algorithm, table, problem + b"\n" + content))
        *problems, content = told.split(b"\n", 1)
    for each in filter(None, problems):
        raise OSError(*json.loads(each))
    return content, is_late


def _read(path: Path, worker: int) -> tuple[bytes, bytes]:
    """Return the arguments of OSError as JSON in one line, if a file cannot be read, and its contents otherwise."""
    try:
        return b"", path.read_bytes()
    except OSError as error:
        why = f"worker {worker} cannot read it: {error.strerror}"
        return json.dumps([error.errno or errno.EIO, why, str(path)]).encode(), b""


def _of_first(algorithm: Algorithm, table: str, given: bytes) -> tuple[bytes, bool]:
    """Return what the first worker gives, or the own leader in a group that comes late, and whether this one does.

    On the communication thread. The others may have read no states, or the states of another time.
    """
    size = np.array([len(given)])
    is_late = algorithm.tier.comes_late or _share_(algorithm, f"{table}.size", size)
    words = np.zeros(0 if is_late else -(-int(size[0]) // size.itemsize), size.dtype)
    own = np.frombuffer(given, np.uint8)[: words.nbytes]
    words.view(np.uint8)[: len(own)] = own
    step = PART_BYTES // size.itemsize
    for start in range(0, len(words), step):
        is_late = is_late or _share_(algorithm, f"{table}.{start}", words[start : start + step])
    if is_late:
        return algorithm.levels.group.allgather_bytes(given)[0], True
    return words.tobytes()[: int(size[0])], False


def _share_(algorithm: Algorithm, table: str, values: np.ndarray) -> bool:
    """Replace the values by the first worker's. Return whether this group came too late for that."""
    layout = Layout.of(values.dtype.name, {"states": values.shape})
    flat = np.resize(values, layout.length)
    is_late = algorithm.initialise(table, layout, Tensor([flat]))
    values[:] = flat[: values.size]
    return is_late
