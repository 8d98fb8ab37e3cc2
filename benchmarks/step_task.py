"""What a worker of benchmarks.step is told, and what it answers."""

from __future__ import annotations

import msgspec


class Told(msgspec.Struct, frozen=True):
    """What a worker is told. `kvstore`: the name of a type, or empty for no store."""

    network: str
    image_size: int
    batch_size: int
    workers: int
    untimed_steps: int
    steps: int
    kvstore: str = ""
    update_on_kvstore: bool = False
    meeting: str = ""
    """The path of the socket."""
    trace: bool = False
    """Whether the communication of hybridps is traced."""


class TracedBucket(msgspec.Struct, frozen=True):
    """A bucket of gradients: when it was complete, and when its sum began and ended, on the monotonic clock."""

    ready: float
    began: float
    ended: float
    nbytes: int


class TracedStep(msgspec.Struct, frozen=True):
    """A step of a worker: when its last gradient was computed, and its buckets in the order of their sums."""

    last_gradient: float
    buckets: list[TracedBucket]


class Timed(msgspec.Struct, frozen=True):
    """What a worker answers."""

    began: float
    """On the monotonic clock, which all processes of a host share."""
    ended: float
    cpu_seconds: float
    """Of all threads of the worker."""
    last_norm: float
    """Norm of the last parameter, as a rule a bias that began as zero: workers that share gradients have the same."""
    parameter_bytes: int
    traced: list[TracedStep] = []


class Round(msgspec.Struct, frozen=True):
    """What the workers of a contender answered in a round."""

    timed: list[Timed]
    disturbance: float
    """The part of the host's cores that other processes took meanwhile."""
