"""The contract of a trigger, and what those that watch the weights have in common."""

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
    """When one table communicates, as its leader sees it. Parts of the table are decided on one by one.

    Nothing is due in step 0: all groups have the same weights there.
    """

    def __init__(self, edges: np.ndarray) -> None:
        self.edges = edges
        """Part k is elements `edges[k]:edges[k + 1]` of the flat weights."""
        self.tau = 0
        """Where the trigger decides ahead: steps from the last exchange to the next one."""
        self.fired = np.zeros(edges.size - 1, bool)
        """Which parts the last `due` found due. `sent` is about these; the caller may change them in between."""
        self.change = float("nan")
        """What the last `due` has measured: the relative change of all weights; nan if nothing was."""

    @abstractmethod
    def due(self, step: int, weights: np.ndarray) -> bool:
        """Whether any part communicates before the local update of this step (0, 1, ...). `weights`: flat."""

    def measure(self, step: int, weights: np.ndarray) -> None:
        """All parts communicate in this step, as it was decided before. `change` as after `due`."""
        self.due(step, weights)
        self.fired[:] = True

    @abstractmethod
    def sent(
        self, step: int, weights: np.ndarray, nbytes: int = 0, seconds: float = 0.0, began_here: bool = True
    ) -> None:
        """An exchange of the parts in `fired` has left these weights.

        `nbytes`: payload that this group has sent for it. `seconds`: that it took. `began_here`: whether this group
        began it, rather than another one that it has answered.
        """


class Trigger(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base class: a record, equal on all ranks."""

    by_step: ClassVar[bool] = False
    """Whether the step alone decides, so that all ranks know without being told."""

    decides_ahead: ClassVar[bool] = False
    """Whether an exchange can decide when a later one is due: the state has the steps until then, `tau`."""

    def may_be_due(self, step: int) -> bool:
        """Whether a table can be due in this step at all. The same on all ranks."""
        return step > 0

    def edges(self, layout: Layout) -> np.ndarray:
        """Where the parts begin that are decided on one by one, and where the last one ends (int64)."""
        return np.array([0, layout.length], np.int64)

    def start(self, layout: Layout, weights: np.ndarray) -> State:
        """The state of a table. `weights`: flat, of the layout's length and dtype; all groups have the same."""
        raise NotImplementedError


class Watching(Trigger, frozen=True, kw_only=True):
    """Base class of triggers that watch the weights."""

    silence: AtLeastOne | None = None
    """Steps after which a part communicates in any case. None: no bound."""

    check: AtLeastOne = 1
    """The weights are looked at in every so many steps."""

    def may_be_due(self, step: int) -> bool:
        return step > 0 and step % self.check == 0


class WatchingState(State):
    """Base class of their states: the bound on silence, and the reference that weights are compared with."""

    def __init__(self, trigger: Watching, edges: np.ndarray) -> None:
        super().__init__(edges)
        self._silence = trigger.silence
        self._may_be_due = trigger.may_be_due
        self._sent_at = np.zeros(edges.size - 1, np.int64)
        """Step of each part's last exchange."""

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
        """Set `fired` by what the weights are now."""

    @abstractmethod
    def _refer(self, step: int, weights: np.ndarray, nbytes: int, began_here: bool) -> None:
        """From now on the parts in `fired` are compared with these weights. As `sent`."""


def runs(fired: np.ndarray, edges: np.ndarray) -> list[tuple[int, int]]:
    """The spans of the parts in `fired`, as few as there can be; parts that follow each other make one.

    >>> runs(np.array([1, 1, 0, 1], bool), np.array([0, 4, 8, 12, 14]))
    [(0, 8), (12, 14)]
    """
    padded = np.concatenate(([0], fired.astype(np.int8), [0]))
    turns = np.flatnonzero(np.diff(padded)).reshape(-1, 2)
    spans = [(int(edges[first]), int(edges[last])) for first, last in turns]
    return [(start, stop) for start, stop in spans if start < stop]
