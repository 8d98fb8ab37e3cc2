"""The report of a run folder: its events, a summary (`summary.json`) and a plot (`training.png`).

A caller makes the report of a folder with `make_report`, or reads its events with `read_run` and `read_worker`.
"""

from hybridps.report.reading import Rank, Run, Worker, read_run, read_worker
from hybridps.report.summary import make_report

__all__ = ["Rank", "Run", "Worker", "make_report", "read_run", "read_worker"]
