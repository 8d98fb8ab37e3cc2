"""The front end for NumPy: a model of arrays, trained without a framework."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from weakref import WeakSet

import numpy as np

from hybridps.algorithms import Algorithm
from hybridps.errors import HybridPSError
from hybridps.mpi_groups import Session
from hybridps.step.gradients import Gradients
from hybridps.step.job_context import JobContext
from hybridps.step.plan import KeySpec
from hybridps.step.schedule import Item, Schedule
from hybridps.step.weights import InitialValues, Weights
from hybridps.tensor_collectives import Levels

_in_use: WeakSet[Levels] = WeakSet()
"""The levels of the open models. One communication thread at a time may use them."""


class ArrayModel:
    """A model whose weights and gradients are NumPy arrays by key. A context manager.

    `weights`: this worker's initial values, of float16, float32 or float64; they are not changed. All workers make the
    same calls in the same order. A job has one such model at a time, which may have the arrays of several networks.
    """

    def __init__(self, algorithm: Algorithm, session: Session, weights: Mapping[str, np.ndarray]) -> None:
        """Wait until `self.weights` hold the first worker's initial values, or the centre if it existed already.

        Raises HybridPSError if another model of the job is open.
        """
        if algorithm.levels in _in_use:
            raise HybridPSError(
                "another ArrayModel of this job is open: close it first, or train the arrays of both in one model"
            )
        _in_use.add(algorithm.levels)
        context = JobContext.of(session)
        keys = {name: KeySpec(value.dtype.name, value.shape) for name, value in weights.items()}
        self._algorithm = algorithm
        self._session = session
        self._schedule = Schedule(algorithm.levels, context)
        self._schedule.pace.computes_before = True
        initial = InitialValues(self._schedule, algorithm, context, "initial")
        self._averaged = Weights(keys, self._schedule, algorithm, context, initial, "model")
        self._sums = Gradients(self._schedule, algorithm, context, initial, "model")
        self._sums.lay_out(keys)
        self.weights = self._averaged.views
        """The weights by key. Update them in place between two steps."""
        self.gradients = {name: self._sums.views(name)[0] for name in keys}
        """This worker's gradients by key. Fill them before `reduce`, which replaces them by sums over all workers."""
        self._initialise(weights, initial)

    def reduce(self) -> None:
        """Replace the gradients by their sums over all workers, and average the weights if that is due.

        Call this once per step, before the local update. Returns when both are done. Raises the error that has ended
        the communication, if there is one.
        """
        if self._averaged.may_be_due(self._sums.next_step):
            self._wait([self._averaged.average(self._sums.next_step)])
        self._session.steps = max(self._session.steps, self._sums.next_step + 1)
        self._sums.begin()
        self._wait([self._sums.push(name) for name in self.gradients])

    def close(self) -> None:
        """Drop this model's tables at the servers, and end the communication."""
        self._averaged.close()
        self._sums.close()
        self._schedule.close()
        _in_use.discard(self._algorithm.levels)

    def __enter__(self) -> ArrayModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()

    def _initialise(self, weights: Mapping[str, np.ndarray], initial: InitialValues) -> None:
        items = []
        for name, value in weights.items():
            self.weights[name][...] = value
            items.append(initial.fill(name, self.weights[name]))
        self._wait([*items, self._averaged.join()])

    def _wait(self, items: list[Item]) -> None:
        """Mark all these items as arrived, and wait until they are done."""
        if not items:
            return
        ended, left = threading.Event(), len(items)

        def release() -> None:
            nonlocal left
            left -= 1
            if not left:
                ended.set()

        for item in items:
            item(release)
        self._schedule.wait_for(ended)
