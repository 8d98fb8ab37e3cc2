"""A scheduler or a server of MXNet's KVStore: `python -m hybridps.kvstore.ps_lite.server ROLE`.

ROLE is `scheduler` or `server`. The variables DMLC_* tell where the scheduler is. This is MXNet's own server, except
for the commands of groups: they are text that is decoded and checked, where MXNet would unpickle an optimizer.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import mxnet as mx
import numpy as np
from mxnet.kvstore.kvstore_server import KVStoreServer
from mxnet.ndarray import NDArray

from hybridps.kvstore.arrays import memory_of
from hybridps.kvstore.ps_lite.table import Assignment
from hybridps.memory import keep_freed_memory
from hybridps.ps.rules import apply_, warm_up


@contextmanager
def _or_end() -> Iterator[None]:
    """End the process on an exception: MXNet would continue with values that are missing."""
    try:
        yield
    except BaseException:
        traceback.print_exc()
        os._exit(1)


class Server(KVStoreServer):
    """Serves until its process is ended. An error ends the process, and so the whole tier.

    MXNet passes a key, the value that was pushed to it and its stored value. A value that is pushed to a centre
    replaces it. A value that is pushed to an answer goes through the rule, which updates the centre and writes the
    answer. A group that pushes and pulls in one message gets exactly that answer, as no other group comes between: with
    Elastic, both sides use the same d. Chunks that MXNet has split over its servers are computed part by part.
    """

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self._assignments: list[Assignment] = []
        self._centres: dict[int, tuple[NDArray, np.ndarray]] = {}
        self._states: dict[int, list[np.ndarray]] = {}
        self._steps: dict[int, int] = {}

    def _controller(self) -> Callable[[int, bytes, int | None], None]:
        return lambda _, body, __: self._assign(body)

    @_or_end()
    def _assign(self, body: bytes) -> None:
        """Take an assignment. Every group sends it, and the first one counts."""
        assignment = msgspec.json.decode(body, type=Assignment)
        if not self._assignments:  # MXNet takes no updater before it serves
            self.kvstore._set_updater(self._update)
        if all(assignment.centres != other.centres for other in self._assignments):
            warm_up(assignment.rule, "float32")
            self._assignments.append(assignment)

    @_or_end()
    def _update(self, key: int, pushed: NDArray, stored: NDArray) -> None:
        assignment = next(one for one in self._assignments if one.centres <= key < one.end)
        values, answer = memory_of(pushed), memory_of(stored)
        if key < assignment.answers:
            np.copyto(answer, values)
            self._centres[key] = stored, answer  # the store's own memory, for the rule
            return
        step = self._steps[key] = self._steps.get(key, 0) + 1
        if step == 1:
            self._states[key] = [np.zeros_like(answer) for _ in range(assignment.rule.states)]
        _, centre = self._centres[key - assignment.answers + assignment.centres]
        contributions = assignment.values
        apply_(assignment.rule, [values], [answer], centre, self._states[key], step=step, contributions=contributions)


def main(role: str) -> None:
    """Serve in this role until the process is ended."""
    keep_freed_memory()
    os.environ["DMLC_ROLE"] = role  # not before: with it, `import mxnet` serves and never returns
    Server(mx.kv.create("dist")).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
