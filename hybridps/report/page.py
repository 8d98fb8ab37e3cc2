"""The page of a report: one HTML file with the pictures in it, for one run or for several side by side."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from hybridps.quantities import rounded
from hybridps.report.run_report import RunReport, since
from hybridps.report.traffic import size

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1180px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
pre { background: #f5f5f5; padding: .7em 1em; overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; } .wide { overflow-x: auto; }
th, td { padding: .3em .6em; text-align: right; border-bottom: 1px solid #ddd; vertical-align: top; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; border-bottom: 2px solid #999; }
small { color: #777; } small, .when { white-space: nowrap; } .failed { color: #b00020; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(480px, 1fr)); gap: 1.5em; margin-top: 1.5em; }
figure { margin: 0; } figcaption { font-weight: 600; } img { width: 100%; }
.two { grid-column: 1 / -1; } .two img { max-width: 960px; }
"""
TITLES = {
    "time": "Where the time of a step goes",
    "timeline": "A typical step",
    "training": "Training",
    "learning": "Loss and accuracy over time",
    "rate": "Rate of steps",
    "traffic": "Traffic between the groups, and with the servers",
    "distance": "Distance between the groups and the centre",
}
_NOT_ZERO = ("servers", "epochs", "bytes_across_groups", "exchanges", "exchanges_saved", "exchanges_skipped", "status")
"""The figures that say nothing if they are 0 in all runs."""

_TWO = ("training",)
"""The pictures with two plots side by side."""

ROWS = {
    "algorithm": "algorithm",
    "workers": "workers",
    "groups": "groups",
    "servers": "servers",
    "epochs": "epochs",
    "accuracy": "accuracy",
    "accuracy_centre": "accuracy of the centre",
    "loss": "loss",
    "seconds": "seconds",
    "steps": "steps",
    "step_ms": "milliseconds per step",
    "images_per_second": "images/s",
    "bytes_within_groups": "sent within groups",
    "bytes_across_groups": "sent across groups",
    "exchanges": "exchanges",
    "exchanges_saved": "exchanges saved",
    "exchanges_skipped": "exchanges left out",
    "staleness": "staleness (steps)",
    "distance": "distance",
    "slow_workers": "slow workers (found in the trace)",
    "lost": "not finished",
    "status": "exit status",
}
"""The figures of `summary.json` that the page shows, with their labels."""


def make_page(
    reports: Sequence[RunReport], pictures: Mapping[str, bytes], own: Mapping[str, Mapping[str, bytes]]
) -> str:
    """Return the HTML. `pictures`: those of all runs together; `own`: those of each run, if there are several."""
    title = ", ".join(report.name for report in reports)
    body = f"<h1>{escape(title)}</h1>\n<div class='wide'>{_figures(reports)}</div>\n"
    if len(reports) == 1:
        body += _said(reports[0])
    body += _gallery(pictures)
    for report in reports if len(reports) > 1 else ():
        body += f"<h2>{escape(report.name)}</h2>\n{_said(report)}{_gallery(own.get(report.name, {}))}"
    if len(reports) == 1:
        body += _faults(reports[0])
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)} - hybridps report</title>'
        f"<style>{STYLE}</style></head><body>\n{body}</body></html>\n"
    )


def picture(title: str, content: bytes, kind: str = "") -> str:
    """Return a figure with a PNG in it. `kind`: its class in the style."""
    shown, data = escape(title), b64encode(content).decode()
    image = f'<img alt="{shown}" src="data:image/png;base64,{data}">'
    return f'<figure class="{kind}"><figcaption>{shown}</figcaption>{image}</figure>'


def _figures(reports: Sequence[RunReport]) -> str:
    head = "".join(f"<th>{escape(report.name)}</th>" for report in reports)
    rows = ""
    for field, title in ROWS.items():
        if field in _NOT_ZERO and not any(report.summary.get(field) for report in reports):
            continue
        title = since(reports) if field == "seconds" else title
        values = [_text(field, report.summary.get(field)) for report in reports]
        if any(values):
            rows += (
                f"<tr><td>{escape(title)}</td>"
                + "".join(f"<td>{escape(each) or '-'}</td>" for each in values)
                + "</tr>"
            )
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _text(field: str, value: Any) -> str:
    """Return a figure as text; empty if it is not known."""
    if value is None or value == []:
        return ""
    if field == "slow_workers":
        return ", ".join(f"{each['worker']} (+{each['percent']:.0f} %)" for each in value)
    if field.startswith("accuracy"):
        return f"{100 * value:.1f} %"
    if field.startswith("bytes"):
        return size(value)
    if isinstance(value, float):
        return rounded(value, 4)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _said(report: RunReport) -> str:
    parts = {"Why it failed": report.failure, "Where the time goes": report.time.sentences if report.time else []}
    return "".join(
        f"<h2>{title}</h2>\n<ul>{''.join(f'<li>{_sentence(said)}</li>' for said in sentences)}</ul>\n"
        for title, sentences in parts.items()
        if sentences
    )


def _sentence(said: str) -> str:
    """Return a sentence as HTML, with code where it has backticks."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(said))


def _gallery(pictures: Mapping[str, bytes]) -> str:
    titles = {name: title for name, title in TITLES.items() if name in pictures}
    shown = "".join(picture(title, pictures[name], "two" * (name in _TWO)) for name, title in titles.items())
    return f'<div class="pictures">{shown}</div>\n' if shown else ""


def _faults(report: RunReport) -> str:
    if not report.faults:
        return ""
    rows = "".join(
        f"<tr><td class='when'>{round(when, 1) + 0.0:.1f} s</td><td style='text-align: left'>{escape(said)}</td></tr>"
        for when, said in report.faults
    )
    from_when = since([report]).capitalize()
    return f"<h2>What happened</h2>\n<p>{from_when}:</p>\n<table><tbody>{rows}</tbody></table>\n"
