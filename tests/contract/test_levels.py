"""What happens when a rank does not come, and when there is no shared memory."""

from __future__ import annotations

import re
import threading
import time
from functools import partial

import numpy as np
import pytest

from hybridps.codecs import Quantised, codec_of
from hybridps.errors import DeadlineError, GroupError, LayoutError
from hybridps.mpi_groups import SoloGroup, ThreadGroup
from hybridps.shared_memory import attach_shared, create_shared
from hybridps.tensor_collectives import Background, Chooser, Levels, Tensor, allreduce_, broadcast_, reduce_
from hybridps.tensor_collectives.node import node


def test_a_missing_rank_is_named() -> None:
    def work(group: ThreadGroup) -> None:
        levels = Levels(group, [0] * group.size, deadline_seconds=0.5)
        tensor = levels.tensor(100_000, "float32")
        if group.rank != 2:
            allreduce_(tensor, group)

    with pytest.raises(DeadlineError, match="rank 2 did not reach a collective of rank [01], on the same node"):
        ThreadGroup.run(3, work)


@pytest.mark.parametrize("algorithm", ["ring", "multi_ring", "halving_doubling"])
def test_a_rank_that_is_missing_between_nodes_is_named(algorithm: str) -> None:
    def work(group: ThreadGroup) -> None:
        chooser = Chooser(3, 3, forced=algorithm)
        levels = Levels(group, [7, 8, 9], deadline_seconds=0.5, chooser=chooser)
        tensor = levels.tensor(100_000, "float32")
        if group.rank != 1:
            allreduce_(tensor, group)

    with pytest.raises(DeadlineError, match="rank 1 did not reach a collective of rank [02], between nodes"):
        ThreadGroup.run(3, work)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [[0, 0], [0, 1]])
def test_levels_that_gave_up_do_no_more(nodes: list[int]) -> None:
    """The rank that was only late must not take half a result for a whole one."""
    gave_up = threading.Event()

    def work(group: ThreadGroup) -> list[str]:
        levels = Levels(group, nodes, deadline_seconds=0.3)
        tensor = levels.tensor(100_000, "float32")
        errors = []
        if group.rank == 1:
            assert gave_up.wait(60)
        for _ in range(2):
            try:
                allreduce_(tensor, group)
            except (DeadlineError, GroupError) as error:
                errors.append(str(error))
                gave_up.set()
        return errors

    early, late = ThreadGroup.run(2, work)
    assert "rank 1 did not reach" in early[0]
    assert "was given up" in early[1]
    assert len(late) == 2
    assert "was given up" in late[1]


@pytest.mark.parametrize("nodes", [[0, 0, 0], [0, 0, 1], [0, 1, 1], [0, 1, 2]])
def test_a_rank_that_does_not_vote_is_named(nodes: list[int]) -> None:
    def work(group: ThreadGroup) -> str:
        levels = Levels(group, nodes, deadline_seconds=0.4)
        levels.vote(1)
        try:
            if group.rank != 2:
                levels.vote(2)
        except (DeadlineError, GroupError) as error:
            with pytest.raises(GroupError, match="was given up"):
                levels.vote(3)
            return str(error)
        return ""

    said = ThreadGroup.run(3, work)
    assert all(said[:2])
    assert any(re.match("rank 2 did not reach (a|the)", text) for text in said), said


@pytest.mark.parametrize("nodes", [[0, 0], [0, 1]])
def test_a_vote_waits_asleep(nodes: list[int]) -> None:
    def work(group: ThreadGroup) -> float:
        levels = Levels(group, nodes, deadline_seconds=30)
        levels.vote(0)
        begin = time.thread_time()
        if group.rank == 1:
            time.sleep(1)
        levels.vote(1)
        return time.thread_time() - begin

    assert max(ThreadGroup.run(2, work)) < 0.3


def test_votes_without_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(nbytes: int) -> np.ndarray:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node, "create_shared", refuse)

    def work(group: ThreadGroup) -> tuple[int, int]:
        levels = Levels(group, [0, 0, 1])
        assert levels.note
        return levels.vote([-(1 << 63), 5, (1 << 63) - 1][group.rank])

    assert ThreadGroup.run(3, work) == [(-(1 << 63), (1 << 63) - 1)] * 3


def test_ranks_may_have_different_numbers_of_vectors() -> None:
    def work(group: ThreadGroup, nodes: list[int]) -> list[float]:
        levels = Levels(group, nodes, deadline_seconds=30)
        tensor = levels.tensor(5000, "float32", vectors=1 + group.rank)
        for vector in tensor.vectors:
            vector[:] = group.rank + 1
        allreduce_(tensor, group, "mean")
        assert all((vector == tensor.vectors[0][0]).all() for vector in tensor.vectors)
        return [float(vector[0]) for vector in tensor.vectors]

    for nodes in ([0, 0, 0], [0, 1, 1], [0, 1, 2]):
        results = ThreadGroup.run(3, partial(work, nodes=nodes))
        mean = (1 + 2 * 2 + 3 * 3) / 6
        np.testing.assert_allclose(sum(results, []), [mean] * 6, rtol=1e-6)


def test_ranks_that_differ_are_told() -> None:
    def work(group: ThreadGroup) -> None:
        Levels(group, [0, 0], deadline_seconds=30).tensor(64 - group.rank, "float32")

    with pytest.raises(LayoutError, match="rank 1 makes a tensor of 63 elements of float32, rank 0 one of 64"):
        ThreadGroup.run(2, work)


def test_a_tensor_that_finds_no_memory_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(nbytes: int) -> np.ndarray:
        if nbytes > 100_000:
            raise OSError(12, "Cannot allocate memory")
        return create_shared(nbytes)

    monkeypatch.setattr(node, "create_shared", refuse)

    def work(group: ThreadGroup) -> tuple[str, float]:
        levels = Levels(group, [0, 0, 1], deadline_seconds=30)
        assert levels.note == ""
        tensor = levels.tensor(100_000, "float32")
        tensor.vectors[0][:] = 1
        allreduce_(tensor, group)
        return levels.note, float(tensor.vectors[0][5])

    for note, value in ThreadGroup.run(3, work):
        assert "Cannot allocate memory" in note
        assert value == 3


def test_half_wires_keep_large_means_and_extremes() -> None:
    def work(group: ThreadGroup) -> list[float]:
        levels = Levels(group, [0, 1], wire="float16", chooser=Chooser(2, 2, forced="ring"))
        tensor = levels.tensor(100, "float32")
        found = []
        for op, value in (("mean", 40_000.0), ("max", 1e5), ("min", 1e5)):
            tensor.vectors[0][:] = value
            group.barrier()
            allreduce_(tensor, group, op)
            found.append(float(tensor.vectors[0][3]))
            group.barrier()
        return found

    for found in ThreadGroup.run(2, work):
        np.testing.assert_allclose(found, [40_000, 1e5, 1e5], rtol=1e-3)


@pytest.mark.parametrize("algorithm", ["ring", "multi_ring", "halving_doubling"])
def test_sums_of_quantised_values_are_packed_between_nodes(algorithm: str) -> None:
    spec = Quantised(2, 0.1, 3)

    def work(group: ThreadGroup) -> tuple[np.ndarray, np.ndarray]:
        levels = Levels(group, [0, 1, 1], chooser=Chooser(3, 2, forced=algorithm, chunk_bytes=4096))
        tensor = levels.tensor(5003, "float32")
        assert tensor.rows is not None
        tensor.rows.codec = codec_of(spec)
        vector, found = tensor.vectors[0], []
        counts = np.random.default_rng(group.rank).integers(-1, 2, vector.size)
        for values in (counts * np.float32(spec.unit), np.full(vector.size, 0.02)):  # the latter are no multiples
            vector[:] = values
            group.barrier()
            allreduce_(tensor, group)
            found.append(vector.copy())
            group.barrier()
        return found[0], found[1]

    counts = [np.random.default_rng(rank).integers(-1, 2, 5003) for rank in range(3)]
    for sums, others in ThreadGroup.run(3, work):
        np.testing.assert_array_equal(sums, sum(counts).astype(np.float32) * np.float32(spec.unit))
        assert not others.any()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_who_brought_infinity_to_a_sum_is_found(ranks: int, dtype: str) -> None:
    """Also what only one vector brings; nobody is blamed for a sum that is too large."""
    places, largest = {0: 70_000, ranks - 1: 123}, float(np.finfo(dtype).max)

    def work(group: ThreadGroup) -> None:
        tensor = Levels(group, [0] * ranks, deadline_seconds=5).tensor(100_000, dtype, vectors=2)
        assert tensor.looks_for_not_finite(tensor.length)

        def summed(place: int, value: float, rank: int) -> int | None:
            for vector in tensor.vectors:
                vector[:] = 0
            tensor.vectors[1][place] = value if group.rank == rank else 0
            with np.errstate(over="ignore"):
                allreduce_(tensor, group)
            assert tensor.vectors[0][place] == value
            return tensor.first_not_finite()

        for rank, place in places.items():
            assert summed(5, 1, rank) is None
            assert summed(place, np.inf, rank) == (place if group.rank == rank else None)
        for vector in tensor.vectors:
            vector[:] = largest
        allreduce_(tensor, group)
        assert np.isinf(tensor.vectors[0]).all()
        assert tensor.first_not_finite() is None

    ThreadGroup.run(ranks, work)


def test_between_nodes_sums_are_not_searched() -> None:
    def work(group: ThreadGroup) -> None:
        tensor = Levels(group, [0, 1], deadline_seconds=5).tensor(100, "float32")
        assert not tensor.looks_for_not_finite(100)

    ThreadGroup.run(2, work)


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (3, 2), (0, 101)])
def test_a_span_beyond_the_tensor(start: int, stop: int) -> None:
    tensor = Levels(SoloGroup(), [0]).tensor(100, "float32")
    for operation in (allreduce_, reduce_, broadcast_):
        with pytest.raises(LayoutError, match=f"elements {start}:{stop} are not within the 100"):
            operation(tensor, SoloGroup(), start=start, stop=stop)


def test_after_a_failure_in_the_background_nothing_begins() -> None:
    def work() -> None:
        tensor = Tensor([np.ones(4, np.float32)])
        background = Background()
        background.start(broadcast_, tensor, SoloGroup(), 9)
        later = background.start(allreduce_, tensor, SoloGroup())
        with pytest.raises(GroupError, match="not started, because an earlier collective failed: rank 9"):
            later.wait()
        background.close()

    work()
    with pytest.raises(LayoutError, match="rank 9 is not in the group"), Background() as background:
        background.start(broadcast_, Tensor([np.ones(4)]), SoloGroup(), 9)


def test_pending() -> None:
    """Several under way, in order; the caller goes on meanwhile; each is waited for once."""

    def work(group: ThreadGroup) -> np.ndarray:
        levels = Levels(group, [0, 0, 1])
        tensor = levels.tensor(100_000, "float32")
        tensor.vectors[0][:] = group.rank + 1
        with Background() as background:
            first = background.start(allreduce_, tensor, group)
            second = background.start(allreduce_, tensor, group, "max")
            third = background.start(broadcast_, tensor, group, 9)
            first.wait()
            second.wait()
            with pytest.raises(LayoutError, match="rank 9 is not in the group"):
                third.wait()
            with pytest.raises(GroupError, match="already waited for"):
                first.wait()
        assert first.done
        return tensor.vectors[0]

    for vector in ThreadGroup.run(3, work):
        assert (vector == 6).all()


def test_without_shared_memory_it_is_said_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(nbytes: int) -> np.ndarray:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node, "create_shared", refuse)

    def work(group: ThreadGroup) -> tuple[str, np.ndarray]:
        levels = Levels(group, [rank // 2 for rank in range(group.size)])
        tensor = levels.tensor(100_000, "float32")
        tensor.vectors[0][:] = group.rank + 1
        allreduce_(tensor, group)
        return levels.note, tensor.vectors[0]

    for note, vector in ThreadGroup.run(4, work):
        assert "No space left on device" in note
        assert (vector == 10).all()


def test_one_rank_that_cannot_attach_lets_all_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def sometimes(name: str, nbytes: int) -> np.ndarray:
        return attach_shared("/nowhere", nbytes)

    monkeypatch.setattr(node, "attach_shared", sometimes)
    notes = ThreadGroup.run(3, lambda group: Levels(group, [0] * group.size).note)
    assert len(set(notes)) == 1
    assert "/nowhere" in notes[0]
