"""What every Group does, checked against NumPy. Called with a group by tests on threads and under mpirun."""

from __future__ import annotations

import numpy as np
import pytest

from hybridps.errors import LayoutError
from hybridps.mpi_groups import Group
from hybridps.tensor_collectives import Levels, Tensor, allgather_, allreduce_, broadcast_, part_sizes, reduce_scatter

LENGTHS = (0, 1, 7, 64, 1009)
DTYPES = ("float16", "float32", "float64")


def values(rank: int, length: int, dtype: str, vector: int = 0) -> np.ndarray:
    """Small integers: exact in every dtype, in every order of summation."""
    return np.random.default_rng(1000 * rank + vector).integers(-8, 9, length).astype(dtype)


def total(size: int, length: int, dtype: str, vectors: int = 1) -> np.ndarray:
    return sum((values(rank, length, "float64", v) for rank in range(size) for v in range(vectors)), np.zeros(length))


def check_allreduce(group: Group) -> None:
    for operation, expected in (
        ("sum", total(group.size, 9, "float64")),
        ("max", np.max([values(r, 9, "float64") for r in range(group.size)], axis=0)),
        ("min", np.min([values(r, 9, "float64") for r in range(group.size)], axis=0)),
    ):
        for dtype in ("float32", "float64", "int32", "int64"):
            array = values(group.rank, 9, dtype)
            group.allreduce_(array, operation)
            np.testing.assert_array_equal(array, expected.astype(dtype))


def check_broadcast(group: Group) -> None:
    for root in range(group.size):
        array = np.full(5, group.rank, np.float32)
        group.broadcast_(array, root)
        np.testing.assert_array_equal(array, np.full(5, root))


def check_allgather_bytes(group: Group) -> None:
    data = b"x" * group.rank + bytes([group.rank])
    assert group.allgather_bytes(data) == [b"x" * r + bytes([r]) for r in range(group.size)]
    assert group.allgather_bytes(b"") == [b""] * group.size


def check_split(group: Group) -> None:
    half = group.split(group.rank % 2)
    members = [rank for rank in range(group.size) if rank % 2 == group.rank % 2]
    assert (half.rank, half.size) == (members.index(group.rank), len(members))
    array = np.array([group.rank], np.int64)
    half.allreduce_(array)
    assert array[0] == sum(members)
    half.free()


def check_bytes_moved(group: Group) -> None:
    before = group.bytes_moved
    group.allreduce_(np.zeros(100, np.float32))
    assert group.bytes_moved - before == (400 if group.size > 1 else 0)


def check_tensor_allreduce(group: Group) -> None:
    for dtype in DTYPES:
        for length in LENGTHS:
            for vectors in (1, 3):
                for operation in ("sum", "mean"):
                    arrays = [values(group.rank, length, dtype, v) for v in range(vectors)]
                    allreduce_(Tensor(arrays), group, operation)
                    exact = total(group.size, length, dtype, vectors)
                    if operation == "mean":
                        exact = exact / (group.size * vectors)
                    for array in arrays:
                        np.testing.assert_allclose(array, exact.astype(dtype), rtol=1e-6)


def check_tensor_allreduce_of_a_part(group: Group) -> None:
    array = values(group.rank, 50, "float32")
    allreduce_(Tensor([array]), group, "sum", 10, 20)
    expected = values(group.rank, 50, "float64")
    expected[10:20] = total(group.size, 50, "float64")[10:20]
    np.testing.assert_array_equal(array, expected)


def check_half_is_summed_in_single(group: Group) -> None:
    # 2048 + 1 is 2048 in float16: only a sum in float32 keeps the ones.
    array = np.array([2048 if group.rank == 0 else 1], np.float16)
    ones = np.array([1], np.float16)
    allreduce_(Tensor([array, ones.copy(), ones.copy()]), group)
    assert array[0] == np.float16(2048 + 3 * group.size - 1)


def check_large(group: Group) -> None:
    length = 3 * (2 << 20) // 4 + 5  # pieces of 2 MiB and a rest
    array = values(group.rank, length, "float32")
    allreduce_(Tensor([array]), group)
    np.testing.assert_array_equal(array, total(group.size, length, "float32"))


def check_tensor_broadcast(group: Group) -> None:
    for dtype in DTYPES:
        for length in LENGTHS:
            arrays = [values(group.rank, length, dtype, v) for v in range(2)]
            broadcast_(Tensor(arrays), group, group.size - 1)
            for array in arrays:
                np.testing.assert_array_equal(array, values(group.size - 1, length, dtype))


def check_reduce_scatter(group: Group) -> None:
    for dtype in DTYPES:
        for length in LENGTHS:
            for vectors in (1, 2):
                arrays = [values(group.rank, length, dtype, v) for v in range(vectors)]
                counts = part_sizes(length, group.size)
                out = np.empty(counts[group.rank], dtype)
                reduce_scatter(Tensor(arrays), group, out)
                start = sum(counts[: group.rank])
                expected = total(group.size, length, dtype, vectors)[start : start + len(out)]
                np.testing.assert_array_equal(out, expected.astype(dtype))
                for v, array in enumerate(arrays):
                    np.testing.assert_array_equal(array, values(group.rank, length, dtype, v))


def check_allgather(group: Group) -> None:
    for dtype in DTYPES:
        for length in LENGTHS:
            counts = part_sizes(length, group.size)
            whole = values(0, length, dtype)
            start = sum(counts[: group.rank])
            arrays = [np.zeros(length, dtype) for _ in range(2)]
            allgather_(Tensor(arrays), group, whole[start : start + counts[group.rank]].copy())
            for array in arrays:
                np.testing.assert_array_equal(array, whole)


NODES = {
    "one": lambda rank: 0,
    "pairs": lambda rank: rank // 2,
    "threes": lambda rank: rank // 3,
    "alternating": lambda rank: rank % 2,
    "each": lambda rank: rank,
}


def check_levels(group: Group) -> None:
    """The same through the memory that a node shares, for nodes of equal and of different size."""
    for node_of in NODES.values():
        levels = Levels(group, [node_of(rank) for rank in range(group.size)], deadline_seconds=60)
        assert levels.note == ""
        for dtype in (*DTYPES, "int32", "int64"):
            for length in (0, 1, 1009, 4099):
                for vectors in (1, 3):
                    _check_in_levels(group, levels, dtype, length, vectors)
        levels.close()


def _check_in_levels(group: Group, levels: Levels, dtype: str, length: int, vectors: int) -> None:
    tensor = levels.tensor(length, dtype, vectors)
    everything = [values(rank, length, "float64", v) for rank in range(group.size) for v in range(vectors)]
    for operation, exact in (
        ("sum", np.sum(everything, axis=0)),
        ("max", np.max(everything, axis=0)),
        ("min", np.min(everything, axis=0)),
        ("mean", np.mean(everything, axis=0)),
    ):
        if operation == "mean" and dtype.startswith("int"):
            continue
        for start, stop in ((0, length), (length // 3, length // 2)):
            for v, vector in enumerate(tensor.vectors):
                vector[:] = values(group.rank, length, dtype, v)
            if tensor.rows is None:
                allreduce_(tensor, group, operation, start, stop)
            else:  # allreduce_ would leave so small a part to the group
                levels.allreduce_(tensor.rows, operation, vectors, start, stop)
            for v, vector in enumerate(tensor.vectors):
                expected = values(group.rank, length, "float64", v)
                expected[start:stop] = exact[start:stop]
                np.testing.assert_allclose(vector, expected.astype(dtype), rtol=1e-6)
            group.barrier()


def check_levels_large(group: Group) -> None:
    """Several chunks between nodes, and all ranks with the same bits."""
    levels = Levels(group, [rank // 2 for rank in range(group.size)], deadline_seconds=60)
    tensor = levels.tensor(5 * (1 << 20) + 3, "float32")
    tensor.vectors[0][:] = np.random.default_rng(group.rank).standard_normal(tensor.length)
    everyone = [np.random.default_rng(rank).standard_normal(tensor.length) for rank in range(group.size)]
    expected = np.sum([one.astype(np.float32) for one in everyone], axis=0, dtype=np.float64)
    allreduce_(tensor, group)
    np.testing.assert_allclose(tensor.vectors[0], expected, rtol=1e-4, atol=1e-5)
    assert len(set(group.allgather_bytes(tensor.vectors[0].tobytes()))) == 1
    levels.close()


def check_half_on_the_wire(group: Group) -> None:
    levels = Levels(group, [rank // 2 for rank in range(group.size)], deadline_seconds=60, wire="float16")
    tensor = levels.tensor(20_011, "float32", 2)
    for v, vector in enumerate(tensor.vectors):
        vector[:] = values(group.rank, 20_011, "float32", v) / 7
    allreduce_(tensor, group)
    exact = total(group.size, 20_011, "float64", 2) / 7
    if tensor.rows is not None:
        np.testing.assert_allclose(tensor.vectors[1], exact, rtol=2e-3, atol=2e-2)
    assert len(set(group.allgather_bytes(tensor.vectors[0].tobytes()))) == 1
    levels.close()


def check_bad_input(group: Group) -> None:
    with pytest.raises(LayoutError, match="vector 1 has 3 elements of float32"):
        Tensor([np.zeros(2, np.float32), np.zeros(3, np.float32)])
    with pytest.raises(LayoutError, match="complex64"):
        Tensor([np.zeros(2, np.complex64)])
    with pytest.raises(LayoutError, match="'product' is unknown"):
        allreduce_(Tensor([np.zeros(2)]), group, "product")
    with pytest.raises(LayoutError, match="the mean of int32"):
        allreduce_(Tensor([np.zeros(2, np.int32)]), group, "mean")
    with pytest.raises(LayoutError, match="part"):
        reduce_scatter(Tensor([np.zeros(2)]), group, np.zeros(9))


CHECKS = [check for name, check in sorted(globals().items()) if name.startswith("check_")]
