"""The metrics of a server, over HTTP in the form of Prometheus.

The loop makes snapshots of the counters, which never change afterwards, so that any thread may read the latest one
without a lock. They contain no secrets.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from operator import attrgetter as get
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hybridps.config import Settings
from hybridps.errors import ServerError

if TYPE_CHECKING:
    from hybridps.ps.server.loop import Loop

SNAPSHOT_SECONDS = 0.5
"""The shortest time between two snapshots. An idle server makes them too."""

MOST_TABLES = 1000
"""The number of tables in a snapshot, so that a tenant with more of them cannot make it long."""

Labels = tuple[str, ...]
SERVER, TENANT, JOB, TABLE = (), ("tenant",), ("tenant", "job"), ("tenant", "job", "table")

METRICS: dict[tuple[Any, Labels], dict[str, tuple[Callable[[Any], float | None], str]]] = {
    (GaugeMetricFamily, SERVER): {
        "uptime_seconds": (get("age_seconds"), "Age of the server when these figures were taken."),
        "threads": (get("loop.workers.count"), "Threads that share the chunks."),
        "backlog": (get("loop.workers.backlog"), "Tasks handed to the threads and not done."),
        "snapshot_age_seconds": (get("snapshot_age_seconds"), "Seconds since a snapshot of tables was completed."),
    },
    (CounterMetricFamily, SERVER): {
        "refused_requests": (get("loop.refused"), "Requests refused, of all clients."),
        "refused_connections": (get("loop.transport.door.refused"), "Connections refused or broken off."),
    },
    (CounterMetricFamily, TENANT): {
        "tenant_messages": (get("messages"), "Messages carried out or refused."),
        "tenant_received_bytes": (
            get("received_bytes"),
            "Bytes of messages received, with about 4 KB for each message.",
        ),
        "tenant_served_bytes": (
            get("served_bytes"),
            "Bytes of chunks read or written, in which shares and rates are measured.",
        ),
        "tenant_sent_bytes": (get("sent_bytes"), "Payload bytes of answers."),
        "tenant_refused": (get("refused"), "Requests refused."),
        "tenant_not_finite": (get("not_finite"), "Requests refused for NaN or Inf."),
        "tenant_rested_seconds": (get("rested_seconds"), "Seconds that a tenant was held back by its rate."),
    },
    (GaugeMetricFamily, TENANT): {
        "tenant_memory_bytes": (get("budget.used_bytes"), "Memory used."),
        "tenant_waiting_messages": (lambda account: len(account.waiting), "Messages in the queue."),
        "tenant_memory_limit_bytes": (get("budget.limit_bytes"), "Memory quota, if any."),
    },
    (GaugeMetricFamily, JOB): {"job_groups": (int, "Groups that are there.")},
    (CounterMetricFamily, TABLE): {"table_rounds": (get("rounds"), "Rounds computed, of all chunks.")},
    (GaugeMetricFamily, TABLE): {
        "table_staleness_values": (
            get("staleness_values"),
            "Number of values that the slowest group is behind the one furthest ahead.",
        ),
        "table_slowest_group": (get("slowest_group"), "Index of the slowest group."),
        "table_round_age_seconds": (get("age_seconds"), "Seconds since a round was computed, to about one second."),
    },
}
"""The metrics by kind and labels: how each is read (None: it has no value), and what it is. Their full names begin with
`hybridps_`."""


class _TableState(NamedTuple):
    rounds: float
    staleness_values: float
    slowest_group: int | None
    moved_seconds: float
    """When a snapshot first had this number of rounds."""
    age_seconds: float


class Observer(Collector):
    """Makes snapshots, on the loop's thread. Any thread may read `latest`."""

    def __init__(self, loop: Loop) -> None:
        self.latest: Mapping[str, Mapping[Labels, float]] = {}
        """The values of each metric, by its labels."""
        self.loop = loop
        self.age_seconds = 0.0
        self._began_seconds = self._due_seconds = time.monotonic()
        self._tables: dict[Labels, _TableState] = {}

    @property
    def snapshot_age_seconds(self) -> float | None:
        """The time since a snapshot of the tables was completed; None if none was."""
        return None if self.loop.snapshots is None else self.loop.snapshots.age_seconds

    def look(self, now: float) -> None:
        """Make a snapshot if one is due."""
        if now < self._due_seconds:
            return
        self._due_seconds = now + SNAPSHOT_SECONDS
        self.age_seconds = now - self._began_seconds
        self._look_at_tables(now)
        groups = Counter((member.account.name, member.job.rpartition("/")[2]) for member in self.loop.members)
        tenants = {(account.name,): account for account in self.loop.accounts}
        of: dict[Labels, Mapping[Any, Any]] = {SERVER: {(): self}, TENANT: tenants, JOB: groups, TABLE: self._tables}
        self.latest = {
            name: {labels: value for labels, state in of[kind].items() if (value := read(state)) is not None}
            for (_, kind), metrics in METRICS.items()
            for name, (read, _) in metrics.items()
        }

    def collect(self) -> Iterable[Metric]:
        """Return all metrics of one snapshot."""
        latest = self.latest
        for (family, names), metrics in METRICS.items():
            for name, (_, description) in metrics.items():
                metric = family(f"hybridps_{name}", description, labels=names)
                for labels, value in latest.get(name, {}).items():
                    metric.add_metric(labels, value)
                yield metric

    def _look_at_tables(self, now: float) -> None:
        before, self._tables = self._tables, {}
        for job, table in islice(self.loop.jobs.tables(), MOST_TABLES):
            tenant, _, name = job.rpartition("/")  # without tenants each job is one
            labels = tenant or name, name, table.name
            (slowest, behind), elements = table.rounds.lag, max(table.elements, 1)
            known, rounds = before.get(labels), table.rounds.computed / elements
            moved = known.moved_seconds if known is not None and known.rounds == rounds else now
            self._tables[labels] = _TableState(rounds, behind / elements, slowest, moved, now - moved)


def serve_metrics(observe: Callable[[], Observer], settings: Settings) -> list[str]:
    """Expose the metrics of the server that `observe` observes, if a port is set. Returns a line that says where.

    Other threads answer HTTP, until the process ends. Raises ServerError.
    """
    bind, port = settings.metrics_bind, settings.metrics_port
    if port is None:
        return []
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(observe())
    try:
        server, _ = start_http_server(port, bind, registry)
    except OSError as error:
        raise ServerError(
            f"metrics cannot be served at {bind}:{port}: {error.strerror}; use another port, or 0 for any that is free"
        ) from None
    host = f"[{bind}]" if ":" in bind else bind
    return [f"hybridps: metrics at http://{host}:{server.server_port}/metrics"]
