"""The roll: how many groups and workers the job has, and whether this group leaves it. All ranks agree on it."""

from __future__ import annotations

import threading
import time
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from hybridps.events import Counted
from hybridps.resuming import notice
from hybridps.step.job_context import JobContext
from hybridps.tensor_collectives import Levels

if TYPE_CHECKING:
    from hybridps.step.schedule import Schedule

LOOK_SECONDS = 0.5
"""The approximate time between two looks of the ranks of a group."""

_MOST_STEPS = 500
_SOON = 16
"""After a change, up to this many steps are looks, until the programs of all ranks have read the number of workers."""

_GROUPS_BITS, _WORKERS_BITS = 13, 10 + 12


class _Seen(NamedTuple):
    """What the ranks of a group have agreed on."""

    groups: int
    workers: int
    read: int
    """The number of the latest change that the programs of all ranks have read."""
    leaves: bool
    steps: int
    """The number of steps until a later look."""


class Roll:
    """What the ranks of a group agree on. All ranks call `begin` in the same steps, on the program's thread.

    A look goes through the schedule like everything that ranks do together, and counts from the next look on. So the
    program need not wait, and all ranks get the same result in the same step.
    """

    def __init__(self, schedule: Schedule, levels: Levels, context: JobContext) -> None:
        self._schedule, self._levels, self._context = schedule, levels, context
        self.groups = context.headcount.groups
        self.divisor = context.headcount.workers
        """The number of workers that sums stand for: the number that the programs of all ranks have read."""
        self.hands_in = False
        """Whether the group leaves after this step. Its weights are averaged once more."""
        self.version = 0
        """How often any of these has changed."""
        self._workers_of = [self.divisor]
        """The number of workers after each number of changes."""
        self._begun, self._next, self._soon = 0, 1, 0
        self._models = count()
        self._latest: dict[int, tuple[int, int]] = {}
        """For each model, which of the steps of all models was its latest one, and how many after the one before."""
        self._to_hand_in: set[int] | None = None
        """The models in training that have not begun a step since the group was told to leave."""
        self._looked = 0, time.monotonic()
        self._seen: deque[_Seen] = deque()
        self._told = threading.Event()
        self._asked = False

    def enter(self) -> int:
        """Return a number for a model. All ranks call this in the same order."""
        return next(self._models)

    def begin(self, model: int, step: int) -> None:
        """Begin a step of a model. A group leaves when all models in training were averaged again.

        `step`: its number in the model, for messages.
        """
        if self._to_hand_in is not None:
            self._to_hand_in.discard(model)
            notice.agreed |= not self._to_hand_in
        self._begun += 1
        before, _ = self._latest.get(model, (self._begun, 0))
        self._latest[model] = self._begun, self._begun - before
        if self._begun < self._next:
            return
        steps = 1
        if self._asked:
            steps = self._take()
            if self.hands_in and self._to_hand_in is None:  # too late for this step of this model
                recent = {each: self._begun - latest <= 2 * gap for each, (latest, gap) in self._latest.items()}
                self._to_hand_in = {each for each, trains in recent.items() if trains}
        self._next = self._begun + steps
        self._asked = True
        begun, since = self._looked
        now = time.monotonic()
        self._looked = self._begun, now
        pace = (now - since) / max(1, self._begun - begun)
        self._schedule.begin_call(f"step {step}: a look at who is there", lambda: self._look(pace))

    def _take(self) -> int:
        """Apply what the last look has found. Returns the number of steps until the next look."""
        while not self._seen:
            self._told.clear()
            if not self._seen:
                self._schedule.wait_for(self._told)
        seen, headcount = self._seen.popleft(), self._context.headcount
        before = self.groups, self.divisor, self.hands_in
        if seen.workers and (seen.groups, seen.workers) != (headcount.groups, headcount.workers):
            headcount.change(seen.groups, seen.workers)
            self._workers_of.append(seen.workers)
            self._soon = _SOON
            self._context.events.emit(Counted(self._begun, seen.groups, seen.workers))
        self.groups, self.divisor = headcount.groups, self._workers_of[seen.read]
        self.hands_in |= seen.leaves
        self.version += before != (self.groups, self.divisor, self.hands_in)
        if seen.read < headcount.changes and self._soon:
            self._soon -= 1
            return 1
        return seen.steps

    def _look(self, pace: float) -> None:
        """Have the ranks agree. On the communication thread. `pace`: seconds per step."""
        steps = max(1, min(_MOST_STEPS, int(LOOK_SECONDS / max(pace, 1e-6))))
        groups, workers = self._context.servers_view.counted() or (0, 0)
        mine = steps << _GROUPS_BITS + _WORKERS_BITS | groups << _WORKERS_BITS | workers
        _, told = self._levels.vote(mine if self._levels.group.rank == 0 else 0)
        read, _ = self._levels.vote(self._context.headcount.read)
        _, leaves = self._levels.vote(int(notice.given))
        workers, rest = told & (1 << _WORKERS_BITS) - 1, told >> _WORKERS_BITS
        groups, steps = rest & (1 << _GROUPS_BITS) - 1, rest >> _GROUPS_BITS
        self._seen.append(_Seen(groups, workers, read, bool(leaves), steps))
        self._told.set()
