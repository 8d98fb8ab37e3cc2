"""What all algorithms do alike on their tier."""

from __future__ import annotations

from hybridps.algorithms.row import Row
from hybridps.memory import Layout
from hybridps.ps.model import Joining
from hybridps.ps.rules import Sum
from hybridps.tensor_collectives import Levels, Tensor
from hybridps.tiers import Tier


class TierAlgorithm:
    """An algorithm's row on a tier: registration, initial values, drop, barrier. See `Algorithm` for the methods."""

    def __init__(self, levels: Levels, tier: Tier, row: Row) -> None:
        self.levels = levels
        self.tier = tier
        self.row = row

    def initialise(self, table: str, layout: Layout, values: Tensor) -> None:
        self.tier.register(f"{table}.initial", layout, values, Sum())
        self.tier.drop(f"{table}.initial")

    def register(self, table: str, layout: Layout, values: Tensor | None) -> Joining:
        """Join the table of the row, as `Tier.register`."""
        row = self.row
        return self.tier.register(self.name_of(table), layout, values, row.rule, row.clock, row.codec)

    def name_of(self, table: str) -> str:
        """What the tier calls the table of the row."""
        return f"{table}.{self.row.holds}"

    def finish_(self) -> None:
        self.tier.finish()

    @property
    def distance(self) -> float:
        return self.tier.distance

    def read_centre(self, table: str, out: Tensor) -> None:
        self.tier.pull(self.name_of(table), out)

    def drop(self, table: str) -> None:
        self.tier.drop(self.name_of(table))

    def barrier(self) -> None:
        self.tier.barrier()

    def close(self) -> None:
        self.tier.close()
