"""A contribution to a chunk, and the answer to it, as the loop knows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from hybridps.errors import HybridPSError, ServerError
from hybridps.ps.clocks import Part
from hybridps.ps.model import Answer, Contribution, Origin

ANSWER_BYTES = 1024
"""What the record of an answer takes beside its values, about."""


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


def error_of_part(chunk: str, origin: Origin) -> ServerError:
    """The error for a contribution of which a part, not known which, had counted when the server was killed."""
    return ServerError(
        f"{chunk}: the server was started again after a part of request {origin.request} of group {origin.group} had "
        "counted, and cannot tell the rest: start the job again from its last checkpoint"
    )


def bytes_of(contribution: Contribution) -> int:
    """Of its values, as they came."""
    return sum(row.nbytes for row in contribution.rows)
