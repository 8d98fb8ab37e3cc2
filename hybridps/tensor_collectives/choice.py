"""Which algorithm and chunks for how many bytes, ranks and nodes: a table, measured or built in."""

from __future__ import annotations

import bisect
import math
import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from hybridps.errors import ConfigError

Algorithm = Literal["flat", "node", "library", "ring", "multi_ring", "halving_doubling"]
"""`flat`: the MPI library over all ranks at once. The others combine in the memory of each node (`node`: there is only
one); between nodes come the MPI library, or a ring, rings in both directions, recursive halving-doubling."""

ALGORITHMS: tuple[Algorithm, ...] = ("flat", "node", "library", "ring", "multi_ring", "halving_doubling")
OWN: tuple[Algorithm, ...] = ("node", "ring", "multi_ring", "halving_doubling")
"""Those whose order of summation is ours, and the same in every run."""

VERSION = 1
ANY_SIZE = 1 << 62

Positive = Annotated[int, Meta(ge=1)]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The algorithm for up to so many bytes, with so many ranks on so many nodes."""

    ranks: Positive
    nodes: Positive
    up_to_bytes: Positive
    algorithm: Algorithm
    chunk_bytes: Annotated[int, Meta(ge=1024, le=1 << 28, multiple_of=64)] = 512 << 10
    """Size of a chunk between nodes."""
    microseconds: float | None = None
    """What it took for the largest size that was measured."""


class Tuning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of choices, and where it was measured."""

    version: int
    machine: str
    """Host name and cores; empty for the built-in table."""
    entries: tuple[Entry, ...]

    @staticmethod
    def read(path: Path) -> Tuning:
        """Raises ConfigError if the file is no such table, or of another version."""
        try:
            tuning = msgspec.json.decode(path.read_bytes(), type=Tuning)
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"the table {path} cannot be used: {error}; measure it with `hybridps tune`") from None
        if tuning.version != VERSION:
            raise ConfigError(
                f"the table {path} has version {tuning.version}, not {VERSION}: run `hybridps tune` again"
            )
        for entry in tuning.entries:
            if entry.algorithm == "node" and entry.nodes > 1:
                raise ConfigError(f"the table {path} has 'node', which is for one node, for {entry.nodes} nodes")
        return tuning

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.{os.getpid()}")
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")
        beside.replace(path)


BUILT_IN = Tuning(
    VERSION,
    "",
    (
        Entry(2, 1, ANY_SIZE, "node"),
        Entry(4, 2, 32 << 10, "flat"),
        Entry(4, 2, 1 << 20, "halving_doubling"),
        Entry(4, 2, ANY_SIZE, "ring"),
    ),
)
"""docs/benchmarks.md has what was measured for it."""


class Choice(msgspec.Struct, frozen=True):
    """What is used for up to `up_to_bytes`, and who says so: `built-in`, `measured` or `forced`."""

    algorithm: Algorithm
    chunk_bytes: int
    up_to_bytes: int
    source: str


class Chooser:
    """The choices for one group: looked up by size.

    `forced` and `chunk_bytes` are taken whatever the table says; `only_own`: a reason to leave out
    what is done by the MPI library; empty for none. Raises ConfigError for what cannot be had.
    """

    def __init__(
        self,
        ranks: int,
        nodes: int,
        tuning: Tuning = BUILT_IN,
        forced: Algorithm | None = None,
        chunk_bytes: int | None = None,
        only_own: str = "",
    ) -> None:
        if forced == "node" and nodes > 1:
            raise ConfigError(f"the algorithm 'node' is for one node, and there are {nodes}: use one of ring, library")
        if only_own and forced is not None and forced not in OWN:
            raise ConfigError(
                f"the algorithm {forced!r} is the MPI library's, and {only_own}: use one of {', '.join(OWN)}"
            )
        fitting = [entry for entry in tuning.entries if (entry.nodes == 1) == (nodes == 1)]
        if not fitting:
            fitting = [entry for entry in BUILT_IN.entries if (entry.nodes == 1) == (nodes == 1)]
            tuning = BUILT_IN
        source = "forced" if forced else "measured" if tuning.machine else "built-in"
        nearest = min(fitting, key=lambda entry: _distance(entry, ranks, nodes))
        shape = (nearest.ranks, nearest.nodes)
        entries = sorted((e for e in fitting if (e.ranks, e.nodes) == shape), key=lambda entry: entry.up_to_bytes)
        self._choices = [
            Choice(
                _possible(forced or entry.algorithm, nodes, bool(only_own)),
                chunk_bytes or entry.chunk_bytes,
                entry.up_to_bytes,
                source,
            )
            for entry in entries
        ]
        self._limits = [choice.up_to_bytes for choice in self._choices]

    def of(self, nbytes: int) -> Choice:
        """The choice for so many bytes; beyond the table, that for its largest ones."""
        return self._choices[min(bisect.bisect_left(self._limits, nbytes), len(self._choices) - 1)]


def _possible(algorithm: Algorithm, nodes: int, only_own: bool) -> Algorithm:
    """What is done if `algorithm` is wanted: on one node there is nothing between nodes."""
    if nodes == 1:
        return "flat" if algorithm == "flat" and not only_own else "node"
    return "ring" if only_own and algorithm not in OWN else algorithm


def _distance(entry: Entry, ranks: int, nodes: int) -> tuple[float, int, int]:
    """How far the entry's machine is from this one, in doublings; of two that are equally far the larger is nearer."""
    far = abs(math.log2(entry.nodes / nodes)) + abs(math.log2(entry.ranks / ranks))
    return far, -entry.nodes, -entry.ranks
