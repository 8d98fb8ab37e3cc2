"""A server's metrics over HTTP, in the form of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hybridps.config import Settings
from hybridps.errors import ServerError
from hybridps.ps.observer import Observer, TableState, TenantState


class ServerCollector(Collector):
    """The latest snapshot as metrics."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def collect(self) -> Iterable[Metric]:
        """All metrics of one snapshot."""
        seen = self._observer.latest
        yield _gauge("uptime_seconds", "Age of the server when these figures were taken.", seen.uptime_seconds)
        yield _gauge("threads", "Threads that share the chunks.", seen.threads)
        yield _gauge("backlog", "Pieces of work handed to the threads and not done.", seen.backlog)
        yield _counter("refused_requests", "Requests refused, of all clients.", seen.refused)
        yield _counter("refused_connections", "Connections refused or broken off.", seen.refused_connections)
        yield from _tenant_metrics(seen.tenants)
        groups = GaugeMetricFamily("hybridps_job_groups", "Groups that are there.", labels=("tenant", "job"))
        for job in seen.jobs:
            groups.add_metric((job.tenant, job.job), job.groups)
        yield groups
        yield from _table_metrics(seen.tables)


def serve_metrics(observe: Callable[[], Observer], settings: Settings) -> list[str]:
    """Tell the metrics of a server that is `observe`d, if that is wanted; returns a line that says where.

    HTTP is answered in threads of their own, until the process ends. Raises ServerError.
    """
    bind, port = settings.metrics_bind, settings.metrics_port
    return [] if port is None else [f"hybridps: metrics at {_listen(observe(), bind, port)}"]


def _listen(observer: Observer, bind: str, port: int) -> str:
    """The URL."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(ServerCollector(observer))
    try:
        server, _ = start_http_server(port, bind, registry)
    except OSError as error:
        raise ServerError(
            f"metrics cannot be served at {bind}:{port}: {error.strerror}; use another port, or 0 for any that is free"
        ) from None
    host = f"[{bind}]" if ":" in bind else bind
    return f"http://{host}:{server.server_port}/metrics"


_OF_TENANT = (
    ("messages", "Messages carried out or refused."),
    ("received_bytes", "Bytes of messages received, with about 4 KB for each message."),
    ("served_bytes", "Bytes of chunks read or written: what a tenant's share and rate are measured in."),
    ("sent_bytes", "Payload bytes of answers."),
    ("refused", "Requests refused."),
    ("not_finite", "Requests refused for NaN or Inf."),
    ("rested_seconds", "Seconds of rest that a tenant's rate has cost it."),
)


def _tenant_metrics(tenants: tuple[TenantState, ...]) -> Iterator[Metric]:
    for name, said in _OF_TENANT:
        counter = CounterMetricFamily(f"hybridps_tenant_{name}", said, labels=("tenant",))
        for tenant in tenants:
            counter.add_metric((tenant.tenant,), getattr(tenant, name))
        yield counter
    memory = GaugeMetricFamily("hybridps_tenant_memory_bytes", "Memory used.", labels=("tenant",))
    limit = GaugeMetricFamily("hybridps_tenant_memory_limit_bytes", "Memory quota, if any.", labels=("tenant",))
    waiting = GaugeMetricFamily("hybridps_tenant_waiting_messages", "Messages in the queue.", labels=("tenant",))
    for tenant in tenants:
        memory.add_metric((tenant.tenant,), tenant.memory_bytes)
        waiting.add_metric((tenant.tenant,), tenant.waiting)
        if tenant.memory_limit_bytes is not None:
            limit.add_metric((tenant.tenant,), tenant.memory_limit_bytes)
    yield from (memory, limit, waiting)


def _table_metrics(tables: tuple[TableState, ...]) -> Iterator[Metric]:
    labels = ("tenant", "job", "table")
    rounds = CounterMetricFamily("hybridps_table_rounds", "Rounds computed, of all chunks.", labels=labels)
    said = "Values that the slowest group is behind the furthest one."
    staleness = GaugeMetricFamily("hybridps_table_staleness_values", said, labels=labels)
    slowest = GaugeMetricFamily("hybridps_table_slowest_group", "Index of the slowest group.", labels=labels)
    said = "Seconds since a round was computed, to about one."
    age = GaugeMetricFamily("hybridps_table_round_age_seconds", said, labels=labels)
    for table in tables:
        names = table.tenant, table.job, table.table
        rounds.add_metric(names, table.rounds)
        staleness.add_metric(names, table.behind)
        age.add_metric(names, table.age_seconds)
        if table.slowest is not None:
            slowest.add_metric(names, table.slowest)
    yield from (rounds, staleness, slowest, age)


def _gauge(name: str, said: str, value: float) -> Metric:
    return GaugeMetricFamily(f"hybridps_{name}", said, value)


def _counter(name: str, said: str, value: float) -> Metric:
    return CounterMetricFamily(f"hybridps_{name}", said, value)
