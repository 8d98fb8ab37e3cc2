"""Formats the tables, numbers and names of `hybridps top`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from hybridps.quantities import rounded

PLAIN_WIDTH = 250
"""The columns of output that does not go to a terminal."""

_LONGEST_NAME = 48
_GAP = 2
"""The columns between two cells."""

Row = tuple[str, ...]


def make_table(
    columns: Row,
    rows: Sequence[Row | Sequence[Text]],
    left: int = 1,
    width: int = PLAIN_WIDTH,
    spare: Sequence[str] = (),
) -> Table:
    """Return a table without lines. The first `left` columns and a column STATE hold words, the others numbers.

    Columns that are `spare` are left out one after the other until the table fits into `width`.
    """
    widths = [max([len(word), *(len(row[place]) for row in rows)]) for place, word in enumerate(columns)]
    shown = [*range(len(columns))]
    for word in spare:
        if sum(widths[place] + _GAP for place in shown) > width + _GAP:
            shown.remove(columns.index(word))
    table = Table(box=None, pad_edge=False)
    for place in shown:
        is_word = place < left or columns[place] == "STATE"
        table.add_column(columns[place], justify="left" if is_word else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(cell if isinstance(cell := row[place], Text) else Text(cell) for place in shown))
    return table


def printable(text: str, longest: int = _LONGEST_NAME) -> str:
    """Return a name that somebody else chose, made safe for a terminal and cut to a reasonable length.

    >>> printable("w" + chr(27) + "[2J")
    'w?[2J'
    """
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shown if len(shown) <= longest else shown[: longest - 3] + "..."


def number(value: float | None) -> str:
    """Return a number as text: whole, or with one decimal; "-" if it is not known.

    >>> number(3.0), number(3.14), number(None)
    ('3', '3.1', '-')
    """
    return "-" if value is None else f"{value:.0f}" if value == int(value) else f"{value:.1f}"


def nbytes(value: float | None) -> str:
    """Return a number of bytes with a unit; "-" if it is not known.

    >>> nbytes(999), nbytes(1.5e6), nbytes(None)
    ('999 B', '1.5 MB', '-')
    """
    if value is None:
        return "-"
    for unit in ("B", "KB", "MB"):
        if value < 1000:
            return f"{rounded(value)} {unit}"
        value /= 1000
    return f"{rounded(value, 4)} GB"
