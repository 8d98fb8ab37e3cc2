"""The job line: how far a job is, in one line."""

from __future__ import annotations

from hybridps.live import Live
from hybridps.live.reading import clock, steps_per_second
from hybridps.quantities import rounded
from hybridps.watch.epochs import Epochs


class JobLine:
    """The job line, as of the latest look."""

    def __init__(self) -> None:
        self.text = ""
        """The line; empty before the first step."""
        self._epochs = Epochs()

    def look(self, before: Live, now: Live) -> None:
        """Update the line."""
        self._epochs.look(now)
        self.text = _line_of(before, now, self._epochs) if now.steps else ""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def _line_of(before: Live, now: Live, epochs: Epochs) -> str:
    """Return the job's steps, their rate, and the mean over the workers of what scripts report."""
    began = now.launch.status.seconds if now.launch is not None else 0.0
    words = [f"step {now.steps}"]
    if (pace := steps_per_second(before, now)) is not None:
        words.append(f"{rounded(pace)} steps/s")
    if epochs.epoch is not None:
        words.append(f"epoch {epochs.epoch:g}")
        if (loss := epochs.mean("loss")) is not None:
            words.append(f"loss {loss:.4g}")
        if (accuracy := epochs.mean("accuracy")) is not None:
            words.append(f"accuracy {100 * accuracy:.1f} %")
    slow = [str(number) for number, seen in sorted(now.workers.items()) if seen.status.slow is not None]
    if slow:
        words.append(f"slow: worker {', '.join(slow)}")
    if began:
        words.append(clock(began))
    return ", ".join(words)
