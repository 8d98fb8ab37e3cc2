"""A server's figures, read from its metrics over HTTP."""

from __future__ import annotations

import http.client
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field

from hybridps.errors import ServerError

ANSWER_SECONDS = 5.0
"""Longest time that a server may take to answer."""

_LARGEST_ANSWER_BYTES = 64 << 20

Labels = tuple[str, ...]
_LABELS = ("tenant", "job", "table")


@dataclass(frozen=True)
class Figures:
    """One snapshot of a server: the values of each metric, by the values of its labels."""

    values: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)

    def of(self, name: str, *labels: str) -> float | None:
        """One value; None if the server does not report it."""
        return self.values.get(f"hybridps_{name}", {}).get(labels)

    def labels(self, name: str) -> list[Labels]:
        """The labels for which the server reports a metric, sorted."""
        return sorted(self.values.get(f"hybridps_{name}", {}))

    @property
    def uptime_seconds(self) -> float:
        """Age of the server when the snapshot was taken."""
        return self.of("uptime_seconds") or 0.0

    @property
    def process_memory_bytes(self) -> float | None:
        """Resident memory of the server's process."""
        return self.values.get("process_resident_memory_bytes", {}).get(())

    def rate(self, before: Figures, name: str, *labels: str) -> float | None:
        """Increase per second of a counter since an earlier snapshot; None if it is not known."""
        seconds = self.uptime_seconds - before.uptime_seconds
        value = self.of(name, *labels)
        if seconds <= 0 or value is None:
            return None
        return max(value - (before.of(name, *labels) or 0.0), 0.0) / seconds


def url_of(address: str) -> str:
    """The URL of the metrics at an address.

    >>> url_of("127.0.0.1:9100"), url_of("http://node1:9100/metrics")
    ('http://127.0.0.1:9100/metrics', 'http://node1:9100/metrics')
    """
    if address.startswith(("http://", "https://")):
        return address
    return f"http://{address}/metrics"


def read(url: str) -> Figures:
    """The server's current figures. Raises ServerError."""
    from prometheus_client.parser import text_string_to_metric_families

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
            values.setdefault(sample.name, {})[labels] = sample.value
    figures = Figures(values)
    if not figures.labels("uptime_seconds"):
        raise ServerError(f"{url} has no metrics of hybridps: give the address that `hybridps serve` printed")
    return figures
