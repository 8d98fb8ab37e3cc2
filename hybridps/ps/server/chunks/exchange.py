"""A contribution to a chunk, and the answer to it, as the loop knows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from hybridps.errors import HybridPSError, ServerError
from hybridps.ps.clocks import Part
from hybridps.ps.model import Answer, Contribution, Origin
from hybridps.ps.rules.finite import refused_error
from hybridps.ps.server.chunks.area import FAILED, REFUSED, Mark

ANSWER_BYTES = 1024
"""About the memory that the record of an answer takes besides its values."""

CONTRIBUTION_BYTES, RULE_BYTES = 1024, 384
"""About the memory that the records of a contribution and of a rule take."""

RULE_MOVES = 1 << 16
"""About how many bytes could be moved in the time of one more rule in a round."""


@dataclass(slots=True, eq=False)
class Exchange:
    """A contribution and its answer, which is remembered in case the contribution arrives again."""

    part: Part
    contribution: Contribution
    """Without its values once the exchange is over."""
    held_bytes: int = 0
    is_computing: bool = False
    """Whether all of it is in a round."""
    rounds: int = 0
    """The number of rounds with parts of it that have not ended."""
    is_due: bool = False
    """Whether it is answered when these have ended."""
    is_over: bool = False
    """Whether it was answered, or will not be, because its group has left or the round is void."""
    is_settled: bool = False
    """Whether the group has the answer."""
    reply: np.ndarray | None = None
    """The answer that is sent. It is remembered if it could not be made again."""
    error: HybridPSError | None = None


def error_answer(answer: Answer, result: Any) -> Answer:
    """Return the answer, or the error if the task has failed."""
    return replace(answer, values=None, error=result) if isinstance(result, HybridPSError) else answer


class Kept(NamedTuple):
    """What an earlier process has done with a contribution."""

    done: list[tuple[int, int]]
    """The spans of elements that are done."""
    error: HybridPSError | None
    """The error to answer with. If nothing was done, a later contribution has counted."""
    not_finite: list[tuple[int, int]]


def kept_of(marks: Sequence[Mark], chunk: str, part: Part, origin: Origin) -> Kept:
    """Return what was done with a contribution to `chunk`, according to the marks of its group."""
    if not marks:
        return Kept([], None, [])
    marks = [each for each in marks if each.epoch == origin.epoch and each.start < part.stop and part.start < each.stop]
    mine = [mark for mark in marks if mark.request == origin.request]
    done = [(max(mark.start, part.start), min(mark.stop, part.stop)) for mark in mine]
    error: ServerError | None = None
    if any(mark.row == REFUSED for mark in mine):
        error = refused_error(chunk)
    elif any(mark.row == FAILED for mark in mine):
        error = ServerError(f"a round of {chunk} has failed, and the server was started again since: see what it said")
    for left in part.without(done):
        if any(mark.request > origin.request and mark.start < left.stop and left.start < mark.stop for mark in marks):
            return Kept([], error_of_late(chunk, origin), [])
    return Kept(done, error, [(mark.row, mark.element) for mark in mine if mark.row >= 0][:1])


def error_of_late(chunk: str, origin: Origin) -> ServerError:
    """Return the error for a copy of a contribution that arrives after a later one."""
    return ServerError(
        f"the answer to request {origin.request} for {chunk} was lost, and a later one has counted: have one exchange "
        "of a chunk under way at a time"
    )


def bytes_of(contribution: Contribution) -> int:
    """Return the bytes of its values, as they were received."""
    return sum(row.nbytes for row in contribution.rows)
