"""One launch of a training: it is paused and continued, and its rate is measured."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from benchmarks.chaos import digits_worker, records
from benchmarks.chaos.launched import WORKERS, Launched

START_SECONDS = 120.0
PAUSE_SECONDS = 30.0
END_SECONDS = 60.0
LOOK_SECONDS = 0.01
QUIET_SECONDS = 0.2
"""A training is paused when there was no step for so long."""
WARM_SECONDS = 1.0
"""How long a training that goes on takes to reach its speed. This time does not count."""
STEPS_AHEAD = 100
"""Synchronous groups pause after the same step, which is so many steps ahead."""


class JobEndedError(Exception):
    """The job, or a victim of a fault, did not survive."""


class Run:
    """A training of one launch in a folder of its own. A context manager, in which it trains from the beginning.

    `spans`: the times in which it trained and was not paused, each with its begin and end on the monotonic clock.
    `ends`: the final figures of each group. Raises JobEndedError if there is no training in time.
    """

    def __init__(self, folder: Path, groups: int, algorithm: str) -> None:
        folder.mkdir()
        self.folder, self.groups, self._algorithm = folder, groups, algorithm
        self.spans: list[tuple[float, float]] = []
        self.ends: list[dict[str, float]] = []
        self._began: float | None = None
        """Since when it trains; None while it is paused."""
        self.launched = Launched(folder, groups, algorithm)

    def __enter__(self) -> Run:
        self.launched.__enter__()
        try:
            self._await(START_SECONDS, "no training", self._trains)
            time.sleep(WARM_SECONDS)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self._began = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.launched.__exit__(kind, error, trace)

    def check(self) -> None:
        """Raise JobEndedError if the launch has ended."""
        if self.launched.status is not None:
            raise self._error(f"has ended with status {self.launched.status}")

    def seconds(self) -> float:
        """Return how long it has trained so far, without pauses."""
        now = 0.0 if self._began is None else time.monotonic() - self._began
        return now + sum(stop - start for start, stop in self.spans)

    def train(self, seconds: float) -> None:
        """Train for so long, then pause. Raises JobEndedError."""
        self.go_on()
        time.sleep(seconds)
        self.check()
        self.pause()

    def pause(self) -> None:
        """Let all groups wait after a step until `go_on`. Raises JobEndedError if they go on."""
        step = records.last_step(self.folder) + STEPS_AHEAD if self._algorithm == "sync-server" else 0
        digits_worker.ask_to_pause(self.folder, step)
        if self._began is not None:
            self.spans.append((self._began, time.monotonic()))
        self._began = None
        self._await(PAUSE_SECONDS, "no pause", self._is_quiet)

    def go_on(self) -> None:
        """Train again. Returns after `WARM_SECONDS`."""
        digits_worker.pause_file(self.folder).unlink()
        time.sleep(WARM_SECONDS)
        self._began = time.monotonic()

    def end(self) -> None:
        """End the training, paused or not. Raises JobEndedError unless the job ends with status 0."""
        if self._began is not None:
            self.pause()  # so that all groups see the end after the same step
        digits_worker.end_file(self.folder).touch()
        digits_worker.pause_file(self.folder).unlink(missing_ok=True)
        status = self.launched.wait(END_SECONDS)
        if status != 0:
            how = f"with status {status}" if status is not None else f"not within {END_SECONDS:g} s"
            raise self._error(f"should have ended, and did {how}")
        self.ends = [json.loads((self.folder / f"end-{group}.json").read_text()) for group in range(self.groups)]

    def images_per_second(self, spans: Sequence[tuple[float, float]] | None = None) -> float:
        """Return the rate in these spans of time, or in the whole training."""
        spans = self.spans if spans is None else spans
        seconds = sum(stop - start for start, stop in spans)
        steps = records.count_steps(self.folder, spans)
        return steps * WORKERS * digits_worker.BATCH / seconds if seconds else float("nan")

    def digests(self) -> list[list[int]]:
        """Return the digests of the weights after each step that all workers did, for each life of each worker.

        When a group was lost, the others do further steps in that life, with the sums of fewer workers.
        """
        lives = {place: records.read(self.folder, place)["digest"].tolist() for place in records.places(self.folder)}
        together = {
            life: min(len(digests) for place, digests in lives.items() if place.life == life)
            for life in {place.life for place in lives}
        }
        return [digests[: together[place.life]] for place, digests in lives.items()]

    def _error(self, what: str) -> JobEndedError:
        return JobEndedError(f"the job {self.folder.name!r} {what}: {self.launched.last_lines()}")

    def _trains(self) -> bool:
        return all(records.first_step_after(self.folder, group, 0.0) is not None for group in range(self.groups))

    def _is_quiet(self) -> bool:
        now = time.monotonic()
        time.sleep(QUIET_SECONDS)
        return not records.count_steps(self.folder, [(now, time.monotonic())])

    def _await(self, seconds: float, missing: str, happened: Callable[[], bool]) -> None:
        end = time.monotonic() + seconds
        while not happened():
            self.check()
            if time.monotonic() > end:
                raise self._error(f"had {missing} within {seconds:g} s")
            time.sleep(LOOK_SECONDS)
