"""How a group talks to the parameter-server tier: its leader pushes and pulls, the others follow.

The plan gives each rank its Uplink, so that the algorithms are the same on all ranks.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np

from hybridps.memory import Arena, Layout
from hybridps.mpi_groups.group import Group
from hybridps.ps.rules import Rule
from hybridps.ps.store import ParameterStore, Pending
from hybridps.tensor_collectives import Tensor, broadcast_


class Uplink(Protocol):
    """All ranks of a group call the same operations in the same order, with tensors of equal length."""

    @property
    def bytes_to_servers(self) -> int:
        """Payload bytes that this rank sent."""

    @property
    def distance(self) -> float:
        """|w - centre| / |w| of the last Elastic exchange that this rank saw; nan if there was none."""

    def register(self, table: str, layout: Layout, tensor: Tensor | None, rule: Rule) -> bool:
        """Join a table, with the tensor as its centre unless there is one; the tensor is the centre afterwards.

        Without a tensor the centre begins with zeros. Returns whether the centre was there already.
        """

    def start(self, table: str, tensor: Tensor, start: int, stop: int) -> None:
        """Begin to exchange elements `start:stop` of the tensor, which nobody may use until `finish`."""

    def finish(self) -> None:
        """End the oldest exchange begun: the tensor has absorbed the answer, on all ranks of the group."""

    def pull(self, table: str, tensor: Tensor) -> None:
        """Read the whole centre of a table into the tensor, on all ranks of the group."""

    def close(self) -> None: ...


class NoUplink:
    """There is one group and no server: nothing to exchange with."""

    bytes_to_servers = 0
    distance = float("nan")

    def __init__(self, group: Group) -> None:
        self.group = group

    def register(self, table: str, layout: Layout, tensor: Tensor | None, rule: Rule) -> bool:
        if tensor is not None:
            broadcast_(tensor, self.group)
        return False

    def start(self, table: str, tensor: Tensor, start: int, stop: int) -> None:
        pass

    def finish(self) -> None:
        pass

    def pull(self, table: str, tensor: Tensor) -> None:
        pass

    def close(self) -> None:
        pass


class LeaderUplink:
    """The leader's side: exchanges with the store, then broadcasts in its group."""

    def __init__(self, store: ParameterStore, group: Group) -> None:
        self.store = store
        self.group = group
        self.last_distance = float("nan")
        self._tables: dict[str, tuple[Rule, np.ndarray]] = {}
        self._under_way: deque[tuple[str, Tensor, int, int, Pending]] = deque()

    @property
    def bytes_to_servers(self) -> int:
        return self.store.bytes_to_servers

    @property
    def distance(self) -> float:
        return self.last_distance

    def register(self, table: str, layout: Layout, tensor: Tensor | None, rule: Rule) -> bool:
        late = self.store.register(table, layout, None if tensor is None else tensor.vectors[0], rule)
        self._tables[table] = (rule, Arena(layout).flat)
        if tensor is not None:
            if late:
                self.store.pull(table, tensor.vectors[0]).wait()
            broadcast_(tensor, self.group)
        return late

    def start(self, table: str, tensor: Tensor, start: int, stop: int) -> None:
        answer = self._tables[table][1]
        pending = self.store.exchange(table, tensor.vectors[0], answer, start, stop)
        self._under_way.append((table, tensor, start, stop, pending))

    def finish(self) -> None:
        table, tensor, start, stop, pending = self._under_way.popleft()
        pending.wait()
        rule, answer = self._tables[table]
        values = tensor.vectors[0][start:stop]
        self.last_distance = rule.distance(values, answer[start:stop])
        rule.absorb_(values, answer[start:stop])
        broadcast_(tensor, self.group, 0, start, stop)

    def pull(self, table: str, tensor: Tensor) -> None:
        self.store.pull(table, tensor.vectors[0]).wait()
        broadcast_(tensor, self.group)

    def close(self) -> None:
        self.store.close()


class FollowerUplink:
    """The side of the other ranks of a group: they receive what the leader has."""

    bytes_to_servers = 0
    distance = float("nan")

    def __init__(self, group: Group) -> None:
        self.group = group
        self._under_way: deque[tuple[Tensor, int, int]] = deque()

    def register(self, table: str, layout: Layout, tensor: Tensor | None, rule: Rule) -> bool:
        if tensor is not None:
            broadcast_(tensor, self.group)
        return False

    def start(self, table: str, tensor: Tensor, start: int, stop: int) -> None:
        self._under_way.append((tensor, start, stop))

    def finish(self) -> None:
        tensor, start, stop = self._under_way.popleft()
        broadcast_(tensor, self.group, 0, start, stop)

    def pull(self, table: str, tensor: Tensor) -> None:
        broadcast_(tensor, self.group)

    def close(self) -> None:
        pass
