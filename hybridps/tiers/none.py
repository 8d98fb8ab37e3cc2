"""The tier of a job with one group and no server: there is nothing to exchange with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hybridps.codecs import CodecSpec
from hybridps.memory import Layout
from hybridps.mpi_groups.group import Group
from hybridps.ps.clocks import Clock
from hybridps.ps.model import Joining, Meeting, Rules
from hybridps.ps.rules import Rule
from hybridps.tensor_collectives import Tensor, allreduce_, broadcast_
from hybridps.tiers.rejoining import Rejoining
from hybridps.tiers.tier import Exchange, check_same_layout


class NoTier:
    """One rank's operations without other groups. `Tier` documents the methods."""

    distance = float("nan")
    has_servers = False

    def __init__(self, group: Group) -> None:
        self._group = group
        self.rejoining = Rejoining()

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
        check_same_layout(self._group, table, layout, codec)
        if tensor is not None:
            broadcast_(tensor, self._group)
        return Joining.NEW

    def begun(self, table: str) -> bool:
        return False

    def joining(self, table: str) -> Joining:
        return Joining.NEW

    def is_alone(self, table: str, tensor: Tensor) -> bool:
        return False

    def sum_(self, table: str, tensor: Tensor, start: int, stop: int, rules: Rules = ()) -> Exchange | None:
        allreduce_(tensor, self._group, "sum", start, stop)
        return None

    def exchange(self, table: str, tensor: Tensor, start: int, stop: int, rules: Rules = ()) -> Exchange | None:
        return None

    def finds_not_finite(self, table: str, tensor: Tensor) -> bool:
        return False

    def finish(self, exchange: Exchange | None) -> Mapping[int, int] | None:
        return None

    def pull(self, table: str, tensor: Tensor) -> None:
        pass

    def pull_states(self, table: str) -> list[np.ndarray]:
        return []

    def put_states(self, table: str, states: Mapping[int, np.ndarray]) -> None:
        pass

    def drop(self, table: str) -> None:
        pass

    def barrier(self) -> None:
        self._group.barrier()

    def meet(self) -> Meeting | None:
        raise NotImplementedError

    def close(self) -> None:
        pass
