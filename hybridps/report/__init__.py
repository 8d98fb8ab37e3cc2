"""The report of a run folder: a summary (`summary.json`), pictures, and a page with all of it (`report.html`).

`make_report` makes the report of a folder, and `compare_reports` a page of several runs. `read_run`, `read_rank` and
`read_worker` read events. `points_of` returns the accuracy over time. `Following` counts what a run sends while it is
running. `STYLE` and `picture` are for other pages with the same look.
"""

from hybridps.report.following import Following
from hybridps.report.make import compare_reports, is_of_earlier, make_report
from hybridps.report.page import STYLE, picture
from hybridps.report.points import Point, points_of, started, traffic_of
from hybridps.report.reading import Rank, Run, read_rank, read_run
from hybridps.report.step_time import launch_id
from hybridps.report.summary import summarise
from hybridps.report.traffic import Curve, figures, in_words, size
from hybridps.report.training_file import Worker, read_worker

__all__ = [
    "STYLE",
    "Curve",
    "Following",
    "Point",
    "Rank",
    "Run",
    "Worker",
    "compare_reports",
    "figures",
    "in_words",
    "is_of_earlier",
    "launch_id",
    "make_report",
    "picture",
    "points_of",
    "read_rank",
    "read_run",
    "read_worker",
    "size",
    "started",
    "summarise",
    "traffic_of",
]
