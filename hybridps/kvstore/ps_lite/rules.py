"""The rules of hybridps as an optimizer of MXNet, for its servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from hybridps.kvstore.arrays import memory_of
from hybridps.ps.rules import AnyRule, apply_


class Assignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the servers do with the chunks `first` to `last - 1`: the rule, and how many values make a round."""

    first: int
    last: int
    rule: AnyRule
    values: int


class Keys(NamedTuple):
    """The keys of chunks. Those of a chunk are equal modulo `servers`, so that MXNet gives both to one server.

    >>> [(Keys(3).centre(chunk), Keys(3).answer(chunk)) for chunk in range(5)]
    [(0, 3), (1, 4), (2, 5), (6, 9), (7, 10)]
    """

    servers: int

    def centre(self, chunk: int) -> int:
        """The key that a chunk's centre is stored under: pushed once, with the initial values, and pulled."""
        return chunk // self.servers * 2 * self.servers + chunk % self.servers

    def answer(self, chunk: int) -> int:
        """The key that groups push their values for a chunk to, and whose stored value is the rule's answer."""
        return self.centre(chunk) + self.servers

    def chunk(self, key: int) -> int:
        """The chunk of either key."""
        return key // (2 * self.servers) * self.servers + key % self.servers


@mx.optimizer.Optimizer.register
class HybridPSRules(mx.optimizer.Optimizer):
    """Rules on keys that come in pairs: one for the centre of a chunk, one for the answer.

    MXNet hands the optimizer a key, what was pushed to it and what is stored under it. What is pushed to a centre takes
    its place. What is pushed to an answer goes through the rule, which updates the centre and leaves the answer, and a
    group that pushes and pulls in one message gets that very answer: the same d on both sides with Elastic, as no
    other group comes between. Chunks that MXNet has cut over its servers are computed part by part.
    """

    def __init__(self, servers: int) -> None:
        super().__init__()
        self._keys = Keys(servers)
        self._assignments: list[Assignment] = []
        self._centres: dict[int, tuple[NDArray, np.ndarray]] = {}
        self._steps: dict[int, int] = {}

    def assign(self, assignment: Assignment) -> None:
        """Say what is done with some chunks. Every group says it; the first one counts."""
        if all(assignment.first != other.first for other in self._assignments):
            self._assignments.append(assignment)

    def create_state_multi_precision(self, index: int, weight: NDArray) -> Sequence[np.ndarray]:
        """What the rule of an answer's key keeps beside the centre; nothing for a centre's key."""
        chunk = self._keys.chunk(index)
        states = 0 if index == self._keys.centre(chunk) else self._assignment_of(chunk).rule.states
        return [np.zeros(weight.shape, weight.dtype) for _ in range(states)]

    def update_multi_precision(self, index: int, weight: NDArray, grad: NDArray, state: Sequence[np.ndarray]) -> None:
        """Do with what was pushed (`grad`) what the key says; `weight` is what is stored under it."""
        chunk, stored, pushed = self._keys.chunk(index), memory_of(weight), memory_of(grad)
        if index == self._keys.centre(chunk):
            np.copyto(stored, pushed)
            self._centres[chunk] = weight, stored  # the store's own memory, for the rule
            return
        assignment = self._assignment_of(chunk)
        step = self._steps[chunk] = self._steps.get(chunk, 0) + 1
        _, centre = self._centres[chunk]
        apply_(assignment.rule, [pushed], [stored], centre, state, step=step, contributions=assignment.values)

    def _assignment_of(self, chunk: int) -> Assignment:
        return next(one for one in self._assignments if one.first <= chunk < one.last)
