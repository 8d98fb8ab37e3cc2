"""The costs of a strategy in an epoch, in parts that can be reported as bottlenecks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GRADIENTS = "gradient exchange"
LAYERWISE = "layer-wise collectives"
POINT_TO_POINT = "point to point"
CONGESTION = "congestion"
SERVERS = "exchange with the servers"
PEERS = "exchange with peers"


@dataclass(frozen=True)
class Costs:
    """The seconds of an epoch and the bytes of one PE.

    `redundant_seconds` (computation that every PE repeats) and `idle_seconds` (waiting for the slowest part) are part
    of `passes_seconds`. `replicated_bytes` (memory that every PE repeats) is part of `memory_bytes`.
    """

    passes_seconds: float
    update_seconds: float
    memory_bytes: float
    communication_seconds: Mapping[str, float] = field(default_factory=dict)
    redundant_seconds: float = 0.0
    idle_seconds: float = 0.0
    replicated_bytes: float = 0.0

    @property
    def compute_seconds(self) -> float:
        return self.passes_seconds + self.update_seconds
