"""Where the answers of one chunk are written, and how they are sent. Only the loop uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace

from hybridps.codecs import Codec
from hybridps.ps.chunk_map import Span
from hybridps.ps.model import Answer, Outcome, Task
from hybridps.ps.server.admission import Budget
from hybridps.ps.server.chunks.exchange import ANSWER_BYTES, Exchange, error_answer
from hybridps.ps.server.chunks.round import SENT, Outlets, cut


class Answers:
    """Memory for the answers of a chunk, `span` of a table. `codec` encodes the answers that are sent.

    `kept_of`: returns memory of the whole chunk for the answers to a group, if these outlive the process.
    """

    def __init__(
        self,
        span: Span,
        dtype: np.dtype,
        owner: int,
        budget: Budget,
        codec: Codec,
        kept_of: Callable[[int], np.ndarray] | None = None,
    ) -> None:
        self._span = span
        self._dtype = dtype
        self._owner = owner
        self._budget = budget
        self._codec = codec
        self._kept_of = kept_of

    def kept(self, group: int, start: int, stop: int) -> np.ndarray | None:
        """Return where the answer of elements `start:stop` to a group outlives the process; None if it does not."""
        return None if self._kept_of is None else cut(self._kept_of(group), self._span.start, start, stop)

    def outlets(self, exchanges: Sequence[Exchange], start: int, stop: int) -> Outlets:
        """Return where the answer of elements `start:stop` is written. What is sent is written once for all groups."""
        outlets: Outlets = {}
        sent: dict[tuple[int, int], np.ndarray] = {}
        written: set[int] = set()
        for each in exchanges:
            group, begin, end = each.part
            targets = each.contribution.targets
            if targets is not None:
                outlets[group] = [cut(target, begin, start, stop) for target in targets]
                continue
            # Groups that send the same part are in the same rounds, except for rounds of an earlier process.
            if each.reply is None and (kept := self.kept(group, begin, end)) is not None:
                each.reply = kept
            elif each.reply is None:
                if (begin, end) not in sent:
                    sent[begin, end] = self._make(end - begin)
                each.reply = sent[begin, end]
            if id(each.reply) not in written:
                written.add(id(each.reply))
                outlets.setdefault(SENT, []).append(cut(each.reply, begin, start, stop))
        return outlets

    def sent(self, answer: Answer) -> list[Outcome]:
        """Return the answer as it is sent, or a task in which a worker thread encodes it."""
        values, codec = answer.values, self._codec
        if values is None or codec.exact:
            return [answer]
        out = np.empty(codec.nbytes(values.size, values.dtype.name), np.uint8)
        self._budget.lend(out, ANSWER_BYTES)
        done = replace(answer, values=out)
        return [Task(self._owner, lambda: codec.encode(values, out), lambda result: [error_answer(done, result)])]

    def _make(self, length: int) -> np.ndarray:
        reply = np.empty(length, self._dtype)
        self._budget.lend(reply, ANSWER_BYTES)
        return reply
