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

    synchronous: bool
    """Whether a round is complete when every group has pushed (else at each arrival)."""

    def arrive_(self, total: np.ndarray, value: np.ndarray, first: bool) -> None:
        """Take one group's `value` into the round's `total`."""

    def complete_(self, centre: np.ndarray, total: np.ndarray) -> None:
        """Update `centre` with the round's `total`, and leave the answer in `total`."""

    def absorb_(self, values: np.ndarray, answer: np.ndarray) -> None:
        """The group's side: change its `values` by the server's `answer`."""


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


class Elastic(msgspec.Struct, frozen=True, tag="elastic", forbid_unknown_fields=True):
    """Elastic averaging at arrival (Zhang, Choromanska, LeCun, 2015).

    d = alpha (w - centre); centre += d at the server (Elastic1), w -= d in the group (Elastic2). Both
    sides use the same d, so that w + centre is conserved by an exchange.
    """

    alpha: Annotated[float, Meta(ge=0, le=1)]

    @property
    def synchronous(self) -> bool:
        return False

    def arrive_(self, total: np.ndarray, value: np.ndarray, first: bool) -> None:
        np.copyto(total, value)

    def complete_(self, centre: np.ndarray, total: np.ndarray) -> None:
        np.subtract(total, centre, out=total)
        np.multiply(total, total.dtype.type(self.alpha), out=total)
        np.add(centre, total, out=centre)

    def absorb_(self, values: np.ndarray, answer: np.ndarray) -> None:
        np.subtract(values, answer, out=values)


AnyRule = Sum | Elastic
