"""Rounds that have one contribution of every member."""

from __future__ import annotations

from collections.abc import Iterable

from hybridps.ps.clocks.rounds import Cell, Part, Rounds, Verdict, answers_of, change_cells, round_error


class SynchronousRounds(Rounds):
    def __init__(self, groups: Iterable[int], equally: bool = False) -> None:
        super().__init__(groups)
        self.equally = equally
        self._joining: set[int] = set()
        self._open: dict[int, list[Cell]] = {}
        """For each chunk with rounds under way, its elements in ascending order, cut wherever a part begins or ends."""

    def arrive(self, part: Part, chunk: int, done: Iterable[tuple[int, int]] = ()) -> list[Verdict]:
        self._check(part)
        cells = self._open.get(chunk, [])
        mine = {parts[part.group] for _, _, parts in cells if part.group in parts}
        if any(known.start < part.stop and part.start < known.stop for known in mine):
            raise round_error(part.group, chunk, self.members.difference(*(parts for _, _, parts in cells)))
        left = part.without(done)
        for each in left:
            cells = change_cells(cells, each, lambda parts: parts | {part.group: part})
        return self._complete(chunk, cells) if left else answers_of([part])

    @property
    def joining(self) -> set[int]:
        return self._joining

    def restore(self, members: set[int], joining: set[int]) -> None:
        super().restore(members, joining)
        self._joining = joining

    def join(self, group: int) -> None:
        super().join(group)
        if group not in self.members:
            self._joining.add(group)
            self._admit()

    def let_in(self) -> None:
        super().let_in()
        self._admit()

    def leave(self, group: int, ends: bool = False) -> list[tuple[int, Verdict]]:
        super().leave(group, ends)
        self._joining.discard(group)
        if not self.members:
            self._open.clear()  # no group is left to be answered, so the rounds under way are void
        open_now = sorted(self._open.items())
        verdicts = [(chunk, verdict) for chunk, cells in open_now for verdict in self._complete(chunk, cells)]
        self._admit()
        return verdicts

    def _complete(self, chunk: int, cells: list[Cell]) -> list[Verdict]:
        """Return the verdicts for the rounds of a chunk that are complete now."""
        done: list[Cell] = []
        left: list[Cell] = []
        for cell in cells:
            (done if self.members <= cell[2].keys() else left).append(cell)
        if left:
            self._open[chunk] = left
        else:
            self._open.pop(chunk, None)
            self._admit()
        waiting = {part for _, _, parts in left for part in parts.values()} if done else set()
        verdicts = []
        for start, stop, parts in reversed(done):
            apply = tuple(sorted(parts.values()))
            answer = tuple(part for part in apply if part not in waiting) if waiting else apply
            verdicts.append(Verdict(start, stop, apply, answer))
            waiting.update(apply)
        return verdicts[::-1]

    def _admit(self) -> None:
        """Let waiting groups take part if no round is under way."""
        if not (self._open or self.held):
            self.members |= self._joining
            self._joining.clear()
