"""The choice of algorithm and chunk size by size in bytes, from a measured or built-in table."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from hybridps.errors import ConfigError
from hybridps.files import write_whole

Algorithm = Literal["flat", "node", "library", "ring", "multi_ring", "halving_doubling"]
"""`flat` uses the MPI library over all ranks at once. The others first combine in the memory of each node. `node` is
for one node. The remaining names say what combines between nodes: the MPI library, a ring, rings in both directions, or
recursive halving and doubling."""

ALGORITHMS: tuple[Algorithm, ...] = ("flat", "node", "library", "ring", "multi_ring", "halving_doubling")
OWN: tuple[Algorithm, ...] = ("node", "ring", "multi_ring", "halving_doubling")
"""The algorithms of this package, which sum in the same order in every run."""

VERSION = 1
ANY_SIZE = 1 << 62

Positive = Annotated[int, Meta(ge=1)]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the table: the algorithm for sizes up to `up_to_bytes`, for `ranks` ranks on `nodes` nodes."""

    ranks: Positive
    nodes: Positive
    up_to_bytes: Positive
    algorithm: Algorithm
    chunk_bytes: Annotated[int, Meta(ge=1024, le=1 << 28, multiple_of=64)] = 512 << 10
    """The size of a chunk between nodes."""
    microseconds: float | None = None
    """The measured time for the largest size."""


class Tuning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of choices, and the machine on which it was measured."""

    version: int
    machine: str
    """Host name and number of cores; empty for the built-in table."""
    entries: tuple[Entry, ...]

    @staticmethod
    def read(path: Path) -> Tuning:
        """Read a table from a file. Raises ConfigError if the file is no such table or has another version."""
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
                raise ConfigError(f"the table {path} has 'node', an algorithm for one node, for {entry.nodes} nodes")
        return tuning

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


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
"""The built-in table. docs/benchmarks.md has the measurements behind it."""


class Choice(msgspec.Struct, frozen=True):
    """The algorithm and chunk size for sizes up to `up_to_bytes`. `source`: `built-in`, `measured` or `forced`."""

    algorithm: Algorithm
    chunk_bytes: int
    up_to_bytes: int
    source: str


class Chooser:
    """Looks up the choices for one group by size.

    `forced` and `chunk_bytes` take precedence over the table. `only_own`: the reason not to use the algorithms of the
    MPI library; empty if there is none. Raises ConfigError if the settings contradict each other.
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
        if not any((entry.nodes == 1) == (nodes == 1) for entry in tuning.entries):
            tuning = BUILT_IN
        fitting = [entry for entry in tuning.entries if (entry.nodes == 1) == (nodes == 1)]
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

    def of(self, nbytes: int) -> Choice:
        """Return the choice for a size. Beyond the table, this is the choice for its largest size."""
        return next((choice for choice in self._choices if nbytes <= choice.up_to_bytes), self._choices[-1])


def _possible(algorithm: Algorithm, nodes: int, only_own: bool) -> Algorithm:
    """Return the algorithm to use when the table or the caller asks for `algorithm`."""
    if nodes == 1:
        return "flat" if algorithm == "flat" and not only_own else "node"
    return "ring" if only_own and algorithm not in OWN else algorithm


def _distance(entry: Entry, ranks: int, nodes: int) -> tuple[float, int, int]:
    """Return how far an entry is from these numbers of nodes and ranks, in doublings. Ties go to the larger group."""
    far = abs(math.log2(entry.nodes / nodes)) + abs(math.log2(entry.ranks / ranks))
    return far, -entry.nodes, -entry.ranks
