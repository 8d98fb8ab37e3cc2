"""The tensor collectives for a `DeviceTensor`. They work piece by piece.

While one piece is combined with those of other ranks, later pieces are packed, summed and copied from the devices, and
earlier pieces are copied back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybridps.errors import LayoutError
from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives.devices.device import Device, Vectors, Wait
from hybridps.tensor_collectives.devices.device_tensor import DeviceTensor
from hybridps.tensor_collectives.tensor import GROUP_OPERATION, check_operation, check_root, part_sizes


def allreduce_(tensor: DeviceTensor, group: Group, op: str = "sum", start: int = 0, stop: int | None = None) -> None:
    """Reduce elements `start:stop` of all vectors over all ranks, in place.

    `op`: 'sum', 'max', 'min', or 'mean' over all vectors of all ranks (not of integers).
    """
    check_operation(op, tensor.dtype)
    tensor.check_group(group)
    _pipeline(
        tensor.pieces(start, tensor.length if stop is None else stop),
        lambda begin, end: tensor.fetch(GROUP_OPERATION[op], begin, end),
        lambda begin, end: tensor.transport.allreduce_(GROUP_OPERATION[op], begin, end),
        lambda begin, end: tensor.store(_divisor(tensor, op), begin, end),
    )


def reduce_(
    tensor: DeviceTensor, group: Group, root: int = 0, op: str = "sum", start: int = 0, stop: int | None = None
) -> None:
    """Reduce elements `start:stop` of all vectors over all ranks, into the vectors of rank `root` only."""
    check_operation(op, tensor.dtype)
    check_root(root, group.size)
    tensor.check_group(group)
    _pipeline(
        tensor.pieces(start, tensor.length if stop is None else stop),
        lambda begin, end: tensor.fetch(GROUP_OPERATION[op], begin, end),
        lambda begin, end: tensor.transport.reduce_(root, GROUP_OPERATION[op], begin, end),
        lambda begin, end: tensor.store(_divisor(tensor, op), begin, end) if group.rank == root else _nothing,
    )


def broadcast_(tensor: DeviceTensor, group: Group, root: int = 0, start: int = 0, stop: int | None = None) -> None:
    """Copy elements `start:stop` of vector 0 of rank `root` to all vectors of all ranks, in place."""
    check_root(root, group.size)
    tensor.check_group(group)
    _pipeline(
        tensor.pieces(start, tensor.length if stop is None else stop),
        lambda begin, end: tensor.fetch_first(begin, end) if group.rank == root else _nothing,
        lambda begin, end: tensor.transport.broadcast_(root, begin, end),
        lambda begin, end: tensor.store(1, begin, end),
    )


def reduce_scatter(tensor: DeviceTensor, group: Group, out: Any, op: str = "sum") -> None:
    """Reduce all vectors over all ranks; rank r receives part r in `out`. The tensor is not changed.

    `out`: an array of the tensor's kind in memory that the device of vector 0 can access, with
    `part_sizes(length, group.size)[group.rank]` elements (else LayoutError). `op` as in `allreduce_`.
    """
    check_operation(op, tensor.dtype)
    tensor.check_group(group)
    device, part = _part(tensor, group, out, "out")
    _wait([tensor.fetch(GROUP_OPERATION[op], *piece) for piece in tensor.pieces(0, tensor.length)])
    packed, divisor = tensor.transport.reduce_scatter(GROUP_OPERATION[op]), _divisor(tensor, op)
    _wait([device.unpack(packed[begin:end], divisor, part, begin, end) for begin, end in tensor.pieces(0, part.length)])


def allgather_(tensor: DeviceTensor, group: Group, part: Any) -> None:
    """Fill all vectors with the parts of all ranks; the inverse of the scatter in `reduce_scatter`.

    `part`: an array as `out` there (else LayoutError).
    """
    tensor.check_group(group)
    device, own = _part(tensor, group, part, "part")
    packed = tensor.transport.part
    _wait([device.pack(own, "sum", begin, end, packed[begin:end]) for begin, end in tensor.pieces(0, own.length)])
    tensor.transport.allgather_()
    _wait([tensor.store(1, *piece) for piece in tensor.pieces(0, tensor.length)])


def _pipeline(
    pieces: list[tuple[int, int]],
    fetch: Callable[[int, int], Wait],
    combine: Callable[[int, int], None],
    store: Callable[[int, int], Wait],
) -> None:
    """Fetch, combine and store each piece in turn. Fetches and stores run while this thread combines."""
    fetched = [fetch(*piece) for piece in pieces]
    stored = []
    for piece, wait in zip(pieces, fetched, strict=True):
        wait()
        combine(*piece)
        stored.append(store(*piece))
    _wait(stored)


def _part(tensor: DeviceTensor, group: Group, array: Any, name: str) -> tuple[Device, Vectors]:
    """The device of vector 0, and `array` as a vector for it. Raises LayoutError if it is not this rank's part."""
    count = part_sizes(tensor.length, group.size)[group.rank]
    device = tensor.packers[0].device
    if array.shape != (count,) or array.dtype != tensor.dtype:
        raise LayoutError(
            f"{name} has {array.shape} of {array.dtype}, part {group.rank} is ({count},) of {tensor.dtype}"
        )
    if not device.reaches(array):
        raise LayoutError(f"{name} is a {type(array).__name__} that the device of vector 0 does not reach")
    return device, Vectors.of([array])


def _divisor(tensor: DeviceTensor, op: str) -> int:
    """Sums are divided when they are stored, so that a mean is rounded once."""
    return tensor.group.size * tensor.count if op == "mean" else 1


def _wait(started: list[Wait]) -> None:
    for wait in started:
        wait()


def _nothing() -> None:
    """Wait for nothing."""
