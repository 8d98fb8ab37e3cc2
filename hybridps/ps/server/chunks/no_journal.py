"""The journal of a chunk of which nothing outlives the process."""

from __future__ import annotations

from typing import Any

from hybridps.ps.server.chunks.area import Mark


class NoJournal:
    """As `ChunkJournal`: it notes nothing but the number of the round, and no earlier process has left anything."""

    is_cut = False
    step = groups = length = 0

    def begin(self, complete: Any, step: int, groups: int) -> None:
        """A round begins."""
        self.step = step

    def nothing(self, *arguments: Any) -> None:
        """What would be noted, or looked for."""

    begin_after = put = cut = go_on = progress = refuse = mark_not_finite = end = fail = forget = save = nothing

    def notes(self) -> dict[int, tuple[int, int]]:
        """Nothing was noted."""
        return {}

    def counted(self) -> dict[int, list[Mark]]:
        """Nothing has counted before."""
        return {}

    def puts_of(self) -> list[tuple[tuple[int, int], int]]:
        """Nothing was replaced before."""
        return []

    def last_step(self) -> tuple[int, set[tuple[int, int]]]:
        """There was no round before."""
        return 0, set()
