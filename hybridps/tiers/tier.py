"""The contract of a tier, and what tiers have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Protocol

import msgspec
import numpy as np

from hybridps.codecs import CodecSpec
from hybridps.errors import LayoutError
from hybridps.memory import DTYPES, Layout
from hybridps.mpi_groups.group import Group
from hybridps.ps.clocks import Clock
from hybridps.ps.model import Joining, Meeting, Rules
from hybridps.ps.rules import Rule
from hybridps.tensor_collectives import Tensor
from hybridps.tensor_collectives.tensor import Rows
from hybridps.tiers.rejoining import Rejoining


class Exchange(Protocol):
    """An exchange of a group with others under way."""

    def is_answered_within(self, seconds: float) -> bool:
        """Wait for the answer, for at most `seconds`. Returns whether it is there; always False on followers."""


class Tier(Protocol):
    """One algorithm's exchanges with other groups.

    All ranks of a group call the same operations in the same order, with tensors of equal length. `close` and `drop` do
    not wait for other ranks. Table names belong to one algorithm; tables of other tiers are different ones.
    """

    distance: float
    """|w - centre| / |w| at the last Elastic exchange that this rank saw; nan if there was none."""

    has_servers: bool
    """Whether other groups are reached through servers, which can update."""

    rejoining: Rejoining
    """How this group takes part again if it was restarted."""

    def register(
        self,
        table: str,
        layout: Layout,
        tensor: Tensor | None,
        rule: Rule,
        clock: Clock | None = None,
        codec: CodecSpec = "exact",
        keeps_values: bool = False,
    ) -> Joining:
        """Join a table. The tensor becomes the centre if there is none yet; afterwards it holds the centre.

        Without a tensor the centre begins with zeros. `keeps_values`: answers are written to this tensor, and `sum_`
        does not change the tensor that it is given. It requires tensors of one vector and a rule whose answer is the
        new value.

        If the table is `DROPPED`, the tensor becomes the leader's, and the table cannot be used. Raises, on all ranks
        of the group, LayoutError with the first keys that differ between ranks or groups, or ServerError with the
        servers' reason.
        """

    def begun(self, table: str) -> bool:
        """Return whether other groups had exchanged a table that begins with zeros before this group registered it."""

    def joining(self, table: str) -> Joining:
        """Return what this group found when it registered a table at the servers; `NEW` without servers."""

    def is_alone(self, table: str, tensor: Tensor) -> bool:
        """Return whether this group must skip an exchange of the tensor now because a server is away. A collective.

        It is always False if an exchange cannot be skipped: only a group that exchanges its own weights with the
        centre, independently of other groups, can skip one. An exchange that was interrupted is completed first, on all
        ranks of the group.
        """

    def sum_(self, table: str, tensor: Tensor, start: int, stop: int, rules: Rules = ()) -> Exchange | None:
        """Begin to replace elements `start:stop`, on all ranks, by the answer to their sum. `finish` ends it.

        If the table was registered with `keeps_values`, the answer is written to the tensor that was registered.
        `rules` applies to these elements instead of the table's rule. If all servers reach the ranks' vectors, they add
        them up in place; otherwise the group reduces them first. Returns None if nothing is left to be done.
        """

    def finds_not_finite(self, table: str, tensor: Tensor) -> bool:
        """Return whether servers search what ranks give to `sum_` for NaN and Inf, so that `finish` reports it."""

    def exchange(self, table: str, tensor: Tensor, start: int, stop: int, rules: Rules = ()) -> Exchange | None:
        """Begin to exchange elements `start:stop` of the leader's tensor. They must not be used until `finish`."""

    def finish(self, exchange: Exchange | None) -> Mapping[int, int] | None:
        """Wait for an exchange: the answer is applied to the tensor, on all ranks of the group.

        All ranks finish exchanges in the same order, which may be another one than that in which they began. Returns,
        on the leader, the ranks whose own values had NaN or Inf, each with its first such element.
        """

    def pull(self, table: str, tensor: Tensor) -> None:
        """Read the whole centre of a table into the tensor, on all ranks of the group."""

    def pull_states(self, table: str) -> list[np.ndarray]:
        """Return the centre and the states of the table's rule, flat. On the leader alone; not a collective."""

    def put_states(self, table: str, states: Mapping[int, np.ndarray]) -> None:
        """Replace the centre (0) and states of the table's rule (1, ...). On the leader alone; not a collective."""

    def drop(self, table: str) -> None:
        """Give up a table that has no exchange under way. An unknown table is ignored."""

    def barrier(self) -> None:
        """Return when all workers of all groups have called it."""

    def meet(self) -> Meeting | None:
        """Meet the other groups, between two steps: those that were restarted take part from then on.

        Returns None if not all groups have come within a second; then call it again. Only if `rejoining.possible`.
        """

    def close(self) -> None:
        """Drop all tables. The connection stays open for other tiers."""


def check_same_layout(group: Group, table: str, layout: Layout, codec: CodecSpec = "exact") -> None:
    """Compare a table's name, keys, shapes, dtype and codec over the ranks of a group, which all call this.

    Raises LayoutError, on all ranks, with the first keys that differ, or with both codecs.
    """
    mine = msgspec.msgpack.encode((table, layout, codec))
    digests = group.allgather_bytes(hashlib.sha256(mine).digest())
    if len(set(digests)) == 1:
        return
    other = next(rank for rank, digest in enumerate(digests) if digest != digests[0])
    told = group.allgather_bytes(mine)
    known = tuple[str, Layout, CodecSpec]
    (name, first, codec), (other_name, there, other_codec) = (
        msgspec.msgpack.decode(told[rank], type=known) for rank in (0, other)
    )
    if (name, first) == (other_name, there):
        raise LayoutError(
            f"rank {other} of the group sends table {table!r} with the codec {other_codec}, and rank 0 with {codec}: "
            "give all ranks the same gradient compression"
        )
    difference = first.difference(there) if name == other_name else f"table {other_name!r} instead of {name!r}"
    raise LayoutError(f"rank {other} of the group registers another layout of table {name!r} than rank 0: {difference}")


def rows_for_servers(tensor: Tensor, group: Group, rule: Rule) -> Rows | None:
    """Return the vectors of a group of several ranks, if servers could add them up and write the answer to all of them.

    All vectors must be in memory of one node, in a dtype that servers know, and the answer must replace the values. The
    result is the same on all ranks. Whether every server reaches the memory is known only when it is offered.
    """
    rows = tensor.rows_in(group) if rule.answer_is_new_value and group.size > 1 else None
    fits = rows is not None and rows.levels.one_node and tensor.dtype.name in DTYPES
    return rows if fits else None
