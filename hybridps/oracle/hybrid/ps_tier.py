"""The tier with parameter servers: the bandwidth that a placement needs (PHub), and the time of an exchange."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from hybridps.errors import OracleError
from hybridps.oracle.machines import Link, Machine

Numbers = Any
"""A float, or an array of floats."""

PLACEMENTS = ("colocated centralised", "colocated sharded", "non-colocated centralised", "non-colocated sharded")


def placement_bytes_per_second(placement: str, model_bytes: float, compute_seconds: float, workers: int) -> float:
    """Return the lowest bandwidth of a server's host that hides communication behind compute.

    For a model of M bytes, N workers and T seconds of compute: colocated centralised 2 M (N - 1) / T, colocated sharded
    4 M (N - 1) / (T N), non-colocated centralised 2 M N / T, non-colocated sharded 2 M / T (PHub, 1805.07891). Raises
    OracleError for other placements and impossible numbers.
    """
    if placement not in PLACEMENTS:
        raise OracleError(f"unknown placement {placement!r}: use one of {', '.join(PLACEMENTS)}")
    if workers < 1 or not model_bytes > 0 or not compute_seconds > 0:
        raise OracleError(
            f"a model of {model_bytes:g} bytes, {compute_seconds:g} seconds and {workers} workers are impossible: "
            "give numbers above 0"
        )
    rate = model_bytes / compute_seconds
    factors = (2 * (workers - 1), 4 * (workers - 1) / workers, 2 * workers, 2)
    return rate * factors[PLACEMENTS.index(placement)]


@dataclass(frozen=True)
class Tier:
    """The servers of a job: their number, the chunk size, the jobs that share them, and the racks.

    Each rack has its own servers. `servers` and `chunk_bytes` may be arrays; all times are then arrays too.
    """

    servers: Numbers = 1
    chunk_bytes: Numbers = 1 << 20
    tenants: int = 1
    racks: int = 1

    def __post_init__(self) -> None:
        for name in ("servers", "chunk_bytes", "tenants", "racks"):
            if np.min(getattr(self, name)) < 1:
                raise OracleError(f"{name}={getattr(self, name)}: give 1 or more")


def exchange_seconds(machine: Machine, link: Link, tier: Tier, clients: int, model_bytes: float) -> Numbers:
    """Return the seconds in which all `clients` push a model and receive the answer, chunk by chunk, over `link`.

    A chunk passes five stages: out of a client, into a server, its aggregation, out of the server, into the client. All
    stages work at once, on different chunks. The whole exchange therefore takes all stages for the first chunk, and the
    slowest stage for each of the rest. With R racks, the clients of a rack use its own servers. These then run an
    allreduce with those of other racks: 1 / N of the traffic of N workers per rack.
    """
    if clients < 1 or model_bytes <= 0:
        raise OracleError(f"{clients} clients and {model_bytes:g} bytes cannot be exchanged: give more than 0")
    chunks, stages = _stages(machine, link, tier, -(-clients // tier.racks), model_bytes)
    inside = sum(stages) + (chunks - 1) * reduce(np.maximum, stages)
    return inside + tier.tenants * link.allreduce_seconds(tier.racks, model_bytes / tier.servers)


def server_busy_seconds(machine: Machine, link: Link, tier: Tier, clients: int, model_bytes: float) -> Numbers:
    """Return the seconds that the servers are busy with one exchange of each of `clients`."""
    chunks, (_, incoming, adding, _, _) = _stages(machine, link, tier, -(-clients // tier.racks), model_bytes)
    return chunks * np.maximum(incoming, adding)


def _stages(
    machine: Machine, link: Link, tier: Tier, clients: int, model_bytes: float
) -> tuple[Numbers, tuple[Numbers, ...]]:
    """Return the number of chunks, and the seconds of each stage for one chunk of all clients.

    Servers work in parallel on different chunks; tenants share them equally. A client sends one chunk at a time.
    """
    chunks = np.ceil(model_bytes / np.minimum(tier.chunk_bytes, model_bytes))
    chunk_bytes = model_bytes / chunks
    client = link.message_seconds(chunk_bytes)
    share = tier.tenants * clients / np.minimum(tier.servers, chunks)
    bandwidth = machine.server_bandwidth_bytes_per_second
    byte_seconds = 1 / bandwidth if bandwidth else link.seconds_per_byte
    server = share * (machine.server_message_seconds + chunk_bytes * byte_seconds)
    rate = machine.aggregate_bytes_per_second
    return chunks, (client, server, share * chunk_bytes / rate if rate else 0.0 * share, server, client)
