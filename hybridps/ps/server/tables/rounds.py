"""The rounds of one chunk: who has contributed what, who is answered, and what was answered. Only the loop uses it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from hybridps.codecs import Codec
from hybridps.errors import HybridPSError, ProtocolError, ServerError
from hybridps.ps.chunk_map import Span
from hybridps.ps.clocks import Part, Verdict
from hybridps.ps.model import Answer, Contribution, Origin, Outcome, Task
from hybridps.ps.server.admission import Budget
from hybridps.ps.server.tables.answers import MOST_PARTS, Answers, GivenAnswer, overlap
from hybridps.ps.server.tables.chunk_memory import SENT, ChunkMemory, cut
from hybridps.ps.server.tables.progress import Progress
from hybridps.ps.server.tables.roles import Role, Round

STREAMED = 4
"""Contributions that came over a network are added up as soon as so many follow each other: few are ever held."""

CONTRIBUTION_BYTES, ANSWER_BYTES = 1024, 1024
"""What the records of one take beside its values, about."""


@dataclass(slots=True, eq=False)
class _UnderWay:
    """A contribution that is not answered yet."""

    contribution: Contribution
    is_computing: bool = False
    """Whether it is wholly in a round."""
    is_added: bool = False
    """Whether it was added up early."""
    reply: np.ndarray | None = None
    """The answer that will be sent."""
    error: HybridPSError | None = None


class Chunk:
    """The bookkeeping of one chunk, `span` of a table. `memory` belongs to the worker `owner`."""

    def __init__(
        self, memory: ChunkMemory, span: Span, owner: int, rounds: Progress, budget: Budget, role: Role, codec: Codec
    ) -> None:
        self.memory = memory
        self.span = span
        self.owner = owner
        self._rounds = rounds
        self._budget = budget
        self._role = role
        self._codec = codec
        self._under_way: dict[Part, _UnderWay] = {}
        self._answers = Answers(memory.name)

    @property
    def members(self) -> int:
        """Number of groups that take part."""
        return len(self._rounds.members)

    def contribute(self, contribution: Contribution) -> list[Outcome]:
        """A contribution came: what is to be done, and who is answered. One that came before counts once."""
        origin, span = contribution.origin, contribution.span
        part = Part(origin.group, span.start, span.stop)
        again = self._again(part, contribution)
        if again is not None:
            return again
        self._check_new(part)
        verdicts = self._rounds.arrive(part, span.chunk)
        self._answers.forget(part)
        self._under_way[part] = _UnderWay(contribution)
        self._hold(contribution, 1)
        if not verdicts:
            return self._add_early() if contribution.targets is None else []
        return [outcome for verdict in verdicts for outcome in self.carry_out(verdict)]

    def carry_out(self, verdict: Verdict) -> list[Outcome]:
        """Compute a round, if there is one, and answer."""
        apply = [part for part in verdict.apply if part in self._under_way]
        answer = [part for part in verdict.answer if part in self._under_way]
        for part in answer:
            self._under_way[part].is_computing = True
        if not apply:
            return [self._give(answer)] if answer else []
        told = [part for part in apply if part not in answer and (part.start, part.stop) != verdict[:2]]
        outlets = self._outlets([*answer, *told], verdict.start, verdict.stop)
        late = [each.contribution for each in map(self._under_way.__getitem__, apply) if not each.is_added]
        for part in [part for part in answer if self._has_left(part)]:
            self._release(part)  # the group may be back, and bring the same part, before this round is computed
        finish = partial(self._finish, self._origins({*apply, *answer} & self._under_way.keys()), answer)
        return [*self._role.complete(Round(self, verdict.start, verdict.stop, late, outlets, finish))]

    def pull(self, origin: Origin) -> Task:
        """Answer with the centre, as it is now."""
        values = self._reply(self.span.length)
        done = Answer(origin, self.span.chunk, values)
        return Task(self.owner, lambda: np.copyto(values, self.memory.centre), lambda result: [_failed(done, result)])

    def leave(self, group: int) -> None:
        """What the group contributed to a round stays in it; its memory is its own again."""
        self._answers.leave(group)
        self._role.leave(group)
        for part in [part for part in self._under_way if part.group == group]:
            known = self._under_way[part]
            left = known.contribution
            if known.is_computing:
                self._release(part)
            elif left.targets is None:
                known.contribution, known.reply = replace(left, targets=()), None
            else:
                known.contribution = replace(left, rows=[row.copy() for row in left.rows], targets=())
                self._hold(known.contribution, 1, of_group=False)

    def forget(self) -> list[Task]:
        """There is no round under way any more: nobody is left to be answered."""
        if not self._under_way:
            return []
        for part in [*self._under_way]:
            self._release(part)
        return [Task(self.owner, self.memory.forget_, lambda result: ())]

    def settle(self, group: int, request: int) -> None:
        """The group has all answers to its requests before that one."""
        self._answers.settle(group, request)

    def _check_new(self, part: Part) -> None:
        mine = [known for known in self._under_way if known.group == part.group]
        if len(mine) >= MOST_PARTS:
            raise ProtocolError(f"{self.memory.name} has {MOST_PARTS} parts of group {part.group} under way: wait")
        if any(overlap(known, part) and self._under_way[known].is_computing for known in mine):
            raise ProtocolError(
                f"group {part.group} contributes to {self.memory.name} before it has the answer of the round before"
            )

    def _again(self, part: Part, contribution: Contribution) -> list[Outcome] | None:
        """What follows from a contribution that has come before; None for a new one."""
        origin, known = contribution.origin, self._under_way.get(part)
        if known is not None and known.contribution.origin == origin:
            return []
        try:
            told = self._answers.find(part, origin)
        except ServerError as error:
            return [Answer(origin, self.span.chunk, error=error)]
        return None if told is None else self._tell_again(told, contribution)

    def _tell_again(self, told: GivenAnswer, contribution: Contribution) -> list[Outcome]:
        answer = Answer(contribution.origin, self.span.chunk, told.values, told.error)
        if told.error is not None or self.memory.rule.separate:
            return [*self._encoded(answer)]
        part, values = told.part, None if contribution.targets is not None else self._reply(contribution.span.length)
        targets = [values] if values is not None else contribution.targets or ()
        done = replace(answer, values=values)
        return [
            Task(
                self.owner,
                lambda: self.memory.give_(part.start, part.stop, {SENT: targets}),
                lambda result: self._encoded(_failed(done, result)),
            )
        ]

    def _add_early(self) -> list[Outcome]:
        """Add up contributions that came over the network and whose turn it is, if they are enough to be worth it."""
        run: list[_UnderWay] = []
        for group in sorted(self._rounds.members | {part.group for part in self._under_way}):
            known = self._under_way.get(Part(group, self.span.start, self.span.stop))
            if known is not None and known.is_added:
                continue
            if known is None or known.contribution.targets is not None or known.is_computing:
                break
            run.append(known)
        if len(run) < STREAMED:
            return []
        early = [known.contribution for known in run]
        nbytes = sum(row.nbytes for each in early for row in each.rows)
        for known in run:
            known.is_added, known.contribution = True, replace(known.contribution, rows=())

        def then(result: Any) -> Iterable[Outcome]:
            self._budget.take(-nbytes)
            if isinstance(result, HybridPSError):
                for known in run:
                    known.error = result
            return ()

        return [Task(self.owner, lambda: self.memory.add_(early), then)]

    def _outlets(self, parts: Sequence[Part], start: int, stop: int) -> dict[int, list[np.ndarray]]:
        """Where the answer of elements `start:stop` is written. What is sent is written once for all groups."""
        outlets: dict[int, list[np.ndarray]] = {}
        shared: np.ndarray | None = None
        for part in parts:
            known, whole = self._under_way[part], part[1:] == (start, stop)
            if known.contribution.targets is not None:
                outlets[part.group] = [cut(target, part.start, start, stop) for target in known.contribution.targets]
                continue
            if known.reply is None and whole and shared is not None:
                known.reply = shared
                continue
            if known.reply is None:
                known.reply = self._reply(part.stop - part.start)
                shared = known.reply if whole else shared
            outlets.setdefault(SENT, []).append(cut(known.reply, part.start, start, stop))
        return outlets

    def _give(self, parts: Sequence[Part]) -> Task:
        """Answer with what was kept of the last round."""
        start, stop = parts[0][1:]
        outlets = self._outlets(parts, start, stop)
        return Task(
            self.owner,
            lambda: self.memory.give_(start, stop, outlets),
            partial(self._finish, self._origins(parts), parts),
        )

    def _has_left(self, part: Part) -> bool:
        """Whether a contribution is of a group that has left since, which is not answered."""
        targets = self._under_way[part].contribution.targets
        return targets is not None and not targets

    def _origins(self, parts: Iterable[Part]) -> dict[Part, Origin]:
        return {part: self._under_way[part].contribution.origin for part in parts}

    def _finish(self, brought: dict[Part, Origin], answer: Sequence[Part], result: Any) -> Iterable[Outcome]:
        """The round of some elements is over: `result` says who was refused, or what went wrong.

        A group may have left meanwhile, and be back with another contribution.
        """
        there = {
            part: known for part, known in self._under_way.items() if known.contribution.origin == brought.get(part)
        }
        for part, known in there.items():
            if isinstance(result, HybridPSError):
                known.error = result
            elif result and part.group in result:
                known.error = result[part.group]
        for part in answer:
            if part not in there:
                continue
            known, origin = self._release(part), brought[part]
            kept = known.reply if self.memory.rule.separate and known.error is None else None
            self._answers.add(GivenAnswer(part, origin, kept, known.error))
            values = None if known.error else known.reply
            yield from self._encoded(Answer(origin, self.span.chunk, values, known.error))

    def _encoded(self, answer: Answer) -> Iterable[Outcome]:
        """The answer as it is sent; a worker encodes it if that changes it."""
        values, codec = answer.values, self._codec
        if values is None or codec.exact:
            return [answer]
        out = np.empty(codec.nbytes(values.size, values.dtype.name), np.uint8)
        self._budget.lend(out, ANSWER_BYTES)
        return [
            Task(
                self.owner,
                lambda: codec.encode(values, out),
                lambda result: [_failed(replace(answer, values=out), result)],
            )
        ]

    def _release(self, part: Part) -> _UnderWay:
        """A contribution is over."""
        known = self._under_way.pop(part)
        self._hold(known.contribution, -1)
        return known

    def _hold(self, contribution: Contribution, times: int, of_group: bool = True) -> None:
        """Count the memory of a contribution: its values, unless they lie in memory of the group."""
        values = 0 if contribution.targets else sum(row.nbytes for row in contribution.rows)
        self._budget.take(times * (values + (CONTRIBUTION_BYTES if of_group else 0)))

    def _reply(self, length: int) -> np.ndarray:
        reply = np.empty(length, self.memory.centre.dtype)
        self._budget.lend(reply, ANSWER_BYTES)
        return reply


def _failed(answer: Answer, result: Any) -> Answer:
    """The answer, or the error if the task has failed."""
    return replace(answer, values=None, error=result) if isinstance(result, HybridPSError) else answer
