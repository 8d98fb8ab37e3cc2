"""Typed events as JSON lines: the one source that reports, plots and progress read."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec


class Event(msgspec.Struct, frozen=True, tag=True, tag_field="event"):
    """Base class. A line has the class name in `event`, and `rank` and `seconds` besides the fields."""


class Configured(Event, frozen=True):
    """The job begins. `started_at` is the wall clock (seconds since 1970) at `seconds` = 0."""

    started_at: float
    settings: dict[str, Any]


class Planned(Event, frozen=True):
    """What this rank is."""

    role: str
    worker: int
    workers: int
    group: int
    groups: int
    group_rank: int
    node: int
    servers: list[str]


class Registered(Event, frozen=True):
    """A table of the job is on the servers. `late`: its centre was there already, and was taken over."""

    table: str
    rule: str
    keys: int
    nbytes: int
    late: bool


class Exchanged(Event, frozen=True):
    """The leader exchanged weights with the servers. `distance`: relative, |w - centre| / |w|."""

    table: str
    step: int
    took_seconds: float
    nbytes: int
    distance: float


class Chosen(Event, frozen=True):
    """How the group's collectives of up to `up_to_bytes` are done. `source`: built-in, measured or forced."""

    algorithm: str
    chunk_bytes: int
    up_to_bytes: int
    source: str
    ranks: int
    nodes: int


class Communicated(Event, frozen=True):
    """What the joint sums of a store took in `steps` steps since it began; at most one a second.

    `group_seconds`: in the group, waiting for its ranks included. `exchange_seconds`: waiting for the servers' answers
    and spreading them. `exposed_seconds`: from a step's last gradient on, when backward has nothing left to hide it.
    """

    steps: int
    group_seconds: float
    exchange_seconds: float
    exposed_seconds: float


class Noted(Event, frozen=True):
    """Something a user may want to know, such as a fallback."""

    message: str


class Closed(Event, frozen=True):
    """The rank is done. Bytes are payload handed to the tier by this rank."""

    steps: int
    bytes_within_group: int
    bytes_to_servers: int


class EventLog:
    """Writes the events of one rank to `<folder>/hybridps-<rank>.jsonl`; to nowhere without a folder.

    Every line is complete when `emit` returns, so the file is valid after a kill.
    """

    def __init__(self, folder: str | Path | None, rank: int | str) -> None:
        self._rank = rank
        self._began = time.monotonic()
        self._file = None
        self._encoder = msgspec.json.Encoder()
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._file = open(Path(folder) / f"hybridps-{rank}.jsonl", "ab", buffering=0)  # noqa: SIM115

    def emit(self, event: Event) -> None:
        if self._file is None:
            return
        line = msgspec.to_builtins(event) | {"rank": self._rank, "seconds": round(time.monotonic() - self._began, 6)}
        self._file.write(self._encoder.encode(line) + b"\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
