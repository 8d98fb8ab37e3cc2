"""The page of a comparison: one HTML file that contains its pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from shlex import join

from hybridps.cli.compare.outcomes import Outcome, Row, Spread
from hybridps.cli.compare.plan import Comparison
from hybridps.cli.compare.trials import FAILED
from hybridps.quantities import counted
from hybridps.report import STYLE, picture, size

TITLES = {
    "accuracy-over-time": "Accuracy over time",
    "accuracy-over-bytes": "Accuracy over bytes between groups",
    "accuracy-over-epochs": "Accuracy over epochs",
    "loss-over-epochs": "Loss over epochs",
    "distance": "Distance between workers and centre",
    "traffic": "Bytes sent, and bytes saved",
}


def make_page(
    comparison: Comparison,
    rows: Sequence[Row],
    outcomes: Sequence[Outcome],
    accuracy: float | None,
    pictures: Mapping[str, bytes],
) -> str:
    """Return the HTML of the page."""
    shown = "".join(picture(TITLES[name], pictures[name]) for name in TITLES if name in pictures)
    heading = "" if accuracy is None else f"<h2>To an accuracy of {_percent(accuracy)}</h2>"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>hybridps compare</title>'
        f"<style>{STYLE}</style></head><body>\n<h1>{escape(', '.join(row.contender for row in rows))}</h1>\n"
        f"{_about(comparison)}\n{heading}\n"
        f'<div class="wide">{_table(rows, accuracy)}</div>\n{_notes(comparison, outcomes)}\n'
        f'<div class="pictures">{shown}</div>\n{_failures(outcomes)}</body></html>\n'
    )


def lines_of(rows: Sequence[Row], accuracy: float | None) -> list[list[str]]:
    """Return the table as text: the titles, and a line for each contender, without columns that are empty for all."""
    lines = [_cells(row, accuracy) for row in rows]
    titles = [title for title in lines[0] if title == "contender" or any(line[title] != "-" for line in lines)]
    return [titles, *([line[title] for title in titles] for line in lines)]


def _cells(row: Row, accuracy: float | None) -> dict[str, str]:
    """Return the row of a contender as text, by the titles of the columns."""
    done = row.trials - row.failed
    reached = f" ({row.reached} of {done} reached it)" if 0 < row.reached < done else ""
    to = f"to {_percent(accuracy)}"
    to_accuracy = {
        f"seconds {to}": _spread(row.seconds_to, lambda value: f"{value:.1f} s") + reached,
        f"bytes {to}": _spread(row.bytes_to, size) + (reached if row.bytes_to else ""),
    }
    return {
        "contender": row.contender,
        "accuracy": _spread(row.accuracy, _percent),
        "best": _spread(row.best, _percent),
        "centre": _spread(row.accuracy_centre, _percent),
        **(to_accuracy if accuracy is not None else {}),
        "seconds": _spread(row.seconds, lambda value: f"{value:.1f} s"),
        "across groups": _spread(row.nbytes, size),
        "exchanges": _spread(row.exchanges, lambda value: f"{value:.0f}"),
        "saved": _spread(row.saved, _percent),
        "distance": _spread(row.distance, lambda value: f"{value:.2g}"),
        "staleness": _spread(row.staleness, lambda value: f"{value:.1f}"),
        "seeds": f"{done}" + (f", {row.failed} failed" if row.failed else ""),
    }


def _about(comparison: Comparison) -> str:
    groups = f"{counted(comparison.workers, 'worker')} in {counted(comparison.groups, 'group')}"
    parts = [groups, f"{comparison.seeds} seed{'s' * (comparison.seeds > 1)}"]
    parts += [f"each group behind a link of {comparison.link}"] if comparison.link else []
    parts += [f"at most {comparison.budget_seconds:g} s each"] if comparison.budget_seconds else []
    parts += [f"settings {' '.join(comparison.settings)}"] if comparison.settings else []
    return f"<p>{escape('; '.join(parts))}.</p>\n<pre>{escape(join(comparison.command))}</pre>"


def _table(rows: Sequence[Row], accuracy: float | None) -> str:
    titles, *lines = lines_of(rows, accuracy)
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{_with_small(text)}</td>" for text in line) + "</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _with_small(text: str) -> str:
    """Return HTML with the text in brackets below the rest, in small print."""
    first, bracket, rest = escape(text).partition(" (")
    return f"{first}<br><small>{rest.rstrip(')').replace(') (', '; ')}</small>" if bracket else first


def _notes(comparison: Comparison, outcomes: Sequence[Outcome]) -> str:
    if any(outcome.link_bytes is not None for outcome in outcomes):
        what = "Bytes are those that groups and servers sent over the links, with the headers of all protocols."
    else:
        what = (
            "Bytes are the payload that groups sent to servers, received from them, and sent to each other. MXNet's "
            "own stores are not measured without --link."
        )
    spread = " Means over the seeds, with minimum and maximum in small print." if comparison.seeds > 1 else ""
    return (
        f"<p><small style='white-space: normal'>{what} Seconds count from the start of the workers, or from the "
        "script's report of epoch 0. Saved: steps of a group without an exchange. Accuracy: the mean of the workers; "
        f"in the pictures the centre is dashed.{spread}</small></p>"
    )


def _failures(outcomes: Sequence[Outcome]) -> str:
    failed = [outcome for outcome in outcomes if outcome.outcome == FAILED]
    if not failed:
        return ""
    lines = "".join(
        f'<li class="failed">{escape(f"{outcome.contender}, seed {outcome.seed}: {outcome.reason}")}</li>'
        for outcome in failed
    )
    return f"<h2>Failed</h2><ul>{lines}</ul>"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _spread(spread: Spread | None, text: Callable[[float], str]) -> str:
    if spread is None:
        return "-"
    mean, least, most = text(spread.mean), text(spread.least), text(spread.most)
    if spread.count == 1 or least == most:
        return mean
    number, _, unit = least.partition(" ")
    return f"{mean} ({number if most.endswith(f' {unit}') else least} to {most})"
