"""How the ranks of a group notice that they are about to do different things."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec

from hybridps.errors import GroupError, LayoutError
from hybridps.memory import Layout
from hybridps.mpi_groups import allgather
from hybridps.tensor_collectives import Levels

PAYLOAD_BITS = 32


class DisagreementError(GroupError):
    """The workers of a group do different things. Raised on all ranks of the group."""


class DifferentLayoutsError(LayoutError):
    """The workers of a group have different networks. Raised on all ranks of the group."""


def digest(texts: Sequence[str]) -> int:
    """Return a number of 31 bits, the same in all processes for the same texts."""
    return zlib.crc32("\n".join(texts).encode()) >> 1


class Agreement:
    """The votes of the ranks of a group. All ranks call the same methods in the same order."""

    def __init__(self, levels: Levels) -> None:
        self._levels = levels

    def vote(self, phase: int, value: int, here: str) -> tuple[int, int]:
        """Return the smallest and the largest `value` (0 to 2^32 - 1) of all ranks.

        `phase`: a digest of what the ranks are about to do; `here`: the same in words. Raises DisagreementError, on all
        ranks, if the phases differ.
        """
        low, high = self._levels.vote(phase << PAYLOAD_BITS | value)
        if low >> PAYLOAD_BITS != high >> PAYLOAD_BITS:
            self._raise_difference([(here, "")])
        mask = (1 << PAYLOAD_BITS) - 1
        return low & mask, high & mask

    def awaited(self, worker: int) -> str:
        """Return whom this worker, of this number, is waiting for in a vote, in words. Any thread may call this."""
        rank = self._levels.awaited
        return "another worker" if rank is None else f"worker {worker - self._levels.group.rank + rank}"

    def check_same(self, items: Sequence[tuple[str, str]]) -> None:
        """Raise an error on all ranks, unless these titles and shapes are the same on all ranks.

        The error is a DisagreementError if titles differ, and a DifferentLayoutsError if shapes of the same title do.
        """
        low, high = self._levels.vote(digest([text for item in items for text in item]))
        if low != high:
            self._raise_difference(items)

    def check_layouts(self, layouts: Sequence[Layout]) -> None:
        """Raise DifferentLayoutsError, on all ranks, with the first key that differs between ranks of the group."""
        low, high = self._levels.vote(zlib.crc32(msgspec.json.encode(layouts)))
        if low == high:
            return
        told = allgather(self._levels.group, layouts, list[Layout])
        for rank, other in enumerate(told):
            if other != told[0]:
                raise DifferentLayoutsError(
                    f"the network of worker {rank} of the group is not that of worker 0: {_difference(told[0], other)}"
                )

    def _raise_difference(self, items: Sequence[tuple[str, str]]) -> None:
        lists = allgather(self._levels.group, items, list[tuple[str, str]])
        for rank, other in enumerate(lists):
            for (first, shape), (here, other_shape) in zip(lists[0], other, strict=False):
                if first != here:
                    raise DisagreementError(
                        f"worker 0 of the group comes to {first}, worker {rank} to {here}: all workers of a group must "
                        "make the same calls with the same keys in the same order"
                    )
                if shape != other_shape:
                    raise DifferentLayoutsError(
                        f"{here} has the shape {other_shape} on worker {rank} of the group instead of {shape}: all "
                        "workers must have the same network"
                    )


def _difference(first: list[Layout], other: list[Layout]) -> str:
    keys = [
        {slot.key: (slot.shape, layout.dtype) for layout in each for slot in layout.slots} for each in (first, other)
    ]
    for name in [*keys[0], *keys[1]]:
        here, there = keys[0].get(name), keys[1].get(name)
        if here is None or there is None:
            return f"key {name!r} is {'missing' if there is None else 'new'}"
        if here != there:
            return f"key {name!r} has the shape {there[0]} of {there[1]} instead of {here[0]} of {here[1]}"
    return "the order of the keys differs"
