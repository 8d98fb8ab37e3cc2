"""`hybridps top`: shows the jobs of a running server, read from its Prometheus metrics over HTTP.

The command calls `watch`. `read` returns a server's figures, and `page` renders them; tests use these two as well.
"""

from __future__ import annotations

import contextlib
import http.client
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hybridps.errors import ServerError

ANSWER_SECONDS = 5.0
"""Longest time that a server may take to answer."""

NEWER_SECONDS = 5.0
"""Longest time that a server may take to make a new snapshot."""

REFRESH_SECONDS = 1.0
_RETRY_SECONDS = 0.2
_LARGEST_ANSWER_BYTES = 64 << 20
_PLAIN_WIDTH = 250
_LONGEST_NAME = 48
_JOB_COLUMNS = ("JOB", "GROUPS", "ROUNDS/S", "LAG", "SLOWEST GROUP", "IN/S", "OUT/S", "MEMORY", "REFUSED")
_TABLE_COLUMNS = ("TABLE", "ROUNDS", "ROUNDS/S", "LAG", "SLOWEST GROUP", "LAST ROUND")
_LABELS = ("tenant", "job", "table")

Labels = tuple[str, ...]
Row = tuple[str, ...]


def watch(address: str, *, once: bool, tables: bool) -> None:
    """Show the figures of a server until Ctrl-C, or `once`. Raises ServerError if they cannot be read."""
    url = address if address.startswith(("http://", "https://")) else f"http://{address}/metrics"
    on_terminal = sys.stdout.isatty()
    console = Console(width=None if on_terminal else _PLAIN_WIDTH)
    with contextlib.suppress(KeyboardInterrupt):
        last, shown = _two_snapshots(url)
        if once:
            console.print(page(last, shown, tables))
            return
        with Live(page(last, shown, tables), console=console, screen=on_terminal, auto_refresh=False) as live:
            while True:
                time.sleep(REFRESH_SECONDS)
                figures = read(url)
                if figures.uptime_seconds > shown.uptime_seconds:
                    last, shown = shown, figures
                    live.update(page(last, shown, tables), refresh=True)
                elif figures.uptime_seconds < shown.uptime_seconds:
                    last, shown = figures, figures  # another server


def _two_snapshots(url: str) -> tuple[Figures, Figures]:
    """Two snapshots in a row. Raises ServerError if the second one does not come within `NEWER_SECONDS`."""
    before = read(url)
    deadline_seconds = time.monotonic() + NEWER_SECONDS
    while (now := read(url)).uptime_seconds == before.uptime_seconds:
        if time.monotonic() >= deadline_seconds:
            raise ServerError(f"the server at {url} made no new snapshot for {NEWER_SECONDS:g} s: it hangs")
        time.sleep(_RETRY_SECONDS)
    return before, now


@dataclass(frozen=True)
class Figures:
    """One snapshot of a server: the values of each metric (without `hybridps_`), by the values of its labels."""

    values: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)

    def of(self, name: str, *labels: str) -> float | None:
        """One value; None if the server does not report it."""
        return self.values.get(name, {}).get(labels)

    def labels(self, name: str) -> list[Labels]:
        """The labels for which the server reports a metric, sorted."""
        return sorted(self.values.get(name, {}))

    @property
    def uptime_seconds(self) -> float:
        """Age of the server when the snapshot was taken."""
        return self.of("uptime_seconds") or 0.0

    def rate(self, before: Figures, name: str, *labels: str) -> float | None:
        """Increase per second of a counter since an earlier snapshot; None if it is not known."""
        seconds = self.uptime_seconds - before.uptime_seconds
        value = self.of(name, *labels)
        if seconds <= 0 or value is None:
            return None
        return max(value - (before.of(name, *labels) or 0.0), 0.0) / seconds


def read(url: str) -> Figures:
    """The server's current figures. Raises ServerError."""
    # The servers are on the user's own network: no proxy is used for them.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=ANSWER_SECONDS) as answer:
            text = answer.read(_LARGEST_ANSWER_BYTES).decode()
        families = [*text_string_to_metric_families(text)]
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = getattr(error, "reason", None) or error
        raise ServerError(
            f"no metrics at {url}: {why}; is `hybridps serve --metrics-port PORT` running there?"
        ) from None
    values: dict[str, dict[Labels, float]] = {}
    for family in families:
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in _LABELS if name in sample.labels)
            values.setdefault(sample.name.removeprefix("hybridps_"), {})[labels] = sample.value
    figures = Figures(values)
    if not figures.labels("uptime_seconds"):
        raise ServerError(f"{url} has no metrics of hybridps: give the address that `hybridps serve` printed")
    return figures


def page(before: Figures, now: Figures, tables: bool = False) -> Group:
    """The figures `now`: a line about the process, one per job, on request one per table; rates since `before`."""
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
        f"memory {_bytes(now.of('process_resident_memory_bytes'))}, "
        f"refused: {_number(now.of('refused_requests_total'))} requests, "
        f"{_number(now.of('refused_connections_total'))} connections"
    )


def _table(columns: Row, rows: list[Row]) -> Table:
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
