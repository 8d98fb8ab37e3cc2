"""Rounds of one contribution, each answered at once."""

from __future__ import annotations

from collections.abc import Iterable

from hybridps.ps.clocks.rounds import Part, Rounds, Verdict, answers_of


class FreeRounds(Rounds):
    def arrive(self, part: Part, chunk: int, done: Iterable[tuple[int, int]] = ()) -> list[Verdict]:
        self._check(part)
        return answers_of([part]) if done else [Verdict(part.start, part.stop, (part,), (part,))]

    def join(self, group: int) -> None:
        super().join(group)
        self.members.add(group)
