"""The metrics of a server over HTTP, in the form of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hybridps.config import Settings
from hybridps.errors import ServerError
from hybridps.ps.server.observer import METRICS, Observer

_FAMILIES: dict[str, Any] = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}


class ServerCollector(Collector):
    """The latest snapshot as metrics."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def collect(self) -> Iterable[Metric]:
        """All metrics of one snapshot."""
        latest = self._observer.latest
        for name, (kind, labels, description) in METRICS.items():
            family = _FAMILIES[kind](f"hybridps_{name}", description, labels=labels)
            for of, value in latest.get(name, {}).items():
                family.add_metric(of, value)
            yield family


def serve_metrics(observe: Callable[[], Observer], settings: Settings) -> list[str]:
    """Expose the metrics of a server that is `observe`d, if that is wanted; returns a line that says where.

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
