"""What every Group does, checked against NumPy. Called with a group by tests on threads and under mpirun."""

from __future__ import annotations

import time
from functools import partial

import ml_dtypes  # noqa: F401  (makes the dtype bfloat16 known by name)
import numpy as np
import pytest

from hybridps.errors import LayoutError
from hybridps.mpi_groups import Group
from hybridps.tensor_collectives import (
    Chooser,
    Levels,
    Tensor,
    allgather_,
    allreduce_,
    broadcast_,
    part_sizes,
    reduce_,
    reduce_scatter,
)
from hybridps.tensor_collectives.tensor import EXACT

LENGTHS = (0, 1, 7, 64, 1009)
DTYPES = ("float16", "float32", "float64")


def values(rank: int, length: int, dtype: str, vector: int = 0) -> np.ndarray:
    """Small integers: exact in every dtype, in every order of summation."""
    return np.random.default_rng(1000 * rank + vector).integers(-8, 9, length).astype(dtype)


def assert_close(found: np.ndarray, wanted: np.ndarray, rtol: float = 0.0) -> None:
    """As NumPy's assertion, which takes ten times as long, and is asked for the message alone."""
    found, wanted = found.astype(float), wanted.astype(float)
    if found.shape != wanted.shape or not (abs(found - wanted) <= rtol * abs(wanted)).all():
        np.testing.assert_allclose(found, wanted, rtol=rtol)


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
                        assert_close(array, exact.astype(dtype), rtol=1e-6)
                arrays = [values(group.rank, length, dtype, v) for v in range(vectors)]
                allreduce_(Tensor(arrays), group, divisor=0.25)
                for array in arrays:
                    assert_close(array, 4 * total(group.size, length, dtype, vectors))


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
                assert_close(array, values(group.size - 1, length, dtype))


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
                assert_close(out, expected.astype(dtype))
                for v, array in enumerate(arrays):
                    assert_close(array, values(group.rank, length, dtype, v))


def check_allgather(group: Group) -> None:
    for dtype in DTYPES:
        for length in LENGTHS:
            counts = part_sizes(length, group.size)
            whole = values(0, length, dtype)
            start = sum(counts[: group.rank])
            arrays = [np.zeros(length, dtype) for _ in range(2)]
            allgather_(Tensor(arrays), group, whole[start : start + counts[group.rank]].copy())
            for array in arrays:
                assert_close(array, whole)


NODES = {
    "one": lambda rank: 0,
    "pairs": lambda rank: rank // 2,
    "threes": lambda rank: rank // 3,
    "alternating": lambda rank: rank % 2,
    "each": lambda rank: rank,
}
ALL_DTYPES = tuple(EXACT)
SHAPES = ((0, 3), (1, 1), (5, 3), (1009, 1), (1009, 3))
"""Lengths and numbers of vectors."""
BETWEEN = ("library", "ring", "multi_ring", "halving_doubling")


def check_transfers(group: Group) -> None:
    """Messages of several tags at a time, each in order."""
    if group.size == 1:
        return
    to, source = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    arrived = np.zeros((2, 3, 5), np.int64)
    under_way = [group.receive(arrived[tag, n], source, tag) for tag in (1, 0) for n in range(3)]
    messages = [np.full(5, 100 * group.rank + 10 * tag + n, np.int64) for n in range(3) for tag in (0, 1)]
    under_way += [group.send(message, to, number % 2) for number, message in enumerate(messages)]
    while not all(done() for done in under_way):
        pass
    expected = [[[100 * source + 10 * tag + n] * 5 for n in range(3)] for tag in (0, 1)]
    np.testing.assert_array_equal(arrived, expected)
    group.barrier()


def check_levels(group: Group) -> None:
    """All operations through the memory that a node shares, for nodes of equal and of different size."""
    # With few ranks, several of these are the same.
    for nodes in dict.fromkeys(tuple(node_of(rank) for rank in range(group.size)) for node_of in NODES.values()):
        between = BETWEEN if len(set(nodes)) > 1 else ("node",)
        for number, algorithm in enumerate(between):
            # Chunks of 1 KB, so that there are many of them.
            chooser = Chooser(group.size, len(set(nodes)), forced=algorithm, chunk_bytes=1024)
            chosen = []
            levels = Levels(group, nodes, 60, chooser=chooser, on_choice=chosen.append)
            assert levels.note == ""
            dtypes = ALL_DTYPES if number == 1 or between == ("node",) else ("float32",)
            for dtype in dtypes:
                for length, vectors in SHAPES if dtype == "float32" else SHAPES[-1:]:
                    _check_in_levels(group, levels, dtype, length, vectors)
            assert {choice.source for choice in chosen} == {"forced"}
            tensor = levels.tensor(100, "float32")
            before = group.bytes_moved
            allreduce_(tensor, group)
            assert group.bytes_moved == before  # not through all ranks of the group at once
            group.barrier()
            levels.close()


def _check_in_levels(group: Group, levels: Levels, dtype: str, length: int, vectors: int) -> None:
    tensor = levels.tensor(length, dtype, vectors)
    everything = [values(rank, length, "float64", v) for rank in range(group.size) for v in range(vectors)]
    exact = {
        "sum": np.sum(everything, axis=0),
        "max": np.max(everything, axis=0),
        "min": np.min(everything, axis=0),
        "mean": np.mean(everything, axis=0),
    }
    root = group.size - 1
    counts = part_sizes(length, group.size)
    start = sum(counts[: group.rank])
    mine = slice(start, start + counts[group.rank])
    before = [values(group.rank, length, dtype, v) for v in range(vectors)]

    def check(operation, expected, changed=None):
        for vector, initial in zip(tensor.vectors, before, strict=True):
            vector[:] = initial
        group.barrier()
        operation()
        for vector, initial in zip(tensor.vectors, before, strict=True):
            wanted = initial.copy()
            if changed is not None:
                wanted[changed] = expected[changed].astype(tensor.dtype)
            assert_close(vector, wanted, rtol=1e-6)
        group.barrier()

    for name, expected in exact.items():
        if name == "mean" and dtype.startswith("int"):
            continue
        part = slice(length // 3, length // 2)
        for span in (slice(0, length), part) if name == "sum" else (slice(0, length),):
            check(partial(allreduce_, tensor, group, name, span.start, span.stop), expected, span)
            here = span if group.rank == root else None
            check(partial(reduce_, tensor, group, root, name, span.start, span.stop), expected, here)
        out = np.full(counts[group.rank], 77).astype(tensor.dtype)
        check(partial(reduce_scatter, tensor, group, out, name), expected)
        assert_close(out, expected[mine].astype(tensor.dtype), rtol=1e-6)
    if not dtype.startswith("int"):
        for name in ("sum", "mean"):
            check(partial(allreduce_, tensor, group, name, divisor=0.25), 4 * exact[name], slice(0, length))
    whole = values(root, length, "float64")
    check(partial(broadcast_, tensor, group, root), whole, slice(0, length))
    check(partial(broadcast_, tensor, group, root, length // 3, length // 2), whole, slice(length // 3, length // 2))
    check(partial(allgather_, tensor, group, whole[mine].astype(tensor.dtype)), whole, slice(0, length))


def check_levels_large(group: Group) -> None:
    """Several chunks between nodes, and all ranks with the same bits, the same in each run."""
    for algorithm in ("ring", "multi_ring", "halving_doubling"):
        nodes = [rank // 2 for rank in range(group.size)]
        chooser = Chooser(
            group.size,
            len(set(nodes)),
            forced=algorithm if len(set(nodes)) > 1 else None,
            chunk_bytes=1 << 16,
            only_own="test",
        )
        levels = Levels(group, nodes, 60, chooser=chooser)
        tensor = levels.tensor(300_007, "float32")
        everyone = [np.random.default_rng(rank).standard_normal(tensor.length) for rank in range(group.size)]
        expected = np.sum([one.astype(np.float32) for one in everyone], axis=0, dtype=np.float64)
        results = set()
        for repeat in range(2):
            tensor.vectors[0][:] = everyone[group.rank]
            group.barrier()
            if group.rank == repeat:
                time.sleep(0.02)  # another rank is late
            allreduce_(tensor, group)
            np.testing.assert_allclose(tensor.vectors[0], expected, rtol=1e-4, atol=1e-5)
            results |= set(group.allgather_bytes(tensor.vectors[0].tobytes()))
        assert len(results) == 1
        levels.close()


def check_half_on_the_wire(group: Group) -> None:
    nodes = [rank // 2 for rank in range(group.size)]
    for algorithm in ("ring", "multi_ring", "halving_doubling") if len(set(nodes)) > 1 else (None,):
        for dtype in ("float32", "float64"):
            chooser = Chooser(group.size, len(set(nodes)), forced=algorithm, chunk_bytes=4096)
            levels = Levels(group, nodes, 60, wire="float16", chooser=chooser)
            tensor = levels.tensor(20_011, dtype, 2)
            for v, vector in enumerate(tensor.vectors):
                vector[:] = values(group.rank, 20_011, dtype, v) / 7
            group.barrier()
            allreduce_(tensor, group)
            exact = total(group.size, 20_011, "float64", 2) / 7
            np.testing.assert_allclose(tensor.vectors[1], exact, rtol=4e-3, atol=2e-2)
            if len(set(nodes)) > 1:
                np.testing.assert_array_equal(tensor.vectors[0], tensor.vectors[0].astype(np.float16))
            assert len(set(group.allgather_bytes(tensor.vectors[0].tobytes()))) == 1
            broadcast_(tensor, group)  # whatever the wire says, what is only copied stays as it is
            for v, vector in enumerate(tensor.vectors):
                vector[:] = values(0, 20_011, dtype, v) / 7 if group.rank == 0 else 0
            group.barrier()
            broadcast_(tensor, group)
            np.testing.assert_array_equal(tensor.vectors[1], values(0, 20_011, dtype) / 7)
            group.barrier()
            levels.close()


def check_arrays_that_differ(group: Group) -> None:
    """All ranks raise the same error that names the rank; the group can be used afterwards."""
    if group.size == 1:
        return
    odd = group.size - 1
    longer = np.zeros(20_000 + (group.rank == odd), np.float32)
    other_dtype = np.zeros(20_000, np.int32 if group.rank == odd else np.float32)
    for array, form in ((longer, "20001 elements of float32"), (other_dtype, "20000 elements of int32")):
        for operation in (partial(group.allreduce_, array), partial(group.broadcast_, array)):
            with pytest.raises(LayoutError, match=f"rank {odd} has {form} in .*, and rank 0 has 20000 elements of f"):
                operation()
    array = np.ones(20_000)
    group.allreduce_(array)
    assert (array == group.size).all()


def check_votes(group: Group) -> None:
    """The same extremes on every rank, however votes and collectives follow each other."""
    random = np.random.default_rng(5)
    for nodes in dict.fromkeys(tuple(node_of(rank) for rank in range(group.size)) for node_of in NODES.values()):
        levels = Levels(group, nodes, 60)
        tensor = levels.tensor(300, "float32")
        for vote in range(1000):
            values = random.integers(-(1 << 62), 1 << 62, group.size).tolist()
            if vote < 4:  # the ends of int64, and a vote on which all agree
                values = [[-(1 << 63), (1 << 63) - 1, 0, -1][vote]] * group.size
            elif vote == 4:
                values = [(-(1 << 63), (1 << 63) - 1)[rank % 2] for rank in range(group.size)]
            assert levels.vote(values[group.rank]) == (min(values), max(values))
            if vote % 10 == 0:
                tensor.vectors[0][:] = 1
                levels.vote(vote)  # all ranks have written
                allreduce_(tensor, group)
                assert (tensor.vectors[0] == group.size).all()
        group.barrier()
        levels.close()


def check_tensor_reduce(group: Group) -> None:
    for dtype in ALL_DTYPES:
        for length in LENGTHS:
            for operation in ("sum", "max"):
                arrays = [values(group.rank, length, dtype, v) for v in range(2)]
                reduce_(Tensor(arrays), group, group.size - 1, operation)
                everything = [values(r, length, "float64", v) for r in range(group.size) for v in range(2)]
                expected = (np.sum if operation == "sum" else np.max)(everything, axis=0)
                for v, array in enumerate(arrays):
                    mine = expected if group.rank == group.size - 1 else values(group.rank, length, "float64", v)
                    assert_close(array, mine)


def check_ranks_cut_alike(group: Group) -> None:
    """More than a piece: of one vector to one rank, and of as many vectors as each rank has, without the levels."""
    length = 600_001
    mine = np.full(length, group.rank + 1, np.float32)
    reduce_(Tensor([mine]), group)
    assert_close(mine, np.full(length, sum(range(1, group.size + 1)) if group.rank == 0 else group.rank + 1))
    levels = Levels(group, [0] * group.size, 60, chooser=Chooser(group.size, 1, forced="flat"))
    tensor = levels.tensor(length, "float32", 1 + group.rank % 2)
    for vector in tensor.vectors:
        vector[:] = 1
    group.barrier()
    allreduce_(tensor, group)
    for vector in tensor.vectors:
        assert_close(vector, np.full(length, sum(1 + rank % 2 for rank in range(group.size))))
    group.barrier()
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
    with pytest.raises(LayoutError, match=f"rank {group.size} is not in the group"):
        broadcast_(Tensor([np.zeros(2)]), group, group.size)


CHECKS = [check for name, check in sorted(globals().items()) if name.startswith("check_")]
