"""`hybridps top`: what a server does, read from its metrics."""

from __future__ import annotations

import http.client
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hybridps.errors import ServerError

if TYPE_CHECKING:
    from rich.console import Console, Group

REFRESH_SECONDS = 1.0
ANSWER_SECONDS = 5.0
NEWER_SECONDS = 5.0
"""So long a server may take for a second snapshot."""

_AGAIN_SECONDS = 0.2
_PLAIN_WIDTH = 250
_LONGEST_NAME = 48
_LARGEST_ANSWER_BYTES = 64 << 20

Labels = tuple[str, ...]
_LABELS = ("tenant", "job", "table")


@dataclass(frozen=True)
class Figures:
    """What a server told: of each metric, its value for the values of its labels."""

    values: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)

    def of(self, name: str, *labels: str) -> float | None:
        """One value."""
        return self.values.get(f"hybridps_{name}", {}).get(labels)

    def labels(self, name: str) -> list[Labels]:
        """For what there are values of a metric."""
        return sorted(self.values.get(f"hybridps_{name}", {}))

    @property
    def uptime_seconds(self) -> float:
        """When the figures were taken."""
        return self.of("uptime_seconds") or 0.0


def watch(address: str, once: bool) -> None:
    """Show the figures of a server until Ctrl-C, or `once`. Raises ServerError if they cannot be read."""
    url = url_of(address)
    if once:
        _console().print(page(*_two(url)))
        return
    try:
        _watch(url)
    except KeyboardInterrupt:
        return


def url_of(address: str) -> str:
    """The URL that an address stands for.

    >>> url_of("127.0.0.1:9100"), url_of("http://node1:9100/metrics")
    ('http://127.0.0.1:9100/metrics', 'http://node1:9100/metrics')
    """
    if address.startswith(("http://", "https://")):
        return address
    return f"http://{address}/metrics"


def read(url: str) -> Figures:
    """What the server tells now. Raises ServerError."""
    from prometheus_client.parser import text_string_to_metric_families

    # Servers are in one's own network: no proxy is asked for them.
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
            values.setdefault(sample.name, {})[labels] = sample.value
    figures = Figures(values)
    if not figures.labels("uptime_seconds"):
        raise ServerError(f"{url} has no metrics of hybridps: give the address that `hybridps serve` printed")
    return figures


def page(before: Figures, now: Figures) -> Group:
    """Two tables, and a line about the process. Rates are those between the two."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    tenants, tables = _rows_of_tenants(before, now), _rows_of_tables(before, now)
    shown = []
    for rows in (tenants, tables):
        head, *rest = rows
        table = Table(box=None, pad_edge=False)
        for number, word in enumerate(head):
            table.add_column(word, justify="left" if number == 0 else "right", no_wrap=True)
        for row in rest:
            table.add_row(*map(Text, row))
        shown.append(table)
    return Group(Text(_process_line(now)), Text(), shown[0], Text(), shown[1])


def _rows_of_tenants(before: Figures, now: Figures) -> list[list[str]]:
    rows = [["TENANT", "JOBS", "GROUPS", "MESSAGES/S", "IN/S", "OUT/S", "MEMORY", "WAITING", "REFUSED", "NOT FINITE"]]
    for (tenant,) in now.labels("tenant_messages_total"):
        groups = [now.of("job_groups", *labels) or 0 for labels in now.labels("job_groups") if labels[0] == tenant]
        memory, limit = now.of("tenant_memory_bytes", tenant), now.of("tenant_memory_limit_bytes", tenant)
        rows.append(
            [
                printable(tenant),
                str(len(groups)),
                f"{sum(groups):.0f}",
                _number(_rate("tenant_messages_total", before, now, tenant)),
                _bytes(_rate("tenant_received_bytes_total", before, now, tenant)),
                _bytes(_rate("tenant_sent_bytes_total", before, now, tenant)),
                _bytes(memory) + (f" of {_bytes(limit)}" if limit is not None else ""),
                _number(now.of("tenant_waiting_messages", tenant)),
                _number(now.of("tenant_refused_total", tenant)),
                _number(now.of("tenant_not_finite_total", tenant)),
            ]
        )
    return rows


def _rows_of_tables(before: Figures, now: Figures) -> list[list[str]]:
    rows = [["TABLE", "ROUNDS", "ROUNDS/S", "STALENESS", "SLOWEST GROUP", "LAST ROUND"]]
    for labels in now.labels("table_rounds_total"):
        tenant, job, table = labels
        name = f"{job}/{table}" if tenant == job else f"{tenant}/{job}/{table}"
        rows.append(
            [
                printable(name),
                _number(now.of("table_rounds_total", *labels)),
                _number(_rate("table_rounds_total", before, now, *labels)),
                _number(now.of("table_staleness_values", *labels)),
                _number(now.of("table_slowest_group", *labels)),
                f"{now.of('table_round_age_seconds', *labels) or 0:.0f} s ago",
            ]
        )
    return rows


def _process_line(now: Figures) -> str:
    memory = now.values.get("process_resident_memory_bytes", {}).get(())
    return (
        f"up {now.uptime_seconds:.0f} s, {_number(now.of('threads'))} threads, backlog {_number(now.of('backlog'))}, "
        f"memory {_bytes(memory)}, refused: {_number(now.of('refused_requests_total'))} requests, "
        f"{_number(now.of('refused_connections_total'))} connections"
    )


def printable(text: str) -> str:
    """A name that somebody else chose, as a terminal may show it.

    >>> printable("w" + chr(27) + "[2J")
    'w?[2J'
    """
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shown if len(shown) <= _LONGEST_NAME else shown[: _LONGEST_NAME - 3] + "..."


def _rate(name: str, before: Figures, now: Figures, *labels: str) -> float | None:
    """Per second; None if it is not known yet."""
    seconds = now.uptime_seconds - before.uptime_seconds
    value = now.of(name, *labels)
    if seconds <= 0 or value is None:
        return None
    return max(value - (before.of(name, *labels) or 0.0), 0.0) / seconds


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


def _console() -> Console:
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=_PLAIN_WIDTH)


def _two(url: str) -> tuple[Figures, Figures]:
    """Figures of two moments. Raises ServerError if there is no second one for `NEWER_SECONDS`."""
    return (before := read(url)), _newer(url, before, time.monotonic() + NEWER_SECONDS)


def _newer(url: str, before: Figures, deadline_seconds: float) -> Figures:
    while (now := read(url)).uptime_seconds == before.uptime_seconds:
        if time.monotonic() >= deadline_seconds:
            raise ServerError(f"the server at {url} took no new figures for {NEWER_SECONDS:g} s: it hangs")
        time.sleep(_AGAIN_SECONDS)
    return now


def _watch(url: str) -> None:
    from rich.live import Live

    last, shown = _two(url)
    with Live(page(last, shown), console=_console(), screen=sys.stdout.isatty(), auto_refresh=False) as live:
        for figures in _each_second(url):
            if figures.uptime_seconds > shown.uptime_seconds:
                last, shown = shown, figures
                live.update(page(last, shown), refresh=True)
            elif figures.uptime_seconds < shown.uptime_seconds:
                last, shown = figures, figures  # another server


def _each_second(url: str) -> Iterator[Figures]:
    while True:
        time.sleep(REFRESH_SECONDS)
        yield read(url)
