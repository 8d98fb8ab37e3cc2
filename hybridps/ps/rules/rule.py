"""The contract of a rule: what a server does with the contributions of a round, and what a group does with the answer.

A rule works on one chunk: flat arrays of equal length and dtype. A clock says which contributions make a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from hybridps.ps.clocks import Clock
from hybridps.ps.rules.kernel import BLOCK, COMPILED, addresses, block_loop, sum_


class Rule(Protocol):
    """A frozen struct of numbers, and the two sides of the rule. In-place functions end in an underscore."""

    states: ClassVar[int]
    """Arrays that the server keeps beside the centre, zeros at first: 0, 1 or 2."""

    dtypes: ClassVar[tuple[str, ...]]
    """The dtypes that it is computed in."""

    clocks: ClassVar[tuple[type[Clock], ...]]
    """The clocks that it has a meaning with, the usual one first; that one takes no arguments."""

    separate: ClassVar[bool]
    """Whether every contribution is a round of its own; else those of a round are summed first."""

    answer_is_new_value: ClassVar[bool]
    """Whether the answer replaces the group's values as it is."""

    transparent: ClassVar[bool]
    """Whether NaN and Inf may pass through to the groups: the next round starts without them."""

    def numbers(self, step: int, contributions: int) -> tuple[float, ...]:
        """The numbers that the update needs in round `step` (1, 2, ...), the sum of so many `contributions`."""

    @staticmethod
    def update_(total: np.ndarray, centre: np.ndarray, state: tuple[np.ndarray, ...], numbers: Any) -> np.ndarray:
        """Update a block of `centre` and `state` with the round's `total`, which may be overwritten; return the answer.

        Compiled. The answer is one of the arrays given. If the rule is computed in float16, its source runs in NumPy
        too: there an "element" `total[i]` is a whole block, and a number is a float32 array of one element.
        """

    def apply_answer_(self, values: np.ndarray, answer: np.ndarray) -> None:
        """The group's side: change its `values` by the server's `answer`, which may be overwritten."""

    def distance(self, values: np.ndarray, answer: np.ndarray) -> float:
        """The group's side, before `apply_answer_`: |values - centre| / |values|; nan where it has no meaning."""


class NewValue:
    """The group's side of the rules whose answer replaces the values."""

    answer_is_new_value: ClassVar[bool] = True

    def apply_answer_(self, values: np.ndarray, answer: np.ndarray) -> None:
        np.copyto(values, answer)

    def distance(self, values: np.ndarray, answer: np.ndarray) -> float:
        return float("nan")


def apply_(
    rule: Rule,
    sources: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    centre: np.ndarray,
    state: Sequence[np.ndarray],
    *,
    step: int,
    contributions: int,
    check_finite: bool = False,
) -> int:
    """Run one round on a chunk: the answer to the sum of `sources`, so many `contributions`, goes to `targets`.

    A target may be one of the sources. Returns the number of elements that are done: all of them, or with
    `check_finite` those before the first block of `BLOCK` elements whose sum has NaN or Inf. Nothing changes from that
    block on.
    """
    dtype = np.result_type(centre.dtype, np.float32)
    numbers = tuple(map(dtype.type, rule.numbers(step, contributions)))
    if centre.dtype in COMPILED:
        loop = block_loop(rule.update_, rule.states)
        return loop(addresses(sources), addresses(targets), centre, tuple(state), numbers, check_finite)
    total = np.empty_like(centre)
    add_up_(total, sources)
    not_finite = np.flatnonzero(~np.isfinite(total)) if check_finite else total[:0]
    done = int(not_finite[0]) // BLOCK * BLOCK if not_finite.size else centre.size
    blocks = [array[None, :done] for array in (total, centre, *state)]
    update_ = rule.update_.py_func  # type: ignore[attr-defined]
    answer = update_(*blocks[:2], blocks[2:], [*map(np.atleast_1d, numbers)])
    for target in targets:
        np.copyto(target[:done], answer[0])
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
    apply_(rule, arrays[:1], arrays[:1], arrays[1], arrays[2:], step=1, contributions=1)
