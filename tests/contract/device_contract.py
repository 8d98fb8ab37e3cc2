"""What the collectives of a `DeviceTensor` do, checked against NumPy, for any device, group and transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from group_contract import assert_close, values

from hybridps.errors import LayoutError
from hybridps.mpi_groups import Group
from hybridps.tensor_collectives import Levels, devices, part_sizes
from hybridps.tensor_collectives.devices.device import PIECE_BYTES
from hybridps.tensor_collectives.tensor import EXACT

LENGTHS = (0, 1, 7, 1009, 20_011)


@dataclass(frozen=True)
class Kind:
    """Arrays of a device: made from NumPy's, filled with other values, and back."""

    array: Callable[[np.ndarray], Any]
    fill: Callable[[Any, np.ndarray], None]
    numpy: Callable[[Any], np.ndarray]


HOST = Kind(np.copy, np.copyto, np.asarray)


def cuda_kind(number: int = 0) -> Kind:
    """Arrays of GPU `number`, modulo how many there are. Skips the test where there is none."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed", exc_type=ImportError)
    try:
        gpu = cupy.cuda.Device(number % cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"no GPU can be used: {error}")

    def array(values: np.ndarray) -> Any:
        with gpu:
            return cupy.asarray(values)

    def fill(target: Any, values: np.ndarray) -> None:
        with gpu:
            target.set(values)

    return Kind(array, fill, cupy.asnumpy)


def known_dtypes() -> list[str]:
    """Those that this NumPy knows: bfloat16 needs ml_dtypes."""
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        return [name for name in EXACT if name != "bfloat16"]
    return list(EXACT)


def cuts(length: int) -> list[tuple[int, ...]]:
    """Shapes of arrays that are `length` elements together: some empty, some that begin at no multiple of 16 bytes."""
    chosen = []
    for shape in [(0,), (3, 5), (1,), (64,), (2, 3, 7), (500,)]:
        if int(np.prod(shape)) <= length:
            chosen.append(shape)
            length -= int(np.prod(shape))
    return [*chosen, (length,)]


class Case:
    """A tensor of small integers, which are exact in every dtype; several vectors are cut into arrays."""

    def __init__(
        self, levels: Levels, kind: Kind, dtype: str, length: int, vectors: int, transport: str, seed: int = 0
    ) -> None:
        self.group, self.kind, self.dtype, self.length = levels.group, kind, np.dtype(dtype), length
        self.everything = [
            [values(rank, length, "float64", seed + v).astype(dtype) for v in range(vectors)]
            for rank in range(self.group.size)
        ]
        self.own = self.everything[self.group.rank]
        shapes = cuts(length) if vectors > 1 else [(length,)]
        self.ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
        self.arrays = [[kind.array(np.zeros(shape, dtype)) for shape in shapes] for _ in range(vectors)]
        self.tensor = devices.DeviceTensor(self.arrays if vectors > 1 else self.arrays[0], levels, transport)
        self.fill()

    def fill(self) -> None:
        """Each vector becomes its own values."""
        for arrays, own in zip(self.arrays, self.own, strict=True):
            for array, part in zip(arrays, np.split(own, self.ends), strict=True):
                self.kind.fill(array, part.reshape(array.shape))

    def reduced(self, op: str) -> np.ndarray:
        """`op` over all vectors of all ranks, rounded once."""
        exact = np.concatenate(self.everything).astype(EXACT[self.dtype.name])
        if op == "mean":
            return (np.sum(exact, axis=0, dtype=exact.dtype) / exact.dtype.type(len(exact))).astype(self.dtype)
        return {"sum": np.add, "max": np.maximum, "min": np.minimum}[op].reduce(exact).astype(self.dtype)

    def check(self, expected: list[np.ndarray]) -> None:
        for arrays, wanted in zip(self.arrays, expected, strict=True):
            vector = np.concatenate([self.kind.numpy(array).reshape(-1) for array in arrays])
            assert_close(vector, wanted)
        self.group.barrier()


def each_case(group: Group, kind: Kind, transport: str) -> Iterator[Case]:
    levels = Levels(group, [rank // 2 for rank in range(group.size)], deadline_seconds=60)
    for dtype in known_dtypes():
        for length in LENGTHS:
            for vectors in (1, 3):
                case = Case(levels, kind, dtype, length, vectors, transport)
                yield case
                case.tensor.close()
    levels.close()


def operations(case: Case) -> list[str]:
    return ["sum", "max", "min"] if case.dtype.kind == "i" else ["sum", "mean", "max", "min"]


def check_allreduce(group: Group, kind: Kind, transport: str) -> None:
    for case in each_case(group, kind, transport):
        for op in operations(case):
            case.fill()
            devices.allreduce_(case.tensor, group, op)
            case.check([case.reduced(op)] * len(case.own))


def check_allreduce_of_a_part(group: Group, kind: Kind, transport: str) -> None:
    for case in each_case(group, kind, transport):
        start, stop = case.length // 3, case.length // 2
        devices.allreduce_(case.tensor, group, "sum", start, stop)
        total = case.reduced("sum")
        case.check([np.concatenate([own[:start], total[start:stop], own[stop:]]) for own in case.own])


def check_reduce(group: Group, kind: Kind, transport: str) -> None:
    for case in each_case(group, kind, transport):
        root = group.size - 1
        devices.reduce_(case.tensor, group, root, "max")
        case.check([case.reduced("max")] * len(case.own) if group.rank == root else case.own)


def check_broadcast(group: Group, kind: Kind, transport: str) -> None:
    for case in each_case(group, kind, transport):
        root = group.size - 1
        devices.broadcast_(case.tensor, group, root)
        case.check([case.everything[root][0]] * len(case.own))


def check_reduce_scatter_and_allgather(group: Group, kind: Kind, transport: str) -> None:
    for case in each_case(group, kind, transport):
        counts = part_sizes(case.length, group.size)
        start = sum(counts[: group.rank])
        for op in operations(case):
            case.fill()
            part = kind.array(np.zeros(counts[group.rank], case.dtype))
            devices.reduce_scatter(case.tensor, group, part, op)
            expected = case.reduced(op)[start : start + counts[group.rank]]
            assert_close(kind.numpy(part), expected)
            case.check(case.own)
            devices.allgather_(case.tensor, group, part)
            case.check([case.reduced(op)] * len(case.own))


def check_large(group: Group, kind: Kind, transport: str) -> None:
    """Several pieces, on their way at the same time."""
    levels = Levels(group, [rank // 2 for rank in range(group.size)], deadline_seconds=60)
    case = Case(levels, kind, "float32", 3 * PIECE_BYTES // 4 + 5, 2, transport)
    expected = case.reduced("sum")
    for _ in range(2):
        case.fill()
        devices.allreduce_(case.tensor, group)
        case.check([expected] * 2)
    case.tensor.close()
    levels.close()


def check_two_tensors_in_turn(group: Group, kind: Kind, transport: str) -> None:
    levels = Levels(group, [0] * group.size, deadline_seconds=60)
    cases = [Case(levels, kind, "float32", 30_011, 2, transport, seed) for seed in (0, 10)]
    for _ in range(5):
        for case in cases:
            case.fill()
            devices.allreduce_(case.tensor, group)
    for case in cases:
        case.check([case.reduced("sum")] * 2)
        case.tensor.close()
    levels.close()


def check_half_is_summed_in_single(group: Group, kind: Kind, transport: str) -> None:
    # 2048 + 1 is 2048 in float16, and 3 * 30000 is infinite: only a sum in float32 keeps them.
    levels = Levels(group, [0] * group.size, deadline_seconds=60)
    arrays = [kind.array(np.array([first, 30000], np.float16)) for first in (2048, 1, 1)]
    tensor = devices.DeviceTensor(arrays, levels, transport)
    devices.allreduce_(tensor, group, "mean")
    for array in arrays:
        assert kind.numpy(array).tolist() == [np.float16(np.float32(2050) / 3), 30000]
    tensor.close()
    levels.close()


def check_bad_input(group: Group, kind: Kind, transport: str) -> None:
    levels = Levels(group, [0] * group.size, deadline_seconds=60)
    two, three = kind.array(np.zeros(2, np.float32)), kind.array(np.zeros(3, np.float32))
    with pytest.raises(LayoutError, match=r"vector 1 have \[3\] elements, those of vector 0 \[2\]"):
        devices.DeviceTensor([two, three], levels, transport)
    with pytest.raises(LayoutError, match="complex64"):
        devices.DeviceTensor([kind.array(np.zeros(2, np.complex64))], levels, transport)
    with pytest.raises(LayoutError, match="strides"):
        devices.DeviceTensor([kind.array(np.zeros((4, 4), np.float32))[:, 1]], levels, transport)
    with pytest.raises(LayoutError, match="'pigeon' is unknown: use one of auto, nccl, direct, staged"):
        devices.DeviceTensor([two], levels, "pigeon")
    tensor = devices.DeviceTensor([two], levels, transport)
    with pytest.raises(LayoutError, match="'product' is unknown"):
        devices.allreduce_(tensor, group, "product")
    with pytest.raises(LayoutError, match="rank 99 is not in the group"):
        devices.broadcast_(tensor, group, 99)
    with pytest.raises(LayoutError, match="out has"):
        devices.reduce_scatter(tensor, group, kind.array(np.zeros(9, np.float32)))
    with pytest.raises(LayoutError, match="another group"):
        devices.allreduce_(tensor, group.split(0))
    tensor.close()
    levels.close()


CHECKS = [check for name, check in sorted(globals().items()) if name.startswith("check_")]
