"""Shows the jobs of a running server, read from its Prometheus metrics over HTTP.

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

from hybridps.cli.top.table import PLAIN_WIDTH, Row, make_table, nbytes, number, printable
from hybridps.errors import ServerError

ANSWER_SECONDS = 5.0
"""The longest time that a server may take to answer."""

NEWER_SECONDS = 5.0
"""The longest time that a server may take to make a new snapshot."""

REFRESH_SECONDS = 1.0
_RETRY_SECONDS = 0.2
_LARGEST_ANSWER_BYTES = 64 << 20
_JOB_COLUMNS = ("JOB", "GROUPS", "ROUNDS/S", "LAG", "SLOWEST GROUP", "IN/S", "OUT/S", "MEMORY", "REFUSED")
_TABLE_COLUMNS = ("TABLE", "ROUNDS", "ROUNDS/S", "LAG", "SLOWEST GROUP", "LAST ROUND")
_LABELS = ("tenant", "job", "table")

Labels = tuple[str, ...]


def watch(address: str, *, once: bool, tables: bool) -> None:
    """Show the figures of a server until Ctrl-C, or only `once`. Raises ServerError if they cannot be read."""
    url = address if address.startswith(("http://", "https://")) else f"http://{address}/metrics"
    on_terminal = sys.stdout.isatty()
    console = Console(width=None if on_terminal else PLAIN_WIDTH)
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
                    last, shown = figures, figures  # another server has taken its place


def _two_snapshots(url: str) -> tuple[Figures, Figures]:
    """Return two successive snapshots. Raises ServerError if there is no second one within `NEWER_SECONDS`."""
    before = read(url)
    deadline_seconds = time.monotonic() + NEWER_SECONDS
    while (now := read(url)).uptime_seconds == before.uptime_seconds:
        if time.monotonic() >= deadline_seconds:
            raise ServerError(f"the server at {url} has made no new snapshot for {NEWER_SECONDS:g} s: it may hang")
        time.sleep(_RETRY_SECONDS)
    return before, now


@dataclass(frozen=True)
class Figures:
    """One snapshot of a server: the values of each metric (without `hybridps_`), by the values of its labels."""

    values: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)

    def of(self, name: str, *labels: str) -> float | None:
        """Return one value; None if the server does not report it."""
        return self.values.get(name, {}).get(labels)

    def labels(self, name: str) -> list[Labels]:
        """Return the labels for which the server reports a metric, sorted."""
        return sorted(self.values.get(name, {}))

    @property
    def uptime_seconds(self) -> float:
        """The age of the server when the snapshot was taken."""
        return self.of("uptime_seconds") or 0.0

    def rate(self, before: Figures, name: str, *labels: str) -> float | None:
        """Return the increase per second of a counter since an earlier snapshot; None if it is not known."""
        seconds = self.uptime_seconds - before.uptime_seconds
        value = self.of(name, *labels)
        if seconds <= 0 or value is None:
            return None
        return max(value - (before.of(name, *labels) or 0.0), 0.0) / seconds


def read(url: str) -> Figures:
    """Return the server's current figures. Raises ServerError."""
    # The servers are on the user's own network, so no proxy is used.
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
        raise ServerError(f"{url} serves no hybridps metrics: give the address that `hybridps serve` printed")
    return figures


def page(before: Figures, now: Figures, tables: bool = False) -> Group:
    """Return the figures `now`: a line for the process, a row per job and, on request, table. `before`: for rates."""
    shown: list[Text | Table] = [Text(_process_line(now)), Text(), make_table(_JOB_COLUMNS, job_rows(before, now))]
    if tables:
        shown += [Text(), make_table(_TABLE_COLUMNS, table_rows(before, now))]
    return Group(*shown)


def job_rows(before: Figures, now: Figures) -> list[Row]:
    """Return one row per job.

    The server accounts for traffic and memory by tenant. Without a list of tenants, each job is its own tenant. A
    tenant with several jobs gets a row of its own, above those of its jobs.
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
        rows.append((printable(tenant), number(groups), "", "", "", *usage))
        for job in of_tenant:
            rows.append((f"  {printable(job[1])}", *_job_progress(before, now, job), "", "", "", ""))
    return rows


def table_rows(before: Figures, now: Figures) -> list[Row]:
    """Return one row per table."""
    return [
        (
            printable("/".join(labels[1:] if labels[0] == labels[1] else labels)),
            number(now.of("table_rounds_total", *labels)),
            number(now.rate(before, "table_rounds_total", *labels)),
            *_lag(now, labels),
            f"{now.of('table_round_age_seconds', *labels) or 0:.0f} s ago",
        )
        for labels in now.labels("table_rounds_total")
    ]


def _job_progress(before: Figures, now: Figures, job: Labels) -> Iterator[str]:
    """Yield the groups, the rounds/s of the fastest table, and the lag and slowest group of the one furthest behind."""
    tables = [labels for labels in now.labels("table_rounds_total") if labels[:2] == job]
    rates = [rate for labels in tables if (rate := now.rate(before, "table_rounds_total", *labels)) is not None]
    yield number(now.of("job_groups", *job) or 0)
    yield number(max(rates, default=None))
    most_behind = max(tables, key=lambda labels: now.of("table_staleness_values", *labels) or 0, default=None)
    yield from ("-", "-") if most_behind is None else _lag(now, most_behind)


def _lag(now: Figures, table: Labels) -> Row:
    """Return the lag of a table's slowest group in rounds, and the number of that group, or "-" if there is no lag."""
    lag = now.of("table_staleness_values", *table)
    return number(lag), number(now.of("table_slowest_group", *table) if lag else None)


def _tenant_usage(before: Figures, now: Figures, tenant: str) -> Row:
    """Return bytes per second in and out, memory with its limit, and the number of refused requests."""
    memory, limit = now.of("tenant_memory_bytes", tenant), now.of("tenant_memory_limit_bytes", tenant)
    return (
        nbytes(now.rate(before, "tenant_received_bytes_total", tenant)),
        nbytes(now.rate(before, "tenant_sent_bytes_total", tenant)),
        nbytes(memory) + (f" of {nbytes(limit)}" if limit is not None else ""),
        number(now.of("tenant_refused_total", tenant)),
    )


def _process_line(now: Figures) -> str:
    return (
        f"up {now.uptime_seconds:.0f} s, {number(now.of('threads'))} threads, backlog {number(now.of('backlog'))}, "
        f"memory {nbytes(now.of('process_resident_memory_bytes'))}, "
        f"refused: {number(now.of('refused_requests_total'))} requests, "
        f"{number(now.of('refused_connections_total'))} connections"
    )
