"""Row-sparse gradients without a framework: ranks are threads, in groups of some sizes, with a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import algorithm_groups
import numpy as np
import pytest
from algorithm_groups import Groups, job_context
from in_thread import in_thread

import hybridps.step.sparse
from hybridps.errors import LayoutError
from hybridps.ps.server import Server
from hybridps.step import InitialValues, Schedule, SparseGradients, SparseRows

pytestmark = pytest.mark.timeout(100)

GIVEN = {"bucket_bytes": 1024, "deadline_seconds": 20.0, "quiet": True}
SIZES = [(1,), (3,), (1, 1), (2, 1), (1, 2, 1)]


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    with in_thread(Server("tcp://127.0.0.1:*", threads=2)) as Groups.server:
        yield


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that the rows of most cases are summed in several parts, and named in several messages."""
    monkeypatch.setattr(hybridps.step.sparse, "TABLE_BYTES", 256)
    monkeypatch.setattr(hybridps.step.sparse, "FIRST_IDS", 2)
    monkeypatch.setattr(hybridps.step.sparse, "IDS", 3)


def run(sizes, work, algorithm="sync"):
    """Call `work(sums, worker)` on all workers of groups of these sizes."""

    def body(algorithm, worker):
        context = job_context(sizes, worker, **GIVEN)
        schedule = Schedule(algorithm.levels, context)
        initial = InitialValues(schedule, algorithm, context, "initial")
        try:
            return work(Sums(schedule, SparseGradients(schedule, algorithm, context, initial, "rows")), worker)
        finally:
            schedule.close()

    return algorithm_groups.run(sizes, algorithm, body, has_servers=len(sizes) > 1, **GIVEN)


class Sums:
    """What a front end does: it pushes rows, and waits for their sum."""

    def __init__(self, schedule, gradients):
        self.schedule, self.gradients = schedule, gradients

    def push(self, name, rows):
        released = threading.Event()
        item = self.gradients.push(name, lambda: rows)
        item(released.set)
        return item, released

    def wait(self, pushed):
        item, released = pushed
        self.schedule.wait_for(released)
        return item.rows


def rows_of(worker, step, shape, dtype):
    rng = np.random.default_rng([step, worker])
    count = (0, 1, 7, shape[0])[(step + worker) % 4]
    ids = np.sort(rng.choice(shape[0], count, replace=False)).astype(np.int64)
    return SparseRows(ids, rng.integers(-9, 9, (count, *shape[1:])).astype(dtype))


def total(workers, step, shape, dtype):
    """The numbers of the rows that any worker has, and the dense sum."""
    dense, found = np.zeros(shape, dtype), set()
    for worker in workers:
        rows = rows_of(worker, step, shape, dtype)
        dense[rows.ids] += rows.values
        found |= set(rows.ids.tolist())
    return sorted(found), dense


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_sum_is_that_of_dense_gradients(sizes):
    keys = {"a": ("float32", (50, 3)), "b": ("float16", (20,)), "c": ("int64", (9, 2, 2))}

    def work(sums, worker):
        for name, (dtype, shape) in keys.items():
            sums.gradients.lay_out(name, dtype, shape)
        pushed = [
            (name, step, sums.push(name, rows_of(worker, step, shape, dtype)))
            for step in range(6)
            for name, (dtype, shape) in keys.items()
        ]
        return [(name, step, sums.wait(each)) for name, step, each in pushed]

    for results in run(sizes, work):
        assert len(results) == 18
        for name, step, rows in results:
            dtype, shape = keys[name]
            ids, dense = total(range(sum(sizes)), step, shape, dtype)
            assert rows.ids.tolist() == ids
            assert rows.values.dtype == dtype
            np.testing.assert_array_equal(rows.values, dense[ids])


def test_with_elastic_the_sum_of_the_group_is_scaled():
    def work(sums, worker):
        sums.gradients.lay_out("a", "float32", (50, 3))
        return [sums.wait(sums.push("a", rows_of(worker, step, (50, 3), "float32"))) for step in range(4)]

    results = run((2, 1), work, "elastic")
    for worker, group in enumerate(((0, 1), (0, 1), (2,))):
        for step, rows in enumerate(results[worker]):
            ids, dense = total(group, step, (50, 3), "float32")
            assert rows.ids.tolist() == ids
            np.testing.assert_array_equal(rows.values, dense[ids] * np.float32(3 / len(group)))


def test_nothing_to_sum_is_refused():
    def work(sums, worker):
        with pytest.raises(LayoutError, match="no rows"):
            sums.gradients.lay_out("a", "float32", (5, 0))
        with pytest.raises(LayoutError, match="complex64"):
            sums.gradients.lay_out("b", "complex64", (5, 2))

    run((2,), work)
