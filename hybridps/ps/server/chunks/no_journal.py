"""The journal of a chunk of which nothing outlives the process."""

from __future__ import annotations

from typing import Any

from hybridps.ps.server.chunks.area import Mark


class NoJournal:
    """Replaces `ChunkJournal`. It records only the number of the round; no earlier process has left anything."""

    is_cut = False
    step = groups = length = 0

    def begin(self, complete: Any, step: int, groups: int) -> None:
        """Begin a round."""
        self.step = step

    def nothing(self, *arguments: Any) -> None:
        """Do nothing: there is nothing to record or to find."""

    begin_after = put = cut = go_on = progress = refuse = mark_not_finite = end = fail = forget = save = nothing

    def notes(self) -> dict[int, tuple[int, int]]:
        """Return no notes."""
        return {}

    def counted(self) -> dict[int, list[Mark]]:
        """Return no contributions."""
        return {}

    def puts_of(self) -> list[tuple[tuple[int, int], int]]:
        """Return no replacements."""
        return []

    def last_step(self) -> tuple[int, set[tuple[int, int]]]:
        """Return that there was no round."""
        return 0, set()
