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
"""What the record of an answer takes beside its values, about."""

CONTRIBUTION_BYTES, RULE_BYTES = 1024, 384
"""What the records of one take beside its values, about."""

RULE_MOVES = 1 << 16
"""Bytes that could be moved in the time that a rule more of a round takes, about."""


@dataclass(slots=True, eq=False)
class Exchange:
    """A contribution and the answer to it, which is remembered in case that the contribution comes again."""

    part: Part
    contribution: Contribution
    """Without values once it is over."""
    held_bytes: int = 0
    is_computing: bool = False
    """Whether it is wholly in a round."""
    rounds: int = 0
    """How many rounds that it is in have not ended."""
    is_due: bool = False
    """Whether it is answered when they have."""
    is_over: bool = False
    """Whether it was answered, or will not be: its group has left, or the round is void."""
    is_settled: bool = False
    """Whether the group has the answer."""
    reply: np.ndarray | None = None
    """The answer that is sent; remembered where it could not be made again."""
    error: HybridPSError | None = None


def error_answer(answer: Answer, result: Any) -> Answer:
    """The answer, or the error if the task has failed."""
    return replace(answer, values=None, error=result) if isinstance(result, HybridPSError) else answer


class Kept(NamedTuple):
    """What an earlier process has done with a contribution."""

    done: list[tuple[int, int]]
    """Elements of it, from and to."""
    error: HybridPSError | None
    """What it is answered with: if nothing was done, as a later one has counted."""
    not_finite: list[tuple[int, int]]


def kept_of(marks: Sequence[Mark], chunk: str, part: Part, origin: Origin) -> Kept:
    """What was done with a contribution to `chunk`, by what is known of its group."""
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
    """The error for a copy of a contribution that comes after a later one."""
    return ServerError(
        f"the answer to request {origin.request} for {chunk} was lost, and a later one has counted: have one exchange "
        "of a chunk under way at a time"
    )


def bytes_of(contribution: Contribution) -> int:
    """Of its values, as they came."""
    return sum(row.nbytes for row in contribution.rows)
