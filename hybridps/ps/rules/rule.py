"""The contract of a rule: what a server does with the contributions of a round, and what a group does with the answer.

A rule works on one chunk: flat arrays of equal length and dtype. A clock says which contributions form a round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar

import msgspec
import numpy as np

from hybridps.codecs import CodecSpec, Encoded, Values, codec_of, decoded, described
from hybridps.compiled import addresses
from hybridps.compiled.finite import is_finite
from hybridps.compiled.streaming_copy import LEAST_BYTES
from hybridps.ps.clocks import BoundedStale, BulkSynchronous, Clock, FreeRunning
from hybridps.ps.rules.finite import find_not_finite
from hybridps.ps.rules.kernel import COMPILED, block_loop, block_size, sum_
from hybridps.ps.rules.progress import NONE, Progress

MOST_STATES = 3
"""The largest number of states of a rule."""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base class: numbers, and the two sides of a rule. The names of in-place functions end in an underscore."""

    states: ClassVar[int] = 0
    """The number of arrays that the server keeps beside the centre, initially zero: 0 to `MOST_STATES`, and at most 2
    with `update_`."""

    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64")
    """The dtypes in which the rule is computed."""

    clocks: ClassVar[tuple[type[Clock], ...]] = (BulkSynchronous, BoundedStale, FreeRunning)
    """The clocks that the rule can be used with, the usual one first. The usual one takes no arguments."""

    separate: ClassVar[bool] = False
    """Whether every contribution is a round of its own. Otherwise the contributions of a round are summed first."""

    answer_is_new_value: ClassVar[bool] = True
    """Whether the answer replaces the group's values unchanged."""

    centre_is_answer: ClassVar[bool] = False
    """Whether the answer becomes the centre. `update_` then does not change the centre."""

    transparent: ClassVar[bool] = False
    """Whether NaN and Inf pass through to the groups, which are told whose they were. The next round begins without
    them."""

    whole_chunks: ClassVar[bool] = False
    """Whether only whole chunks can be exchanged."""

    whole_keys: ClassVar[bool] = False
    """Whether a chunk must be a whole key. Such a rule needs tables of one key."""

    update_: ClassVar[Any]
    """`update_(total, centre, state, numbers)`: update a block of `centre` and `state` with the round's `total`, which
    may be overwritten. Returns the answer, one of these arrays.

    A compiled static method. If the rule is computed in float16, its source runs in NumPy too: there an "element"
    `total[i]` is a whole block, and a number is a float32 array of one element.
    """

    def numbers(self, step: int, contributions: int) -> tuple[float, ...]:
        """Return the arguments of the update in round `step` (1, 2, ...): the rule's numbers, and the contributions."""
        return *msgspec.structs.astuple(self), contributions

    def load(self, weights: np.ndarray, states: Sequence[np.ndarray]) -> Callable[[Any, int, np.ndarray], None] | None:
        """Return a function that updates `weights` and `states` in place, to be used instead of `update_`, or None.

        It is called with the rule of a round, the round's number (1, 2, ...) and the sum of its contributions.
        `weights`: initial values of one chunk, without padding, in the shape of the key if it is a whole one. `states`:
        flat zeros of the same length for each state, which this method sets to the rule's initial states.
        """
        return None

    def apply_answer_(self, values: np.ndarray, answer: np.ndarray) -> None:
        """On the group's side: change `values` by the server's `answer`, which may be overwritten."""
        np.copyto(values, answer)

    def distance(self, values: np.ndarray, answer: np.ndarray) -> float:
        """On the group's side, before `apply_answer_`: return |values - centre| / |values|, or nan."""
        return float("nan")


def apply_(
    rule: Rule,
    sources: Sequence[Values],
    targets: Sequence[np.ndarray],
    centre: np.ndarray,
    state: Sequence[np.ndarray],
    *,
    step: int,
    contributions: int,
    check_finite: bool = False,
    whole_bytes: int = 0,
    progress: Progress | None = None,
) -> int:
    """Run one round on a chunk: apply the rule to the sum of `sources`, and write the answer to `targets`.

    `contributions`: how many contributions the sum stands for. A target may be one of the sources: it is written after
    the block of elements is done, unless the rule is `separate`, whose answer is not kept. `whole_bytes`: the size of
    the table, as far as it is known. `progress`: records how far the round is. Returns the number of elements that are
    done: all of them or, with `check_finite`, those before the first block (see `block_size`) whose sum has NaN
    or Inf. From that block on nothing changes.
    """
    numbers = tuple(map(_number_type(centre.dtype), rule.numbers(step, contributions)))
    kept = [centre] if rule.centre_is_answer else []
    before, after = (targets, []) if rule.separate else (kept, targets)
    if centre.dtype in COMPILED:
        loop = block_loop(rule.update_)
        states = (*state, centre, centre)[:2]  # always two: a rule that keeps fewer does not read the others
        streams = rule.centre_is_answer and whole_bytes >= LEAST_BYTES
        notes = tuple(progress or NONE[centre.dtype.type])
        into = addresses([] if streams else before), addresses(after)
        return loop(described(sources), *into, centre, states, numbers, check_finite, streams, notes)
    total = np.empty_like(centre)
    if progress is not None and progress.is_summed:
        np.copyto(total, progress.saved[0][: len(total)])
    else:
        add_up_(total, sources)
    done, length = centre.size, block_size(progress)
    if check_finite and not is_finite(total):
        done = find_not_finite(total) // length * length
    if progress is not None:
        progress.begin((total, centre, *state), done)
    blocks = [array[None, :done] for array in (total, centre, *state)]
    answer = rule.update_.py_func(*blocks[:2], blocks[2:], [*map(np.atleast_1d, numbers)])
    for target in before:
        np.copyto(target[:done], answer[0])
    if progress is not None:
        progress.end(done)
    for target in after:
        np.copyto(target[:done], answer[0])
    return done


@cache
def _number_type(dtype: np.dtype) -> type[np.generic]:
    """Return the type of the numbers of a rule that computes with `dtype`: at least float32."""
    return np.result_type(dtype, np.float32).type


def add_up_(total: np.ndarray, sources: Sequence[Values]) -> None:
    """Set `total` to the sum of the sources, added in their order. `total` may be the first of them."""
    if total.dtype in COMPILED:
        sum_(total, described(sources))
        return
    np.copyto(total, decoded(sources[0]))
    for source in sources[1:]:
        np.add(total, decoded(source), out=total)


def warm_up(rule: Rule, dtype: str, codec: CodecSpec = "exact") -> None:
    """Compile or load the rule for values of a dtype and codec. Call this before the first exchange.

    Raises ServerError.
    """
    arrays = [np.ones(8, dtype) for _ in range(2 + rule.states)]
    sources: list[Values] = [arrays[0]]
    if codec != "exact":
        used = codec_of(codec)
        sources.append(Encoded(used, np.zeros(used.nbytes(8, dtype), np.uint8), 8, arrays[0].dtype))
    is_finite(arrays[0])
    loaded = rule.load(np.ones((2, 4), dtype), [np.zeros(8, dtype) for _ in range(rule.states)]) is not None
    for source in sources:
        add_up_(arrays[0], [source])
        if not loaded:
            apply_(rule, [source], arrays[:1], arrays[1], arrays[2:], step=1, contributions=1)
