"""What a parameter store offers: the contract of every implementation."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np

from hybridps.codecs import CodecSpec
from hybridps.errors import ServerError
from hybridps.memory import Layout
from hybridps.ps.clocks import Clock
from hybridps.ps.model import Joining, Rules
from hybridps.ps.rules import AnyRule, Rule

Known = TypeVar("Known")


class Pending(Protocol):
    """An operation under way."""

    @property
    def not_finite(self) -> Mapping[int, int]:
        """Of an exchange that is done: rows that had NaN or Inf and counted, each with its first such element.

        Of each chunk one row is named, by a store that `finds_not_finite`, where the rule is transparent.
        """

    def wait(self) -> None:
        """Return when it is done. Wait once only: a second time raises ServerError."""

    def wait_here(self) -> bool:
        """As `wait`, but returns false as soon as a server is away: the operation stays under way, and the caller may
        change the values, and call this again."""


class ParameterStore(Protocol):
    """Tables of parameters, each a flat buffer with a layout and a rule, shared by the groups of a job.

    Used by one thread at a time. Arrays are flat, contiguous and of the layout's dtype. All waits have
    a deadline (DeadlineError); what the server refuses raises ServerError or LayoutError with its reason.
    """

    finds_not_finite: bool
    """Whether exchanges tell of NaN and Inf in what the group brings."""

    @property
    def away(self) -> bool:
        """Whether a server cannot be reached now, so that operations wait for it."""

    bytes_to_servers: int
    """Payload bytes sent so far."""

    bytes_from_servers: int
    """Payload bytes asked for so far: answers to exchanges, and what was pulled."""

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

        The first group initialises the centre with `initial` (zeros if None), whichever comes first: the others
        wait for it, but not for one that does not come at all. They leave the centre as it is. At servers with parents
        the first group initialises too, but the parents' centre counts: the table is `LATE`. Raises LayoutError with
        the first keys that differ if the table has another layout, ServerError if it has another rule, clock or codec,
        or if they have no meaning together. Without a `clock` it is the rule's usual one. With a `codec` that is not
        exact, values and answers are rounded by it, for all groups alike.
        """

    def exchange(
        self, table: str, values: np.ndarray, answer: np.ndarray, start: int, stop: int, rules: Rules = ()
    ) -> Pending:
        """Contribute elements `start:stop` of `values`, and receive the rule's answer into those of `answer`.

        `rules`: of these elements, instead of the table's. Groups whose values make a round must give the same.

        With a bulk-synchronous clock the round of an element is complete when all groups have contributed it: their
        spans need not be the same. Of an element a group has one exchange under way at a time. `values` may not change,
        nor `answer` be read, until the operation is done. They may be the same array.
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
        """As `exchange` of the sum of `rows`, vectors of one group; all `answers`, which may be the rows, receive it.

        None, and nothing is begun, if a server does not reach the memory of them all.
        """

    def pull(self, table: str, out: np.ndarray, array: int = 0) -> Pending:
        """Receive the whole centre into `out`, as it is now, or a state of the rule (`array` 1, 2, ...)."""

    def put(self, table: str, values: np.ndarray, array: int) -> Pending:
        """Replace the centre (`array` 0) or a state of the rule (1, 2, ...) by `values`.

        What other groups contribute meanwhile comes before or after, chunk by chunk.
        """

    def drop(self, table: str) -> None:
        """This group is done with a table. The servers free it when all groups have dropped it."""

    def close(self) -> None:
        """Leave all tables and release what is held. The other groups go on without this one."""


OpenStore = Callable[..., ParameterStore]
"""Opens a store at servers with these addresses: `open_store(addresses, *, job, group, groups, settings)`."""


def check_new(tables: Container[str], table: str, group: int, rule: Rule) -> AnyRule:
    """The rule of a table that `group` registers. Raises ServerError for a table it has, or a rule servers lack."""
    if table in tables:
        raise ServerError(f"table {table!r} is registered already by group {group}: register it once")
    if not isinstance(rule, AnyRule):
        raise ServerError(f"the rule {rule!r} is unknown to servers: use one of hybridps.ps.rules")
    return rule


def registered(tables: Mapping[str, Known], table: str, group: int) -> Known:
    """What a store knows of a table that `group` has registered.

    Raises ServerError, with the names of the tables there are, for another table.
    """
    known = tables.get(table)
    if known is None:
        names = ", ".join(tables) or "none"
        raise ServerError(f"table {table!r} is not registered by group {group}: it has {names}")
    return known
