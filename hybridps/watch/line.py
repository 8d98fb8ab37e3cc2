"""The job line: how far a job is, in one line."""

from __future__ import annotations

from hybridps.events import Evaluated
from hybridps.live import Live
from hybridps.live.reading import clock, report_of, steps_per_second
from hybridps.progress import mean_of
from hybridps.quantities import rounded


class JobLine:
    """The job line, as of the latest look."""

    def __init__(self) -> None:
        self.text = ""
        """The line; empty before the first step."""

    def look(self, before: Live, now: Live) -> None:
        """Update the line."""
        self.text = line_of(before, now) if now.steps else ""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def line_of(before: Live, now: Live) -> str:
    """Return the job's steps, their rate, and the mean over the workers of what scripts report."""
    began = now.launch.status.seconds if now.launch is not None else 0.0
    words = [f"step {now.steps}"]
    if (pace := steps_per_second(before, now)) is not None:
        words.append(f"{rounded(pace)} steps/s")
    reports = [found for number in now.workers if (found := report_of(now, number)) is not None]
    if reports:
        epoch = min(report.epoch for report in reports)
        events = [Evaluated(each.epoch, each.accuracy, each.loss, images=each.images) for each in reports]
        words.append(f"epoch {epoch:g}")
        if (loss := mean_of(events, "loss")) is not None:
            words.append(f"loss {loss:.4g}")
        if (accuracy := mean_of(events, "accuracy")) is not None:
            words.append(f"accuracy {100 * accuracy:.1f} %")
    slow = [str(number) for number, seen in sorted(now.workers.items()) if seen.status.slow is not None]
    if slow:
        words.append(f"slow: worker {', '.join(slow)}")
    if began:
        words.append(clock(began))
    return ", ".join(words)
