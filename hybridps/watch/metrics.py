"""The metrics of the workers of a run, over HTTP in the form of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter as get
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hybridps.errors import ServerError
from hybridps.live import Live, Report, WorkerStatus
from hybridps.live.reading import report_of

LABELS = ("worker", "group", "host")

METRICS: dict[Any, dict[str, tuple[Callable[[WorkerStatus], float | None], str]]] = {
    CounterMetricFamily: {
        "worker_steps": (get("steps"), "Steps done."),
        "worker_cpu_seconds": (get("cpu_seconds"), "CPU time of the process."),
        "worker_exchanges": (get("exchanges"), "Exchanges of weights."),
        "worker_skipped_exchanges": (get("skipped"), "Exchanges that were left out because a server was away."),
        "worker_sent_bytes": (get("bytes_to_servers"), "Payload sent to servers, or to other groups."),
        "worker_received_bytes": (get("bytes_from_servers"), "Payload received from servers."),
    },
    GaugeMetricFamily: {
        "worker_step_seconds": (get("step_seconds"), "Time of a step, median of the latest ones."),
        "worker_own_seconds": (get("own_seconds"), "Its part without communication: program and gradients."),
        "worker_program_seconds": (get("program_seconds"), "Its part before the program begins the step: the loader."),
        "worker_waiting_seconds": (get("waiting_seconds"), "Its part spent waiting for slower workers."),
        "worker_slow_factor": (get("factor"), "How many times as long as the others it takes; 1 unless it is slow."),
        "worker_distance": (get("distance"), "Relative distance between weights and centre at the last exchange."),
        "worker_restarts": (get("life"), "How often its group was restarted."),
    },
}
"""The metrics of workers, by kind: how each is read (None: no value), and what it is. The names lack `hybridps_`."""

MODEL_METRICS: dict[str, tuple[Callable[[Report], float | None], str]] = {
    "worker_epoch": (get("epoch"), "Epochs done, as the script has reported."),
    "worker_loss": (get("loss"), "Loss that the script has reported last."),
    "worker_accuracy": (get("accuracy"), "Accuracy that the script has reported last."),
    "worker_centre_accuracy": (get("centre_accuracy"), "Accuracy of the centre that the script has reported last."),
}
"""Gauges of what scripts report about their models."""


class RunMetrics(Collector):
    """Exposes the latest look at a run at `url` until `close`. Raises ServerError if the port cannot be used."""

    def __init__(self, bind: str, port: int) -> None:
        self._latest: Live | None = None
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, bind, registry)
        except OSError as error:
            raise ServerError(
                f"metrics of the workers cannot be served at {bind}:{port}: {error.strerror}; use another port for "
                "HYBRIDPS_WORKER_METRICS_PORT, or 0 for any that is free"
            ) from None
        host = f"[{bind}]" if ":" in bind else bind
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    def look(self, before: Live, now: Live) -> None:
        """Expose this look from now on."""
        self._latest = now

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics of one look."""
        seen = () if self._latest is None else [each.status for _, each in sorted(self._latest.workers.items())]
        for family, metrics in METRICS.items():
            for name, (read, description) in metrics.items():
                yield _metric(family, name, description, [(status, read(status)) for status in seen])
        for name, (of_report, description) in MODEL_METRICS.items():
            values = [
                (status, None if (report := report_of(self._latest, status.worker)) is None else of_report(report))
                for status in seen
                if self._latest is not None
            ]
            yield _metric(GaugeMetricFamily, name, description, values)


def _metric(family: Any, name: str, description: str, values: list[tuple[WorkerStatus, float | None]]) -> Metric:
    metric: Metric = family(f"hybridps_{name}", description, labels=LABELS)
    for status, value in values:
        if value is not None:
            metric.add_metric((str(status.worker), str(status.group), status.host), float(value))  # type: ignore[attr-defined]
    return metric
