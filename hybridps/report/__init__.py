"""The report of a run folder: a summary (`summary.json`), pictures, and a page with all of it (`report.html`).

A caller makes the report of a folder with `make_report`, or a page of several runs with `compare_reports`; or reads
events with `read_run`, `read_rank` and `read_worker`. `points_of` has the accuracy over time, `Following` what a run
sends while it goes on.
"""

from hybridps.report.following import Following
from hybridps.report.make import compare_reports, make_report
from hybridps.report.points import Point, points_of, started, traffic_of
from hybridps.report.reading import Rank, Run, Worker, read_rank, read_run, read_worker
from hybridps.report.summary import summarise
from hybridps.report.traffic import Curve, figures, in_words, size

__all__ = [
    "Curve",
    "Following",
    "Point",
    "Rank",
    "Run",
    "Worker",
    "compare_reports",
    "figures",
    "in_words",
    "make_report",
    "points_of",
    "read_rank",
    "read_run",
    "read_worker",
    "size",
    "started",
    "summarise",
    "traffic_of",
]
