"""The contract of a rule: what a server does with the values of a round, and what a group does with the answer.

A rule works on one chunk: flat arrays of equal length and dtype. A clock says which values make a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from hybridps.ps.clocks import Clock
from hybridps.ps.rules.kernel import BLOCK, COMPILED, addresses, sum_


class Rule(Protocol):
    """A frozen struct of numbers, and the two sides of the rule. In-place functions end in an underscore."""

    states: ClassVar[int]
    """Arrays that the server keeps beside the centre, zeros in the beginning."""

    dtypes: ClassVar[tuple[str, ...]]
    """What it can be computed in."""

    clocks: ClassVar[tuple[type[Clock], ...]]
    """What it has a meaning with, the usual one first; that one takes no numbers."""

    alone: ClassVar[bool]
    """Whether every value is a round of its own (else the values of a round are added up first)."""

    replaces: ClassVar[bool]
    """Whether the answer simply takes the place of the group's values."""

    def numbers(self, step: int, values: int) -> tuple[float, ...]:
        """What the update needs in round `step` (1, 2, ...) of so many `values`."""

    def complete_(self, centre: np.ndarray, total: np.ndarray, state: Sequence[np.ndarray], numbers: Any) -> None:
        """Update `centre` and `state` with the round's `total`, and leave the answer in `total`. In NumPy."""

    @staticmethod
    def kernel_(
        sources: np.ndarray, targets: np.ndarray, centre: np.ndarray, state: Any, numbers: Any, look: bool
    ) -> int:
        """The same compiled, the sum of the sources in front of it and the answer written to all targets.

        Returns how many elements are done: all, or with `look` those before the first block whose sum is not finite.
        """

    def absorb_(self, values: np.ndarray, answer: np.ndarray) -> None:
        """The group's side: change its `values` by the server's `answer`, which may be used up."""

    def distance(self, values: np.ndarray, answer: np.ndarray) -> float:
        """The group's side, before `absorb_`: |values - centre| / |values|; nan where it has no meaning."""


def apply_(
    rule: Rule,
    sources: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    centre: np.ndarray,
    state: Sequence[np.ndarray],
    *,
    step: int,
    values: int,
    look: bool = False,
) -> int:
    """One round on a chunk: the sum of `sources`, which stands for so many `values`; the answer goes to `targets`.

    A target may be one of the sources. float32 and float64 go through the compiled rule, with the same bits. Returns
    how many elements are done: all; or with `look` those before the first block of `BLOCK` elements whose sum has NaN
    or Inf, and nothing behind them has changed.
    """
    wide = np.result_type(centre.dtype, np.float32).type
    numbers = tuple(wide(number) for number in rule.numbers(step, values))
    if centre.dtype in COMPILED:
        return int(rule.kernel_(addresses(sources), addresses(targets), centre, tuple(state), numbers, look))
    total = np.empty_like(centre)
    add_up_(total, sources)
    strange = np.flatnonzero(~np.isfinite(total)) if look else total[:0]
    done = int(strange[0]) // BLOCK * BLOCK if strange.size else centre.size
    rule.complete_(centre[:done], total[:done], [array[:done] for array in state], numbers)
    for target in targets:
        np.copyto(target[:done], total[:done])
    return done


def add_up_(total: np.ndarray, sources: Sequence[np.ndarray]) -> None:
    """`total` becomes the sum of the sources, added in their order; it may be the first of them."""
    if total.dtype in COMPILED:
        sum_(total, addresses(sources))
        return
    np.copyto(total, sources[0])
    for source in sources[1:]:
        np.add(total, source, out=total)


def warm_up(rule: Rule, dtype: str) -> None:
    """Compile the rule for a dtype, or load it: before the first exchange, not in it."""
    arrays = [np.ones(8, dtype) for _ in range(2 + rule.states)]
    add_up_(arrays[0], arrays[:1])
    apply_(rule, arrays[:1], arrays[:1], arrays[1], arrays[2:], step=1, values=1)
