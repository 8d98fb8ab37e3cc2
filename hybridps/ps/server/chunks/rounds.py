"""The rounds of one chunk: the contributions, who is answered, and what was answered. Only the loop uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from hybridps.codecs import Codec, decoded
from hybridps.errors import HybridPSError, ProtocolError
from hybridps.ps.chunk_map import Span
from hybridps.ps.clocks import Part, Verdict
from hybridps.ps.model import Answer, Contribution, Outcome, Task, rules_of_span
from hybridps.ps.server.admission import Budget
from hybridps.ps.server.chunks.answers import Answers
from hybridps.ps.server.chunks.area import Mark
from hybridps.ps.server.chunks.arrays import ChunkArrays
from hybridps.ps.server.chunks.exchange import (
    CONTRIBUTION_BYTES,
    RULE_BYTES,
    RULE_MOVES,
    Exchange,
    bytes_of,
    error_of_late,
    kept_of,
)
from hybridps.ps.server.chunks.memory import ChunkMemory
from hybridps.ps.server.chunks.round import SENT, EarlySum, Round, error_of_end, error_of_rules
from hybridps.ps.server.tables.registrations import Registrations

STREAMED = 4
"""Contributions from the network are added up as soon as this many groups in a row have sent theirs, so that few are
held."""

MOST_PARTS = 256
"""The number of parts of a chunk that a group may have under way, or whose answers are remembered."""


class Chunk:
    """The bookkeeping of one chunk, `span` of a table, at a root. `memory` belongs to the worker thread `owner`.

    `codec`, `reply_of`: see `Answers`.
    """

    def __init__(
        self,
        memory: ChunkMemory,
        span: Span,
        owner: int,
        registrations: Registrations,
        budget: Budget,
        codec: Codec,
        reply_of: Callable[[int], np.ndarray] | None = None,
    ) -> None:
        self.memory = memory
        self.span = span
        self.owner = owner
        self.rounds = registrations.rounds
        self._registrations = registrations
        self._budget = budget
        self._answers = Answers(span, memory.centre.dtype, owner, budget, codec, reply_of)
        self._exchanges: dict[int, dict[Part, Exchange]] = {}
        """For each group, its exchanges under way and those whose answers are remembered, the oldest first."""
        self._early: EarlySum | None = None
        self.arrays = ChunkArrays(memory, span, owner, budget)
        self._stayed: set[int] = set()
        """Groups that were lost, and whose counted contributions are remembered."""
        self._earlier: dict[int, list[Mark]] = {}
        """The contributions of each group that counted before this process began."""

    def restore(self) -> None:
        """Continue where the previous process was killed. Raises ServerError if the rule cannot be loaded."""
        self.memory.restore()
        self._earlier = self.memory.journal.counted()
        self.arrays.restore()
        marks = [(of, mark) for of in self._registrations.joined.values() for mark in self._earlier.get(of.group, ())]
        now = [(Part(of.group, mark.start, mark.stop), mark.values) for of, mark in marks if mark.epoch == of.epoch]
        self.rounds.restore_values(self.span.chunk, now)

    def contribute(self, contribution: Contribution) -> list[Outcome]:
        """Take in a contribution. Returns what is to be done and who is answered. A repeated one counts once."""
        origin, span = contribution.origin, contribution.span
        part = Part(origin.group, span.start, span.stop)
        mine = self._exchanges.setdefault(origin.group, {})
        if origin.group in self._stayed:
            self._stayed.discard(origin.group)
            for other in [other for other, known in mine.items() if known.contribution.origin.epoch != origin.epoch]:
                self._release(mine.pop(other))
        again = self._again(mine, part, contribution)
        if again is not None:
            return again
        before = kept_of(self._earlier.get(part.group, ()), self.memory.name, part, origin)
        if before.done:
            contribution = replace(contribution, not_finite=before.not_finite)
        is_whole = not before.done or not part.without(before.done)
        if (before.done and self.memory.rule.separate) or (before.error is not None and is_whole):
            is_sent = contribution.targets is None and before.error is None
            values = self._answers.kept(*part) if is_sent else None
            return self._answers.sent(Answer(origin, span.chunk, values, before.error, before.not_finite))
        verdicts = self.rounds.arrive(part, span.chunk, before.done)
        self.rounds.brought[part.group] += span.length
        # The group has these answers. Answers about more elements are kept, so that a late copy is recognised.
        for other, known in [*mine.items()]:
            covered = part.start <= other.start and other.stop <= part.stop
            if known.is_over and (covered or len(mine) > 2 * MOST_PARTS):
                del mine[other]
        mine[part] = known = Exchange(part, contribution, error=before.error)
        # Values that lie in memory of the group are not charged.
        rules = len(contribution.rules) * RULE_BYTES
        self._hold(known, CONTRIBUTION_BYTES + rules + (0 if contribution.targets else bytes_of(contribution)))
        outcomes: list[Outcome] = [self._give([known], *each, lambda result: ()) for each in before.done]
        outcomes += [outcome for verdict in verdicts for outcome in self.carry_out(verdict)]
        if not verdicts and contribution.targets is None:
            outcomes += self._add_early()
        return [*outcomes, *self._registrations.release()] if self._registrations.waits else outcomes

    def carry_out(self, verdict: Verdict) -> list[Outcome]:
        """Compute the round of a verdict, if there is one, and answer."""
        start, stop = verdict.start, verdict.stop
        applied = [self._exchanges[part.group][part] for part in verdict.apply]
        answered = applied
        if verdict.answer is not verdict.apply:
            answered = [self._exchanges[part.group][part] for part in verdict.answer]
        for each in answered:
            each.is_computing = True
        for each in applied:
            each.is_computing |= each.part[1:] == (start, stop)
            each.rounds += 1
        if not applied:
            return [self._answer(answered)] if answered else []
        self.rounds.computed += stop - start
        others = [] if answered is applied else [each for each in applied if not each.is_computing]
        outlets = self._answers.outlets([*answered, *others], start, stop)
        late = [each.contribution for each in applied if each.contribution.rows]
        finish = partial(self._finish, applied, answered)
        rules = rules_of_span(applied[0].contribution.rules, start, stop)
        counted = [each.contribution for each in applied]
        values = [self.rounds.values_of(part, self.span.chunk) for part in verdict.apply]
        complete = Round(start, stop, self._early or EarlySum(), late, outlets, finish, rules, counted, values)
        wrong = error_of_end(self.rounds, counted) or error_of_rules(self.memory.name, counted, start, stop)
        if any(not each.contribution.rows for each in answered):
            self._early = None
        for each in [each for each in answered if each.is_over]:
            # The group may be back and contribute the same part before this round is computed.
            self._release(self._exchanges[each.part.group].pop(each.part))
        return self._compute(complete) if wrong is None else finish(wrong)

    @property
    def is_busy(self) -> bool:
        """Whether a contribution is under way."""
        return any(not known.is_over for mine in self._exchanges.values() for known in mine.values())

    def waits(self, group: int) -> bool:
        """Return whether a contribution of a group waits for others before it counts."""
        return any(not known.is_over and not known.is_computing for known in self._exchanges.get(group, {}).values())

    def leave(self, group: int, stays: bool = False) -> None:
        """Let a group go. Its contributions to a round stay in it; its memory is its own again.

        `stays`: remember what counts, because its life may continue.
        """
        self.memory.forget(group)
        mine = self._exchanges.get(group, {})
        self._stayed = self._stayed | {group} if stays else self._stayed - {group}
        for known in [*mine.values()]:
            left, is_sent = known.contribution, known.contribution.targets is None
            if known.is_computing and stays:
                self._release(known)
            elif known.is_computing:
                self._release(mine.pop(known.part))
            elif not known.is_over:
                rows = left.rows if is_sent else [decoded(row).copy() for row in left.rows]
                known.contribution, known.is_over, known.reply = replace(left, rows=rows, targets=()), True, None
                self._hold(known, 0 if is_sent else bytes_of(left))

    def forget(self) -> None:
        """Drop all rounds under way, because nobody is left to be answered."""
        for mine in self._exchanges.values():
            for known in mine.values():
                self._release(known)
        self._exchanges.clear()
        self._early = None
        self.memory.forget()

    def settle(self, group: int, request: int) -> None:
        """Note that the group has all answers to its requests before `request`."""
        for known in self._exchanges.get(group, {}).values():
            if known.is_over and known.contribution.origin.request < request:
                known.is_settled, known.reply = True, None

    def _compute(self, complete: Round) -> list[Outcome]:
        """Return what a server does with a complete round: a root computes the rule."""
        arrays = 1 + sum(len(each.rows) for each in complete.contributions) + sum(map(len, complete.outlets.values()))
        nbytes = arrays * (complete.stop - complete.start) * self.memory.centre.itemsize
        sends = SENT in complete.outlets
        nbytes += len(complete.rules) * RULE_MOVES
        run, place = partial(self.memory.apply_, complete), self.memory.place
        return [Task(self.owner, run, complete.finish, nbytes, sends, place)]

    def _again(self, mine: dict[Part, Exchange], part: Part, contribution: Contribution) -> list[Outcome] | None:
        """Return what follows from a contribution that has arrived before; None for a new one. Raises ProtocolError."""
        origin, known = contribution.origin, mine.get(part)
        if known is not None and known.contribution.origin != origin:
            known = None
        if known is not None and (not known.is_over or known.is_settled):
            return []
        overlapping = [each for other, each in mine.items() if other.start < part.stop and part.start < other.stop]
        is_late = is_computing = False
        for each in overlapping:
            is_late |= each.is_over and each.contribution.origin.request > origin.request
            is_computing |= each.is_computing and not each.is_over
        if is_late:
            return [Answer(origin, self.span.chunk, error=error_of_late(self.memory.name, origin))]
        if known is not None and (known.error is not None or self.memory.rule.separate):
            return self._answers.sent(Answer(origin, self.span.chunk, known.reply, known.error))
        if known is not None:
            contribution = replace(contribution, not_finite=known.contribution.not_finite)
            return [self._answer([Exchange(part, contribution)])]
        if len(mine) >= MOST_PARTS and sum(not each.is_over for each in mine.values()) >= MOST_PARTS:
            raise ProtocolError(f"{self.memory.name} has {MOST_PARTS} parts of group {part.group} under way: wait")
        if is_computing:
            raise ProtocolError(
                f"group {part.group} contributes to {self.memory.name} before it has the answer of the round before"
            )
        return None

    def _add_early(self) -> list[Outcome]:
        """Add up contributions from the network whose turn it is, if there are enough to be worth it."""
        run: list[Exchange] = []
        for group in sorted(self.rounds.members | {group for group, mine in self._exchanges.items() if mine}):
            known = self._exchanges.get(group, {}).get(Part(group, self.span.start, self.span.stop))
            if known is None or known.is_computing:
                break
            if not known.contribution.rows:
                continue  # it was added early
            if known.contribution.targets is not None:
                break
            run.append(known)
        if len(run) < STREAMED:
            return []
        self._early = early = self._early or EarlySum()
        finish = partial(self._finish, run, ())
        added = Round(self.span.start, self.span.stop, early, [known.contribution for known in run], {}, finish)
        nbytes = sum(map(bytes_of, added.contributions))
        for known in run:
            known.held_bytes -= bytes_of(known.contribution)
            known.contribution = replace(known.contribution, rows=())
            known.rounds += 1

        def then(result: Any) -> Iterable[Outcome]:
            self._budget.take(-nbytes)
            return finish(result)

        return [Task(self.owner, lambda: self.memory.add_(added), then)]

    def _answer(self, exchanges: Sequence[Exchange]) -> Task:
        """Answer with what was kept of the last round. All exchanges have the same part."""
        _, start, stop = exchanges[0].part
        return self._give(exchanges, start, stop, partial(self._finish, (), exchanges))

    def _give(
        self, exchanges: Sequence[Exchange], start: int, stop: int, then: Callable[[Any], Iterable[Outcome]]
    ) -> Task:
        """Write what was kept of the last round of these elements to the memory of the answers."""
        targets = [array for arrays in self._answers.outlets(exchanges, start, stop).values() for array in arrays]
        return Task(self.owner, partial(self.memory.give_, start, stop, targets), then)

    def _finish(self, applied: Sequence[Exchange], answered: Sequence[Exchange], result: Any) -> list[Outcome]:
        """End the round of some elements. `result` has the groups that were refused, or the error.

        A part may be in several rounds, which a rack ends in any order: it is answered when all have ended. A group may
        have left meanwhile, and be back with another contribution.
        """
        for each in applied:
            each.rounds -= 1
        for each in answered:
            each.is_due = True
        failed, outcomes = result if isinstance(result, HybridPSError) else None, list[Outcome]()
        for each in dict.fromkeys((*answered, *applied)):
            each.error = failed or (result or {}).get(each.part.group, each.error)
            if each.is_due and not each.rounds and not each.is_over:
                origin, values = each.contribution.origin, None if each.error else each.reply
                self._release(each)
                not_finite = each.contribution.not_finite
                outcomes += self._answers.sent(Answer(origin, self.span.chunk, values, each.error, not_finite))
        return outcomes

    def _release(self, known: Exchange) -> None:
        """Mark a contribution as over, and free its memory."""
        known.is_over = True
        known.contribution = replace(known.contribution, rows=(), targets=None, rules=())
        if known.error is not None or not self.memory.rule.separate:
            known.reply = None
        self._hold(known, -known.held_bytes)

    def _hold(self, known: Exchange, nbytes: int) -> None:
        """Charge `nbytes` more for a contribution."""
        known.held_bytes += nbytes
        self._budget.take(nbytes)
