"""How a group that was restarted gets what the others have trained: as a sum to which only one group contributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hybridps.memory import Layout
from hybridps.ps.model import Meeting
from hybridps.ps.rules import Sum
from hybridps.tensor_collectives import Tensor
from hybridps.tiers.tier import Tier

Run = Callable[[str, Callable[[], Any]], Any]


def hand_over(
    tier: Tier, pack: Callable[[], bytes], unpack: Callable[[bytes], None], run: Run | None = None
) -> Meeting:
    """Meet the other groups between two steps. Those that were restarted get what another one has packed.

    All ranks of all groups call this, if `rejoining.possible`. `pack` is called in the group that gives, `unpack` in
    those that join. `run` runs a named operation of the tier where its operations run; the default is here. Returns
    what this group learned. Raises the errors of `Rejoining.meet` and of `unpack`.
    """
    if run is None:
        run = lambda name, operate: operate()  # noqa: E731
    meeting: Meeting = tier.rejoining.meet(lambda: run("a meeting of the groups", tier.meet))
    if meeting.newcomers:
        given = pack() if meeting.gives else b""
        content = run("a hand-over", lambda: _sum_bytes(tier, f"hand-over.{meeting.number}", given))
        if meeting.joins:
            unpack(content)
    return meeting


def _sum_bytes(tier: Tier, table: str, given: bytes) -> bytes:
    """Return the bytes that the leader of the group that gives has, on all ranks of all groups."""
    size = int(_sum_once(tier, f"{table}.size", np.array([len(given)]))[0])
    words = np.zeros(-(-size // 8), np.int64)
    sent = np.frombuffer(given, np.uint8)[:size]  # those of a follower may be longer, and do not count
    words.view(np.uint8)[: len(sent)] = sent
    return _sum_once(tier, table, words).tobytes()[:size]


def _sum_once(tier: Tier, table: str, values: np.ndarray) -> np.ndarray:
    """Return the sum of the values of all leaders, on all ranks, by way of a table that is dropped again."""
    layout = Layout.of(values.dtype, {table: values.shape})
    flat = np.zeros(layout.length, values.dtype)
    flat[: values.size] = values
    tier.register(table, layout, None, Sum())
    tier.finish(tier.exchange(table, Tensor([flat]), 0, layout.length))
    tier.drop(table)
    return flat[: values.size]
