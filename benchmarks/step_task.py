"""The task of a worker of benchmarks.step, and its answer."""

from __future__ import annotations

import msgspec


class Told(msgspec.Struct, frozen=True):
    """The task of a worker. `kvstore`: the name of a type, or empty for no store."""

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
    meets: bool = False
    """Whether all workers wait for each other after each timed step."""


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
    """The answer of a worker."""

    began: float
    """Seconds on the monotonic clock, which all processes of a host share."""
    ended: float
    cpu_seconds: float
    """The CPU time of all threads of the worker."""
    last_norm: float
    """The norm of the last parameter, usually a bias that began as zero. It is equal on workers that share
    gradients."""
    parameter_bytes: int
    traced: list[TracedStep] = []


class Round(msgspec.Struct, frozen=True):
    """The answers of a contender's workers in a round."""

    timed: list[Timed]
    disturbance: float
    """The share of the host's cores that other processes used meanwhile."""
