"""The contract of a trigger, and the base classes of triggers that watch the weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar

import msgspec
import numpy as np
from msgspec import Meta

from hybridps.memory import Layout

AtLeastOne = Annotated[int, Meta(ge=1, le=1 << 53)]
NotNegative = Annotated[float, Meta(ge=0, le=1e300)]


class State(ABC):
    """Decides when one table communicates; kept by the leader, or by every rank if the step alone decides.

    It decides on each part of the table separately. Nothing is due in step 0, where all groups have the same weights.
    """

    def __init__(self, edges: np.ndarray) -> None:
        self.edges = edges
        """Part k is elements `edges[k]:edges[k + 1]` of the flat weights."""
        self.tau = 0
        """If the trigger decides ahead: the number of steps from the last exchange to the next one."""
        self.fired = np.zeros(edges.size - 1, bool)
        """Which parts the last `due` found due. `sent` refers to these parts; the caller may change them in between."""
        self.change = float("nan")
        """The relative change of all weights that the last `due` measured; nan if it measured nothing."""

    @abstractmethod
    def due(self, step: int, weights: np.ndarray) -> bool:
        """Return whether any part communicates before the local update of this step (0, 1, ...). `weights`: flat."""

    def measure(self, step: int, weights: np.ndarray) -> None:
        """Measure `change` and mark all parts as due, in a step that was chosen in advance."""
        self.due(step, weights)
        self.fired[:] = True

    @abstractmethod
    def sent(
        self, step: int, weights: np.ndarray, nbytes: int = 0, seconds: float = 0.0, began_here: bool = True
    ) -> None:
        """Note that the parts in `fired` were exchanged, and that `weights` are the result.

        `nbytes`: the payload that this group sent. `seconds`: how long the exchange took. `began_here`: whether this
        group began it; otherwise the group has answered another one.
        """


class Trigger(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base class of triggers: a record, equal on all ranks."""

    by_step: ClassVar[bool] = False
    """Whether the step alone decides, so that all ranks can decide without communication."""

    decides_ahead: ClassVar[bool] = False
    """Whether an exchange can decide when a later one is due. The state then has the steps until it in `tau`."""

    def may_be_due(self, step: int) -> bool:
        """Return whether any table can be due in this step. The result is the same on all ranks."""
        return step > 0

    def edges(self, layout: Layout) -> np.ndarray:
        """Return the edges (int64) of the parts that are decided on separately: their beginnings, and the last end."""
        return np.array([0, layout.length], np.int64)

    def start(self, layout: Layout, weights: np.ndarray) -> State:
        """Make the state of a table. `weights`: flat, of the layout's length and dtype, the same in all groups."""
        raise NotImplementedError


class Watching(Trigger, frozen=True, kw_only=True):
    """Base class of triggers that watch the weights."""

    silence: AtLeastOne | None = None
    """The number of steps after which a part communicates in any case. None: no bound."""

    check: AtLeastOne = 1
    """The period, in steps, at which the weights are examined."""

    def may_be_due(self, step: int) -> bool:
        return step > 0 and step % self.check == 0


class WatchingState(State):
    """Base class of the states of such triggers. It has the bound on silence."""

    def __init__(self, trigger: Watching, edges: np.ndarray) -> None:
        super().__init__(edges)
        self._silence = trigger.silence
        self._may_be_due = trigger.may_be_due
        self._sent_at = np.zeros(edges.size - 1, np.int64)
        """The step of each part's last exchange."""

    def due(self, step: int, weights: np.ndarray) -> bool:
        if not self._may_be_due(step):
            return False
        self._look(step, weights)
        if self._silence is not None:
            np.logical_or(self.fired, step - self._sent_at >= self._silence, out=self.fired)
        return bool(self.fired.any())

    def sent(
        self, step: int, weights: np.ndarray, nbytes: int = 0, seconds: float = 0.0, began_here: bool = True
    ) -> None:
        self._refer(step, weights, nbytes, began_here)
        self._sent_at[self.fired] = step

    @abstractmethod
    def _look(self, step: int, weights: np.ndarray) -> None:
        """Set `fired` from the current weights."""

    @abstractmethod
    def _refer(self, step: int, weights: np.ndarray, nbytes: int, began_here: bool) -> None:
        """Compare the parts in `fired` with these weights from now on. Arguments as in `sent`."""


def runs(fired: np.ndarray, edges: np.ndarray) -> list[tuple[int, int]]:
    """Return the spans of the parts in `fired`. Adjacent parts are merged into one span.

    >>> runs(np.array([1, 1, 0, 1], bool), np.array([0, 4, 8, 12, 14]))
    [(0, 8), (12, 14)]
    """
    padded = np.concatenate(([0], fired.astype(np.int8), [0]))
    turns = np.flatnonzero(np.diff(padded)).reshape(-1, 2)
    spans = [(int(edges[first]), int(edges[last])) for first, last in turns]
    return [(start, stop) for start, stop in spans if start < stop]
