"""Writes the report of a run, or of several runs side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hybridps.errors import HybridPSError
from hybridps.events import Evaluated
from hybridps.files import write_whole
from hybridps.report.page import TITLES, make_page
from hybridps.report.pictures import pictures_of
from hybridps.report.plots import plot
from hybridps.report.points import points_of
from hybridps.report.run_report import RunReport, read_report

PAGE = "report.html"


def make_report(folder: Path) -> dict[str, Any]:
    """Write `summary.json`, the pictures and `report.html` to a run folder. Return the summary.

    Pictures of an earlier report that this one does not have are removed. Half-written lines are skipped. Raises
    HybridPSError if no process wrote anything there, if the report cannot be written, or if matplotlib is not
    installed; the summary is written before the pictures.
    """
    report = read_report(folder)
    with _writing(folder):
        _write_summary(report)
    pictures = _draw(report)
    with _writing(folder):
        for name, content in pictures.items():
            write_whole(folder / f"{name}.png", content)
        if (folder / PAGE).exists():
            for name in TITLES.keys() - pictures.keys():
                (folder / f"{name}.png").unlink(missing_ok=True)
        write_whole(folder / PAGE, make_page([report], pictures, {}).encode(errors="backslashreplace"))
    return report.summary


def is_of_earlier(folder: Path) -> bool:
    """Return whether the report in a run folder is of an earlier launch, because the last one has not trained.

    Such a launch has ended well, did no step and reported nothing. Raises HybridPSError if no process wrote anything
    there.
    """
    if not (folder / PAGE).exists():
        return False
    report = read_report(folder)
    launch = report.run.launch
    if launch is None or launch.last(Evaluated) is not None or not report.run.earlier:
        return False
    lost = set(report.run.lost()) - report.run.closed()  # training files have no end if the earlier launch had none
    return report.summary.get("status") == 0 and not (report.summary["steps"] or lost)


def compare_reports(folders: Sequence[Path], page: Path) -> list[dict[str, Any]]:
    """Write the page of several runs side by side. Return their summaries.

    Raises HybridPSError as `make_report`, and if two runs have the same name.
    """
    reports = [read_report(folder) for folder in folders]
    names = [report.name for report in reports]
    if len(set(names)) < len(names):
        raise HybridPSError(f"two of the runs have the same name, in {', '.join(map(str, folders))}: rename a folder")
    own = {report.name: _draw(report) for report in reports}
    together = dict(pictures_of(reports))
    with _writing(page):
        page.parent.mkdir(parents=True, exist_ok=True)
        write_whole(page, make_page(reports, together, own).encode(errors="backslashreplace"))
    return [report.summary for report in reports]


@contextmanager
def _writing(place: Path) -> Iterator[None]:
    """Raise HybridPSError in place of OSError."""
    try:
        yield
    except OSError as error:
        raise HybridPSError(f"the report cannot be written to {str(place)!r}: {error.strerror or error}") from None


def _draw(report: RunReport) -> dict[str, bytes]:
    has_curves = report.run.workers or points_of(report.run)
    training = {"training": plot(report.run, report.summary)} if has_curves else {}
    return {**training, **dict(pictures_of([report]))}


def _write_summary(report: RunReport) -> None:
    write_whole(report.folder / "summary.json", json.dumps(report.summary, indent=1).encode() + b"\n")
