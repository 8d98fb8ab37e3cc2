"""The tensor collectives for a `DeviceTensor`. They work piece by piece.

While one piece is combined with those of other ranks, later pieces are packed, summed and copied from the devices, and
earlier pieces are copied back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from hybridps.errors import LayoutError
from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives.allreduce import allreduce_ as allreduce_packed
from hybridps.tensor_collectives.broadcast import broadcast_ as broadcast_packed
from hybridps.tensor_collectives.devices.device import Vectors, Wait
from hybridps.tensor_collectives.devices.device_tensor import DeviceTensor
from hybridps.tensor_collectives.reduce import reduce_ as reduce_packed
from hybridps.tensor_collectives.tensor import GROUP_OPERATION, check_operation, check_part, check_root

if TYPE_CHECKING:
    from hybridps.tensor_collectives.devices.device_tensor import Device

OfPiece = Callable[[int, int], list[Wait]]
"""Begins an operation on elements `begin:end`."""


def allreduce_(tensor: DeviceTensor, group: Group, op: str = "sum", start: int = 0, stop: int | None = None) -> None:
    """Reduce elements `start:stop` of all vectors over all ranks, in place.

    `op`: 'sum', 'max', 'min', or 'mean' over all vectors of all ranks. Integers do not allow 'mean'.
    """
    _reduce(tensor, group, None, op, start, stop, partial(tensor.store, _divisor(tensor, op)))


def reduce_(
    tensor: DeviceTensor, group: Group, root: int = 0, op: str = "sum", start: int = 0, stop: int | None = None
) -> None:
    """Reduce elements `start:stop` of all vectors over all ranks, into the vectors of rank `root` only."""
    check_root(root, group.size)
    _reduce(tensor, group, root, op, start, stop, partial(tensor.store, _divisor(tensor, op)))


def broadcast_(tensor: DeviceTensor, group: Group, root: int = 0, start: int = 0, stop: int | None = None) -> None:
    """Copy elements `start:stop` of vector 0 of rank `root` to all vectors of all ranks, in place."""
    check_root(root, group.size)
    _broadcast(tensor, group, root, start, stop, tensor.fetch_first)


def reduce_scatter(tensor: DeviceTensor, group: Group, out: Any, op: str = "sum") -> None:
    """Reduce all vectors over all ranks; rank r receives part r in `out`. The tensor is not changed.

    `out`: an array of the tensor's kind, in memory that the device of vector 0 can access, with `part_sizes(length,
    group.size)[group.rank]` elements. Raises LayoutError otherwise. `op` as in `allreduce_`.
    """
    device, part, spans = _part(tensor, group, out, "out")
    first = spans[group.rank][0]

    def store(begin: int, end: int) -> list[Wait]:
        packed = tensor.packed.vectors[0][begin:end]
        return [device.unpack(packed, _divisor(tensor, op), part, begin - first, end - first)]

    for root, span in enumerate(spans):
        _reduce(tensor, group, root, op, *span, store)


def allgather_(tensor: DeviceTensor, group: Group, part: Any) -> None:
    """Fill all vectors with the parts of all ranks; the inverse of the scatter in `reduce_scatter`.

    `part`: an array like `out` of `reduce_scatter`. Raises LayoutError otherwise.
    """
    device, own, spans = _part(tensor, group, part, "part")
    first = spans[group.rank][0]

    def fetch(begin: int, end: int) -> list[Wait]:
        return [device.pack(own, "sum", begin - first, end - first, tensor.packed.vectors[0][begin:end])]

    for root, span in enumerate(spans):
        _broadcast(tensor, group, root, *span, fetch)


def _reduce(
    tensor: DeviceTensor, group: Group, root: int | None, op: str, start: int, stop: int | None, store: OfPiece
) -> None:
    """Combine elements `start:stop` of all vectors over all ranks. Rank `root` (None: each rank) stores the result."""
    check_operation(op, tensor.dtype)
    combined = GROUP_OPERATION[op]

    def combine(begin: int, end: int) -> None:
        if root is None or tensor.transport != "staged":  # a group has no reduction to one rank
            allreduce_packed(tensor.packed, tensor.packed_group, combined, begin, end)
        else:
            reduce_packed(tensor.packed, tensor.packed_group, root, combined, begin, end)

    _pipeline(
        tensor.pieces(group, start, stop),
        partial(tensor.fetch, combined),
        combine,
        store if root in (None, group.rank) else _nothing,
    )


def _broadcast(tensor: DeviceTensor, group: Group, root: int, start: int, stop: int | None, fetch: OfPiece) -> None:
    """Fill elements `start:stop` of all vectors with what rank `root` fetches."""
    _pipeline(
        tensor.pieces(group, start, stop),
        fetch if group.rank == root else _nothing,
        lambda begin, end: broadcast_packed(tensor.packed, tensor.packed_group, root, begin, end),
        partial(tensor.store, 1),
    )


def _pipeline(
    pieces: list[tuple[int, int]], fetch: OfPiece, combine: Callable[[int, int], None], store: OfPiece
) -> None:
    """Fetch, combine and store each piece in turn. Fetches and stores run while this thread combines."""
    fetched = [fetch(*piece) for piece in pieces]
    stored = []
    for piece, waits in zip(pieces, fetched, strict=True):
        for wait in waits:
            wait()
        combine(*piece)
        stored += store(*piece)
    for wait in stored:
        wait()


def _part(tensor: DeviceTensor, group: Group, array: Any, name: str) -> tuple[Device, Vectors, list[tuple[int, int]]]:
    """Return the device of vector 0, `array` as a vector for it, and the spans of all parts.

    Raises LayoutError if `array` cannot be this rank's part.
    """
    spans = check_part(tensor, group, array, name)
    device = tensor.packers[0].device
    if not device.reaches(array):
        raise LayoutError(f"{name} is a {type(array).__name__} that the device of vector 0 does not reach")
    return device, Vectors.of([array]), spans


def _divisor(tensor: DeviceTensor, op: str) -> int:
    """Return what sums are divided by when they are stored. A mean is so rounded only once."""
    return tensor.group.size * tensor.count if op == "mean" else 1


def _nothing(begin: int, end: int) -> list[Wait]:
    return []
