"""What a job whose groups train in step tells its launcher: how a group that dies is restarted.

One line on standard output, which the launcher reads and does not show.
"""

from __future__ import annotations

from hybridps.progress import SAYS

_BEGINS = f"{SAYS}restarts="

TOGETHER, ALONE = "together", "alone"
"""All groups are restarted, as nobody gives a restarted group the weights; or only the one that died, as the script
lets the others hand them over."""


def restarts_line(how: str) -> str:
    """Return the line.

    >>> parse_restarts(restarts_line(ALONE)), parse_restarts("hybridps: epoch=1")
    ('alone', None)
    """
    return f"{_BEGINS}{how}"


def parse_restarts(line: str) -> str | None:
    """Return what a line of a worker says; None for any other line."""
    how = line.removeprefix(_BEGINS).strip()
    return how if line.startswith(_BEGINS) and how in (TOGETHER, ALONE) else None
