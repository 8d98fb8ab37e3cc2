"""What a server does with the values of a chunk, and what a group does with the answer.

A rule works on one chunk: flat arrays of equal length and dtype. The clock of the rule's table says
which arrival is the first of a round and when the round is complete.
"""

from __future__ import annotations

from typing import Annotated, Protocol

import msgspec
import numpy as np
from msgspec import Meta


class Rule(Protocol):
    """The two sides of a rule. In-place functions end in an underscore."""

    @property
    def synchronous(self) -> bool:
        """Whether a round is complete when every group has pushed (else at each arrival)."""

    def arrive_(self, total: np.ndarray, value: np.ndarray, first: bool) -> None:
        """Take one group's `value` into the round's `total`."""

    def complete_(self, centre: np.ndarray, total: np.ndarray) -> None:
        """Update `centre` with the round's `total`, and leave the answer in `total`."""

    def absorb_(self, values: np.ndarray, answer: np.ndarray) -> None:
        """The group's side: change its `values` by the server's `answer`."""

    def distance(self, values: np.ndarray, answer: np.ndarray) -> float:
        """The group's side, before `absorb_`: |values - centre| / |values|; nan where it has no meaning."""


class Sum(msgspec.Struct, frozen=True, tag="sum", forbid_unknown_fields=True):
    """The sum of one value from each group; the centre is the last sum."""

    @property
    def synchronous(self) -> bool:
        return True

    def arrive_(self, total: np.ndarray, value: np.ndarray, first: bool) -> None:
        if first:
            np.copyto(total, value)
        else:
            np.add(total, value, out=total)

    def complete_(self, centre: np.ndarray, total: np.ndarray) -> None:
        np.copyto(centre, total)

    def absorb_(self, values: np.ndarray, answer: np.ndarray) -> None:
        np.copyto(values, answer)

    def distance(self, values: np.ndarray, answer: np.ndarray) -> float:
        return float("nan")


class Elastic(msgspec.Struct, frozen=True, tag="elastic", forbid_unknown_fields=True):
    """Elastic averaging at arrival (Zhang, Choromanska, LeCun, 2015).

    d = alpha (w - centre); centre += d at the server (Elastic1), w -= d in the group (Elastic2). Both
    sides use the same d, so that w + centre is conserved by an exchange.

    d is computed in at least float32, so that alpha is not rounded to float16, and then stored in the
    dtype of the table: both sides see the same bits.
    """

    alpha: Annotated[float, Meta(ge=0, le=1)]

    @property
    def synchronous(self) -> bool:
        return False

    def arrive_(self, total: np.ndarray, value: np.ndarray, first: bool) -> None:
        np.copyto(total, value)

    def complete_(self, centre: np.ndarray, total: np.ndarray) -> None:
        np.subtract(total, centre, out=total)
        wide = np.result_type(total.dtype, np.float32)
        np.multiply(total, wide.type(self.alpha), out=total, dtype=wide, casting="same_kind")
        np.add(centre, total, out=centre)

    def absorb_(self, values: np.ndarray, answer: np.ndarray) -> None:
        np.subtract(values, answer, out=values)

    def distance(self, values: np.ndarray, answer: np.ndarray) -> float:
        size = float(np.linalg.norm(values))
        return float(np.linalg.norm(answer)) / (self.alpha * size) if self.alpha * size else float("nan")


AnyRule = Sum | Elastic
