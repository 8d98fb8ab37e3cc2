"""What the workers have reported about the same epoch."""

from __future__ import annotations

from hybridps.events import Evaluated
from hybridps.live import Live, Report
from hybridps.live.reading import report_of
from hybridps.progress import mean_of


class Epochs:
    """Collects the reports of all workers, look by look, so that a mean is that of one epoch."""

    def __init__(self) -> None:
        self._reported: dict[float, dict[int, Evaluated]] = {}
        """The reports by epoch and worker."""
        self.epoch: float | None = None
        """The last epoch that each worker that reports has reached; None before the first report."""

    def look(self, now: Live) -> dict[int, Report]:
        """Add what has been reported. Returns the last report of each worker that reports."""
        reports = {number: report for number in now.workers if (report := report_of(now, number)) is not None}
        for number, report in reports.items():
            event = Evaluated(report.epoch, report.accuracy, report.loss, report.centre_accuracy, report.images)
            self._reported.setdefault(report.epoch, {})[number] = event
        if reports:
            self.epoch = min(report.epoch for report in reports.values())
            for earlier in [epoch for epoch in self._reported if epoch < self.epoch]:
                del self._reported[earlier]
        return reports

    def mean(self, field: str) -> float | None:
        """Return the mean of a field over the workers that have reported this epoch; None without values."""
        return None if self.epoch is None else mean_of(self._reported[self.epoch].values(), field)
