"""Training on real images under faults, and without: what the faults cost, and whether the weights are right."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from benchmarks.chaos import records
from benchmarks.chaos.chains import DivergedError, check_chain
from benchmarks.chaos.launched import WORKERS, Launched
from benchmarks.chaos.outcomes import Outcome, by_kind, quiet_spans
from benchmarks.chaos.run import JobEndedError, Run
from benchmarks.chaos.schedule import Fault, Victim, make_schedule

KINDS = ("kill-worker", "kill-leader", "kill-server", "stop", "freeze")
"""The kinds of faults: a follower, a leader or the server is killed; a worker is stopped by SIGSTOP for a while, or for
longer than `lost_seconds`, after which the servers consider its group lost."""

HARMLESS = {"kill-server", "stop"}
"""Kinds after which synchronous training has the same bits as without faults."""

TURN_SECONDS = 20.0
"""How long the training under faults, and the undisturbed one, train before it is the other one's turn."""

RECOVER_SECONDS = 120.0
SETTLE_SECONDS = 2.0
LOOK_SECONDS, QUIET_LOOK_SECONDS = 0.01, 0.1
"""How often recovery from open faults is looked for, and how often it is looked whether a fault is due."""
ACCURACY_LOST = 0.03
"""The largest loss of accuracy of the centre, compared with undisturbed training."""
FARTHEST = 0.5
"""The largest distance of a group's weights from the centre, relative to the centre's norm."""


class _Open:
    """A fault whose victim has not made progress since."""

    def __init__(self, fault: Fault, pid: int, life: int, backs: int) -> None:
        self.fault, self.pid, self.life, self.backs = fault, pid, life, backs
        self.injected = time.monotonic()
        self.back: float | None = None if fault.kind == "kill-server" else self.injected
        """When the server was reported to be back."""
        self.stopped = fault.lasts > 0
        os.kill(pid, signal.SIGSTOP if self.stopped else signal.SIGKILL)

    def recovered(self, folder: Path, launched: Launched, groups: int) -> float | None:
        """Return when its victim made progress again; None if it has not."""
        if self.stopped and time.monotonic() < self.injected + self.fault.lasts:
            return None
        if self.stopped:
            self.stopped = False
            with suppress(ProcessLookupError):  # its group may have ended it
                os.kill(self.pid, signal.SIGCONT)
        if self.back is None:
            self.back = time.monotonic() if launched.backs > self.backs else None
            return None
        if self.fault.kind == "kill-server":
            found = [records.first_step_after(folder, group, self.back) for group in range(groups)]
            return min((when for when in found if when is not None), default=None)
        since, group = self.injected + self.fault.lasts, self.fault.victim.place
        first = records.first_step_after(folder, group, since, self.life)
        if self.fault.kind != "freeze" or first is None:
            return first
        # A group that is considered lost may do one more step before it learns of that and ends.
        later = records.first_step_after(folder, group, first + SETTLE_SECONDS)
        return first if later is not None and later < first + 2 * SETTLE_SECONDS else later


class Disturbing:
    """Lets the faults of a schedule happen to a run, and observes the recovery from each.

    A fault waits until its victim has recovered from the previous one.
    """

    def __init__(self, run: Run, schedule: Sequence[Fault]) -> None:
        self.outcomes: list[Outcome] = []
        self._run, self._folder, self._launched = run, run.folder, run.launched
        self._due = deque(schedule)
        self._open: list[_Open] = []

    def train(self, seconds: float, take_turn: Callable[[], None] | None = None) -> None:
        """Train for `seconds`, in which faults are injected, and wait for recovery. Raises JobEndedError.

        `take_turn`: called every `TURN_SECONDS`, when all faults were recovered from; the run is paused meanwhile.
        """
        next_turn = TURN_SECONDS
        while (trained := self._run.seconds()) < seconds or self._due or self._open:
            self._run.check()
            self._look()
            is_turn = take_turn is not None and trained >= next_turn
            if self._due and trained >= self._due[0].seconds and not is_turn:
                self._inject(self._due[0])
            if take_turn is not None and is_turn and not self._open:
                self._run.pause()
                take_turn()
                self._run.go_on()
                next_turn = trained + TURN_SECONDS
            time.sleep(LOOK_SECONDS if self._open else QUIET_LOOK_SECONDS)

    def _look(self) -> None:
        """Note the faults that were recovered from. Raises JobEndedError if a recovery takes too long."""
        for each in [*self._open]:
            recovered = each.recovered(self._folder, self._launched, self._run.groups)
            if recovered is not None:
                self._open.remove(each)
                self.outcomes.append(Outcome(each.fault, each.injected, recovered))
            elif time.monotonic() > each.injected + each.fault.lasts + RECOVER_SECONDS:
                raise JobEndedError(
                    f"no progress within {RECOVER_SECONDS:g} s of {each.fault.kind} of {_who(each.fault)}: "
                    + self._launched.last_lines()
                )

    def _inject(self, fault: Fault) -> None:
        """Let a fault happen, if its victim is running."""
        of_server = fault.kind == "kill-server"
        hit = [each.fault for each in self._open if (each.fault.kind == "kill-server") == of_server]
        if any(of_server or other.victim.place == fault.victim.place for other in hit):
            return
        pid = self._launched.server() if of_server else self._launched.rank(*fault.victim)
        if pid is None:
            return
        self._due.popleft()
        life = 0
        if fault.lasts == 0 and not of_server:
            life = 1 + records.leaders(self._folder, fault.victim.place)[-1].life
        self._open.append(_Open(fault, pid, life, self._launched.backs))


def _who(fault: Fault) -> str:
    return "the server" if fault.kind == "kill-server" else f"rank {fault.victim.rank} of group {fault.victim.place}"


def run_training(
    groups: int, seconds: float, count: int, seed: int, kinds: Sequence[str], algorithm: str, compare: bool = True
) -> dict[str, Any]:
    """Train under `count` faults for `seconds`, in turns with an undisturbed training. Return the results.

    Without `compare`, train only under faults. Raises JobEndedError; DivergedError if weights are wrong.
    """
    schedule = make_schedule(seed, victims_of(kinds, groups), count, seconds)
    with tempfile.TemporaryDirectory(prefix="hybridps-chaos-") as folder, ExitStack() as stack:
        calm = stack.enter_context(Run(Path(folder, "undisturbed"), groups, algorithm)) if compare else None
        if calm is not None:
            calm.pause()
        run = stack.enter_context(Run(Path(folder, "chaos"), groups, algorithm))
        disturbing = Disturbing(run, schedule)
        disturbing.train(seconds, calm and (lambda: calm.train(TURN_SECONDS)))
        if calm is not None:
            run.pause()
            calm.train(min(TURN_SECONDS, seconds))
        restarts = run.launched.restarts
        run.end()
        found = {
            "form": "training",
            "groups": groups,
            "workers": WORKERS * groups,
            "algorithm": algorithm,
            "seconds": run.seconds(),
            "injected": count,
            "survived": len(disturbing.outcomes),
            "restarts": restarts,
            "kinds": by_kind(disturbing.outcomes),
            "images_per_second": run.images_per_second(),
            "ends": run.ends,
            "checks": check_run(algorithm, run),
        }
        if calm is not None:
            calm.end()
            found |= compared(algorithm, kinds, disturbing.outcomes, run, calm)
        return found


def compared(algorithm: str, kinds: Sequence[str], outcomes: Sequence[Outcome], run: Run, calm: Run) -> dict[str, Any]:
    """Return how a run under faults compares with an undisturbed one. Raises DivergedError."""
    rate = calm.images_per_second()
    quiet = [span for begin, end in run.spans for span in quiet_spans(outcomes, begin, end)]
    return {
        "undisturbed_images_per_second": rate,
        "undisturbed_seconds": calm.seconds(),
        "throughput": run.images_per_second() / rate,
        "throughput_outside": run.images_per_second(quiet) / rate,
        "outside_seconds": sum(stop - start for start, stop in quiet),
        "undisturbed_ends": calm.ends,
        "compared": check_beside(algorithm, kinds, run, calm),
    }


def victims_of(kinds: Sequence[str], groups: int) -> dict[str, list[Victim]]:
    """Return the victims that each kind of fault may hit."""
    ranks = {"kill-worker": range(1, WORKERS), "kill-leader": range(1), "kill-server": range(1)}
    return {
        kind: [
            Victim(group, rank)
            for group in range(1 if kind == "kill-server" else groups)
            for rank in ranks.get(kind, range(WORKERS))
        ]
        for kind in kinds
    }


def check_run(algorithm: str, run: Run) -> dict[str, str]:
    """Return what holds for the weights. Raises DivergedError for what does not."""
    farthest = max(end["distance"] for end in run.ends)
    if not farthest < FARTHEST:
        raise DivergedError(f"the weights of a group are far from the centre in the end: {run.ends}")
    found = {"distance": f"at most {farthest:.2g} of the centre"}
    if algorithm == "sync-server":
        found["digests"] = f"{check_chain(run.digests())} steps, the same bits on all workers"
    return found


def check_beside(algorithm: str, kinds: Sequence[str], run: Run, calm: Run) -> dict[str, str]:
    """Return what holds for the weights compared with undisturbed training. Raises DivergedError for what does not."""
    mine, theirs = (min(end["centre_accuracy"] for end in each.ends) for each in (run, calm))
    if mine < theirs - ACCURACY_LOST:
        raise DivergedError(f"the centre's accuracy is {mine:.3f}, that of undisturbed training {theirs:.3f}")
    found = {"accuracy": f"{100 * mine:.1f} % held-out, undisturbed {100 * theirs:.1f} %"}
    if algorithm == "sync-server" and HARMLESS.issuperset(kinds):
        found["bits"] = f"{same_steps(run, calm)} steps with the bits of undisturbed training"
    return found


def same_steps(run: Run, calm: Run) -> int:
    """Compare the weights of two runs step by step, until the first worker ends. Return the number of steps."""
    sequences = [*run.digests(), *calm.digests()]
    steps = min(map(len, sequences))
    for step in range(steps):
        if len({sequence[step] for sequence in sequences}) > 1:
            raise DivergedError(f"the weights of step {step} differ from those of undisturbed training")
    return steps
