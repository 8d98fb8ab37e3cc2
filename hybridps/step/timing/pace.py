"""How long each rank of a group takes for its own part of a step, and which ranks are slower than the others."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable
from statistics import median

import numpy as np

from hybridps.events import Paced, Recovered, Slowed, say
from hybridps.live.delays import DelayedSeconds, delayed_seconds, longest_delay
from hybridps.live.slow import LOOKS, LOOKS_IF_CROWDED, REASONS, Measured, SlowWorkers
from hybridps.quantities import duration
from hybridps.step.job_context import JobContext
from hybridps.tensor_collectives import Levels

WINDOW = 5
"""Steps between two looks, at least."""

WINDOW_SECONDS = 0.05
"""About the shortest time between two looks. A look takes a fraction of a millisecond."""

_MOST_STEPS = 500
_MOST_WAITS = 32
_FIELDS = len(Measured._fields)


class Pace:
    """Measures the steps of a model, on the communication thread. All ranks of the group end the same steps.

    A rank's own part of a step is the time from the last sums to its last gradient. A program that does not wait for
    sums may stall once, and then be late by the same time at every step, although it is no slower than the others. So
    the time that the program takes from one step to the next is the least that counts as its own part. If the ranks of
    a group have no more than a core each, the CPU time of a step is the least too: a rank that is ahead loads and
    computes while it waits for the others, and would need this time if it did not wait.

    A rank that a CPU limit stops also stands still while this thread sums. The others then wait for it, so the time in
    which this thread was ready and had no core counts as its own part as well.

    Every few steps the ranks tell each other their medians. All of them then know who is slow; the leader says so, and
    each rank writes what concerns it to its events. A step costs one store for each figure and one read of a file.

    `waited_until`: see `Schedule.waited_until`.
    """

    def __init__(self, levels: Levels, context: JobContext, waited_until: Callable[[], float]) -> None:
        self._levels, self._context = levels, context
        self._waited_until = waited_until
        self.computes_before = False
        """Whether the program computes before it begins a step, so that its part of a step is not known apart."""
        size = levels.group.size
        looks = LOOKS_IF_CROWDED if context.settings.is_crowded else LOOKS
        self._slow = SlowWorkers(context.settings.slow_factor, size, looks)
        self._told = np.zeros(size * _FIELDS)
        self._steps = np.zeros((4, _MOST_STEPS))
        """Since the last look: the time of each step, the rank's own, that of its program, and the delay of sums."""
        self._count = 0
        self._window = WINDOW
        self._done = 0
        self._freed_at = self._ended_at = math.nan
        self._begun_at = math.nan
        """When the program began its last step."""
        self._waits: deque[float] = deque(maxlen=_MOST_WAITS)
        """When the program was known to wait for sums, in order. It may be some steps ahead of these."""
        self._has_one_core = _has_one_core(len(levels.neighbours))
        self._cpu_seconds = 0.0
        self._delayed: dict[str, float] | None = None
        """While any rank is suspected: how long each thread had waited for a core at the last look."""
        self._thread_delay = DelayedSeconds()

    def leave_out(self, seconds: float) -> None:
        """Note a wait of the program between two steps, which does not count as its part of the next step."""
        self._freed_at += seconds
        self._note_wait(self._waited_until())

    def program_seconds(self, begun_at: float) -> float:
        """Return how long the program took until it began this step, without the waits for the sums of earlier ones."""
        waited = next((at for at in reversed(self._waits) if at <= begun_at), -math.inf)
        return max(0.0, begun_at - max(self._begun_at, waited))  # 0 in the first step: NaN is not larger than 0

    def end_step(self, begun_at: float, last_gradient: float, waited: float) -> None:
        """Note that all sums of a step have arrived.

        When the program began the step, when its last gradient arrived, and until when the program is known to have
        waited as the last sums were released: all on the monotonic clock.
        """
        ended, freed = time.monotonic(), self._freed_at
        place = self._count % _MOST_STEPS
        self._steps[0, place] = ended - self._ended_at
        program = self.program_seconds(begun_at)
        self._steps[3, place] = delay = self._delay_of_sums(ended - last_gradient)
        self._steps[1, place] = max(0.0, last_gradient - freed, program) + delay
        self._steps[2, place] = max(0.0, min(max(begun_at, freed), last_gradient) - freed, program)
        self._ended_at = self._freed_at = ended
        self._begun_at = begun_at
        self._note_wait(waited)
        if not self._done:
            self._cpu_seconds = _cpu_seconds()
        self._count += 1
        self._done += 1
        if self._count >= self._window:
            self._look()
            self._freed_at = self._ended_at = time.monotonic()
            self._note_wait(self._waited_until())

    def _note_wait(self, until: float) -> None:
        if not self._waits or until > self._waits[-1]:
            self._waits.append(until)

    def _look(self) -> None:
        """Tell the other ranks how long this one takes, and find out who is slow. All ranks call this together."""
        mine, rank = self._measure(), self._levels.group.rank
        self._told[:] = 0.0
        self._told[rank * _FIELDS : (rank + 1) * _FIELDS] = mine
        if self._levels.group.size > 1:
            self._levels.vote(0)  # waits asleep for a rank that is late
            self._levels.group.allreduce_(self._told)
        everyone = [Measured(*each) for each in self._told.reshape(-1, _FIELDS).tolist()]
        if not any(math.isnan(each.step_seconds) for each in everyone):
            self._compare(everyone, rank)
            waited = max(each.own_seconds for each in everyone) - mine.own_seconds
            self._context.events.emit(
                Paced(
                    self._done,
                    mine.step_seconds,
                    mine.own_seconds,
                    None if self.computes_before else mine.program_seconds,
                    waited,
                    mine.mean_own_seconds,
                )
            )
            # By the mean, so that the first slow steps, which are few among the others, already shorten it.
            self._window = max(WINDOW, min(_MOST_STEPS, math.ceil(WINDOW_SECONDS / everyone[0].mean_step_seconds)))
        self._count = 0

    def _measure(self) -> Measured:
        """Return the times of this rank since the last look."""
        known = self._steps[:, : min(self._count, _MOST_STEPS)]
        step, own, program = (float(median(row)) for row in known[:3].tolist())
        mean_step, mean_own, mean_program, sums_delayed = np.nanmean(known, 1).tolist()
        now, before = _cpu_seconds(), self._cpu_seconds
        self._cpu_seconds, cpu = now, (now - before) / self._count
        if self._has_one_core:
            own, mean_own = max(own, cpu), max(mean_own, cpu)
        # A step is timed from end to end and a program from begin to begin, so a part may seem to be more than a step.
        own, mean_own = min(own, step), min(mean_own, mean_step)
        program, mean_program = min(program, own), min(mean_program, mean_own)
        if self.computes_before:
            program = mean_program = math.nan
        return Measured(step, own, program, cpu, self._delay() + sums_delayed, mean_own, mean_program, mean_step)

    def _delay(self) -> float:
        """Return how long the other thread that waited most for a core did so in a step; nan if nobody is suspected."""
        if self._delayed is None:
            return math.nan
        before, self._delayed = self._delayed, delayed_seconds()
        return longest_delay(before, self._delayed) / self._count if self._delayed else math.nan

    def _delay_of_sums(self, longest: float) -> float:
        """Return how long this thread waited for a core in the last step.

        `longest`: the time since the last gradient. What came before it is part of the rank's own time already.
        """
        return max(0.0, min(self._thread_delay.read(), longest))  # 0 if nothing is known: NaN is not larger than 0

    def _compare(self, everyone: list[Measured], rank: int) -> None:
        first = self._context.worker - rank  # workers count from group to group
        slow, recovered = self._slow.look(everyone)
        if not self._slow.suspects:
            self._delayed = None
        elif self._delayed is None:
            self._delayed = delayed_seconds()
        says = rank == 0 and not self._context.settings.quiet
        for place, found in slow.items():
            worker = first + place
            if rank in (0, place):
                times = (found.own_seconds, found.others_seconds)
                self._context.events.emit(Slowed(worker, self._done, *times, found.reason))
            if says:
                say(
                    f"worker {worker} is slow: its part of a step takes {duration(found.own_seconds)}, and that of "
                    f"the others {duration(found.others_seconds)}; {REASONS[found.reason]}"
                )
        for place in recovered:
            if rank in (0, place):
                self._context.events.emit(Recovered(first + place, self._done))
            if says:
                say(f"worker {first + place} keeps up with the others again")


def _has_one_core(ranks: int) -> bool:
    """Return whether all threads of this rank share about one core, so that nothing that it does hides anything else.

    `ranks`: those of its group on this node. A rank that may not use all cores is taken to have its cores for itself.
    """
    usable = len(os.sched_getaffinity(0))
    return usable == 1 or (usable == os.cpu_count() and usable <= ranks)


def _cpu_seconds() -> float:
    """Return the CPU time of this process, without this thread: the communication thread, which waits busily."""
    return time.process_time() - time.thread_time()
