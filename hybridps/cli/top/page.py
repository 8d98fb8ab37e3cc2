"""What `hybridps top` shows: one line per job, on request one line per table, and a line about the process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hybridps.cli.top.figures import Figures, Labels

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

_LONGEST_NAME = 48
_JOB_COLUMNS = ("JOB", "GROUPS", "ROUNDS/S", "LAG", "SLOWEST GROUP", "IN/S", "OUT/S", "MEMORY", "REFUSED")
_TABLE_COLUMNS = ("TABLE", "ROUNDS", "ROUNDS/S", "LAG", "SLOWEST GROUP", "LAST ROUND")

Row = tuple[str, ...]


def page(before: Figures, now: Figures, tables: bool = False) -> Group:
    """Render the figures `now`; rates are those since `before`."""
    from rich.console import Group
    from rich.text import Text

    shown: list[Text | Table] = [Text(_process_line(now)), Text(), _table(_JOB_COLUMNS, job_rows(before, now))]
    if tables:
        shown += [Text(), _table(_TABLE_COLUMNS, table_rows(before, now))]
    return Group(*shown)


def job_rows(before: Figures, now: Figures) -> list[Row]:
    """One row per job.

    The server accounts for traffic and memory by tenant. Without a list of tenants each job is a tenant of its own.
    A tenant that has several jobs gets a row of its own, above those of its jobs.
    """
    jobs = sorted({*now.labels("job_groups"), *(labels[:2] for labels in now.labels("table_rounds_total"))})
    rows: list[Row] = []
    for tenant in sorted({tenant for (tenant,) in now.labels("tenant_messages_total")} | {job[0] for job in jobs}):
        usage = _tenant_usage(before, now, tenant)
        of_tenant = [job for job in jobs if job[0] == tenant]
        if len(of_tenant) == 1:
            name = printable(tenant if of_tenant[0] == (tenant, tenant) else "/".join(of_tenant[0]))
            rows.append((name, *_job_progress(before, now, of_tenant[0]), *usage))
            continue
        groups = sum(now.of("job_groups", *job) or 0 for job in of_tenant)
        rows.append((printable(tenant), _number(groups), "", "", "", *usage))
        for job in of_tenant:
            rows.append((f"  {printable(job[1])}", *_job_progress(before, now, job), "", "", "", ""))
    return rows


def table_rows(before: Figures, now: Figures) -> list[Row]:
    """One row per table."""
    return [
        (
            printable("/".join(labels[1:] if labels[0] == labels[1] else labels)),
            _number(now.of("table_rounds_total", *labels)),
            _number(now.rate(before, "table_rounds_total", *labels)),
            *_lag(now, labels),
            f"{now.of('table_round_age_seconds', *labels) or 0:.0f} s ago",
        )
        for labels in now.labels("table_rounds_total")
    ]


def printable(text: str) -> str:
    """A name that somebody else chose, made safe for a terminal and cut to a bearable length.

    >>> printable("w" + chr(27) + "[2J")
    'w?[2J'
    """
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shown if len(shown) <= _LONGEST_NAME else shown[: _LONGEST_NAME - 3] + "..."


def _job_progress(before: Figures, now: Figures, job: Labels) -> Iterator[str]:
    """Groups, rounds per second, lag, slowest group. The fastest table counts, and the one that lags most."""
    tables = [labels for labels in now.labels("table_rounds_total") if labels[:2] == job]
    rates = [rate for labels in tables if (rate := now.rate(before, "table_rounds_total", *labels)) is not None]
    yield _number(now.of("job_groups", *job) or 0)
    yield _number(max(rates, default=None))
    most_behind = max(tables, key=lambda labels: now.of("table_staleness_values", *labels) or 0, default=None)
    yield from ("-", "-") if most_behind is None else _lag(now, most_behind)


def _lag(now: Figures, table: Labels) -> Row:
    """Lag of a table's slowest group in rounds, and which group that is; none is slowest if there is no lag."""
    lag = now.of("table_staleness_values", *table)
    return _number(lag), _number(now.of("table_slowest_group", *table) if lag else None)


def _tenant_usage(before: Figures, now: Figures, tenant: str) -> Row:
    """Bytes per second in and out, memory and its limit, refused requests."""
    memory, limit = now.of("tenant_memory_bytes", tenant), now.of("tenant_memory_limit_bytes", tenant)
    return (
        _bytes(now.rate(before, "tenant_received_bytes_total", tenant)),
        _bytes(now.rate(before, "tenant_sent_bytes_total", tenant)),
        _bytes(memory) + (f" of {_bytes(limit)}" if limit is not None else ""),
        _number(now.of("tenant_refused_total", tenant)),
    )


def _process_line(now: Figures) -> str:
    return (
        f"up {now.uptime_seconds:.0f} s, {_number(now.of('threads'))} threads, backlog {_number(now.of('backlog'))}, "
        f"memory {_bytes(now.process_memory_bytes)}, refused: {_number(now.of('refused_requests_total'))} requests, "
        f"{_number(now.of('refused_connections_total'))} connections"
    )


def _table(columns: Row, rows: list[Row]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for number, word in enumerate(columns):
        table.add_column(word, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value == int(value) else f"{value:.1f}"


def _bytes(value: float | None) -> str:
    if value is None:
        return "-"
    for unit in ("B", "KB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.4g} GB"
