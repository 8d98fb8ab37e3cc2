"""Reads and replacements of whole arrays of a chunk: the centre, and the states of its rule. Only the loop uses it."""

from __future__ import annotations

import numpy as np

from hybridps.ps.chunk_map import Span
from hybridps.ps.model import Answer, Origin, Task
from hybridps.ps.server.admission import Budget
from hybridps.ps.server.chunks.exchange import ANSWER_BYTES, error_answer
from hybridps.ps.server.chunks.memory import ChunkMemory


class ChunkArrays:
    """The arrays of one chunk, `span` of a table. `memory` belongs to the worker thread `owner`."""

    def __init__(self, memory: ChunkMemory, span: Span, owner: int, budget: Budget) -> None:
        self._memory = memory
        self._span = span
        self._owner = owner
        self._budget = budget
        self._puts: dict[tuple[int, int], int] = {}
        """For each group and epoch, the last request that replaced an array."""

    def restore(self) -> None:
        """Restore what was replaced before this process began."""
        self._puts = dict(self._memory.journal.puts_of())

    def pull(self, origin: Origin, array: int = 0) -> Task:
        """Return a task that answers with the current centre, or with a state of the rule."""
        memory = self._memory.arrays[array]
        values = np.empty(self._span.length, memory.dtype)
        self._budget.lend(values, ANSWER_BYTES)
        done = Answer(origin, self._span.chunk, values)
        return Task(self._owner, lambda: np.copyto(values, memory), lambda result: [error_answer(done, result)])

    def put(self, origin: Origin, array: int, values: np.ndarray) -> Task:
        """Return a task that replaces the centre or a state of the rule. A copy of an old message changes nothing."""
        done, life = Answer(origin, self._span.chunk), (origin.group, origin.epoch)
        if origin.request <= self._puts.get(life, -1):
            return Task(self._owner, lambda: None, lambda result: [done])
        self._puts = {other: request for other, request in self._puts.items() if other[0] != origin.group}
        self._puts[life] = origin.request

        def run() -> None:
            self._memory.put_(array, values)
            self._memory.journal.put(*life, origin.request)

        return Task(self._owner, run, lambda result: [error_answer(done, result)])
