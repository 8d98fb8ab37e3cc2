"""What a parameter store offers: the contract of every implementation."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from hybridps.codecs import CodecSpec
from hybridps.errors import ServerError
from hybridps.memory import Layout
from hybridps.ps.clocks import Clock
from hybridps.ps.model import Joining, Meeting, Rules
from hybridps.ps.rules import AnyRule, Rule

Known = TypeVar("Known")


class Pending(Protocol):
    """An operation under way."""

    @property
    def not_finite(self) -> Mapping[int, int]:
        """The rows of a completed exchange that had NaN or Inf and counted, each with its first such element.

        If the rule is transparent, a store that `finds_not_finite` names one row for each chunk with NaN or Inf.
        """

    def wait(self) -> None:
        """Wait until the operation is done. A second call raises ServerError."""

    def wait_here(self) -> bool:
        """Wait as `wait` does, but return False as soon as a server is away.

        The operation then stays under way; the caller may change the values, and call this again.
        """

    def is_done_within(self, seconds: float) -> bool:
        """Wait until the operation is done, for at most `seconds`. Returns whether it is; `wait` is still to be called.

        Time in which a server is away does not count. Raises ServerError if a server is away for too long.
        """


class ParameterStore(Protocol):
    """Tables of parameters, each a flat buffer with a layout and a rule, shared by the groups of a job.

    One thread uses a store at a time. Arrays are flat, contiguous and of the layout's dtype. All waits have a deadline
    (DeadlineError). If the server refuses a request, ServerError or LayoutError is raised with its reason.
    """

    finds_not_finite: bool
    """Whether exchanges report NaN and Inf in what the group contributes."""

    @property
    def away(self) -> bool:
        """Whether a server cannot be reached now, so that operations wait for it."""

    bytes_to_servers: int
    """The payload bytes sent so far."""

    bytes_from_servers: int
    """The payload bytes requested so far: answers to exchanges, and pulled arrays."""

    def register(
        self,
        table: str,
        layout: Layout,
        initial: np.ndarray | None,
        rule: Rule,
        clock: Clock | None = None,
        codec: CodecSpec = "exact",
    ) -> Joining:
        """Join a table.

        The first group, by number, initialises the centre with `initial` (zeros if None), whichever group registers
        first. The others leave the centre as it is. They wait for the first group, but not if it never starts. At
        servers with parents the first group initialises too, but the parents' centre counts, so the table is `LATE`.

        Without a `clock`, the rule's usual one is used. A `codec` that is not exact rounds values and answers, alike
        for all groups. Raises LayoutError, with the first keys that differ, if the table has another layout;
        ServerError if it has another rule, clock or codec, or if these cannot be combined.
        """

    def exchange(
        self, table: str, values: np.ndarray, answer: np.ndarray, start: int, stop: int, rules: Rules = ()
    ) -> Pending:
        """Contribute elements `start:stop` of `values`, and receive the rule's answer into those of `answer`.

        `rules` applies to these elements instead of the table's rule. Groups whose values form a round must give the
        same.

        With a bulk-synchronous clock, the round of an element is complete when all groups have contributed it; their
        spans need not be the same. A group has one exchange of an element under way at a time. Until the operation is
        done, `values` must not change and `answer` must not be read. They may be the same array.
        """

    def exchange_rows(
        self,
        table: str,
        rows: Sequence[np.ndarray],
        answers: Sequence[np.ndarray],
        start: int,
        stop: int,
        rules: Rules = (),
    ) -> Pending | None:
        """Exchange the sum of `rows`, vectors of one group. All `answers`, which may be the rows, receive the answer.

        Otherwise the same as `exchange`. Returns None, and begins nothing, if a server does not reach the memory of all
        of them.
        """

    def pull(self, table: str, out: np.ndarray, array: int = 0) -> None:
        """Read the whole current centre into `out`, or a state of the rule (`array` 1, 2, ...)."""

    def put(self, table: str, values: np.ndarray, array: int) -> None:
        """Replace the centre (`array` 0) or a state of the rule (1, 2, ...) by `values`.

        Concurrent contributions of other groups count either before or after this, chunk by chunk.
        """

    def drop(self, table: str) -> None:
        """Give up a table. The servers free it when all groups have dropped it."""

    def close(self) -> None:
        """Leave all tables and release all resources. The other groups continue without this one."""


@runtime_checkable
class HasBarrier(Protocol):
    """A store whose servers have a barrier of their own, as MXNet's have."""

    def barrier(self) -> None:
        """Return when all groups have called it."""


@runtime_checkable
class HasMeetings(Protocol):
    """A store whose groups can meet between two steps."""

    def meet(self, seconds: float) -> Meeting | None:
        """Meet the other groups. Returns None if not all have come within `seconds`; then call this again."""


OpenStore = Callable[..., ParameterStore]
"""Opens a store at servers with these addresses: `open_store(addresses, *, job, group, groups, settings, at_once)`.

`at_once`: whether each step exchanges all of its sums at once.
"""


def check_new(tables: Container[str], table: str, group: int, rule: Rule) -> AnyRule:
    """Return the rule of a table that `group` registers.

    Raises ServerError if the group has the table already, or if servers do not know the rule.
    """
    if table in tables:
        raise ServerError(f"table {table!r} is registered already by group {group}: register it once")
    if not isinstance(rule, AnyRule):
        raise ServerError(f"the rule {rule!r} is unknown to servers: use one of hybridps.ps.rules")
    return rule


def registered(tables: Mapping[str, Known], table: str, group: int) -> Known:
    """Return what a store knows about a table that `group` has registered.

    Raises ServerError, with the names of the registered tables, for another table.
    """
    known = tables.get(table)
    if known is None:
        names = ", ".join(tables) or "none"
        raise ServerError(f"table {table!r} is not registered by group {group}: it has {names}")
    return known
