"""A round of a chunk as the loop hands it to a worker thread: its contributions, and where its answers are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import numpy as np

from hybridps.codecs import Values, decoded
from hybridps.compiled.finite import is_finite
from hybridps.errors import ServerError
from hybridps.ps.clocks import Rounds
from hybridps.ps.model import Contribution, Outcome, Rules, rules_of_span
from hybridps.ps.rules.finite import NotFiniteError, find_not_finite

Cut = TypeVar("Cut", np.ndarray, Values)

SENT = -1
"""Stands for all groups that an answer is sent to."""

Outlets = dict[int, list[np.ndarray]]
"""Where answers are written, by group or `SENT`: arrays of the length of the round's elements."""

Refused = dict[int, NotFiniteError]
"""Groups whose values did not count, each with the error."""


@dataclass
class EarlySum:
    """Contributions of a whole chunk that were added up before their round is complete: those of the first groups."""

    rows: Sequence[np.ndarray] = ()
    """The sum, if any contribution counts."""
    groups: int = 0
    refused: Refused = field(default_factory=dict)
    """Those of the groups that do not count."""


class Round(msgspec.Struct, frozen=True, eq=False):
    """Elements `start:stop` of a chunk whose round is complete: the sum of `early` and `contributions`.

    The loop calls `finish` with the groups that were refused, or with the error that ended the round; it returns the
    answers. `counted`: all contributions, including those that were added early. `values`: for each of these, how many
    its group had made, if the clock counts them.
    """

    start: int
    stop: int
    early: EarlySum
    contributions: Sequence[Contribution]
    outlets: Outlets
    finish: Callable[[Any], Iterable[Outcome]]
    rules: Rules = ()
    counted: Sequence[Contribution] = ()
    values: Sequence[int] = ()


def cut(array: Cut, begins: int, start: int, stop: int) -> Cut:
    """Return elements `start:stop` of an array whose first element is number `begins`."""
    return array[start - begins : stop - begins]


def not_finite_of(
    contributions: Iterable[Contribution], start: int, stop: int
) -> Iterator[tuple[Contribution, int, np.ndarray]]:
    """Yield the contributions with NaN or Inf in elements `start:stop`, each with its first such row and number."""
    for each in contributions:
        for number, row in enumerate(map(decoded, rows_of(each, start, stop))):
            if not is_finite(row):
                yield each, number, row
                break


def mark_not_finite(contributions: Iterable[Contribution], start: int, stop: int) -> None:
    """Note in each contribution one place of NaN or Inf: a hostile group cannot fill memory with more."""
    for each, number, row in not_finite_of(contributions, start, stop):
        if not each.not_finite:
            each.not_finite.append((number, start + find_not_finite(row)))


def rows_of(contribution: Contribution, start: int, stop: int) -> list[Values]:
    return [cut(row, contribution.span.start, start, stop) for row in contribution.rows]


def error_of_end(rounds: Rounds, contributions: Sequence[Contribution]) -> ServerError | None:
    """Return the error for a round after the end of groups, if all groups must do the same number of rounds."""
    if not rounds.ended:
        return None
    groups = {each.origin.group for each in contributions}
    ended, more = rounds.ended - groups, groups - rounds.late
    if not ended or not more:
        return None
    who, others = min(more), " and ".join(f"group {each}" for each in sorted(ended))
    return ServerError(
        f"group {who} does another step, but {others} came to the end of the training: with synchronous training, all "
        "workers must do the same number of steps, so give all of them as many batches"
    )


def error_of_rules(name: str, contributions: Sequence[Contribution], start: int, stop: int) -> ServerError | None:
    """Return the error for groups that give different rules for these elements; None if they agree."""
    if not any(each.rules for each in contributions):
        return None
    first = contributions[0]
    rules = rules_of_span(first.rules, start, stop)
    other = next((each for each in contributions if rules_of_span(each.rules, start, stop) != rules), None)
    if other is None:
        return None
    told = " and ".join(str([rule for _, rule in each.rules[:3]]) for each in (first, other))
    return ServerError(
        f"groups {first.origin.group} and {other.origin.group} do not update {name} with the same rules, but with "
        f"{told}: give all workers the same optimizer, learning rate and batch size"
    )
