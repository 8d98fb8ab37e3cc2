"""Row-sparse gradients without a framework: ranks are threads, in groups of some sizes, with a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
import pytest
from in_thread import in_thread

import hybridps.step.sparse
from hybridps.algorithms import choose_row, make_algorithm
from hybridps.config import Settings
from hybridps.errors import LayoutError
from hybridps.events import EventLog
from hybridps.mpi_groups import ThreadGroup
from hybridps.ps.client import Client
from hybridps.ps.server import Server
from hybridps.step import InitialValues, JobContext, Schedule, SparseGradients, SparseRows
from hybridps.tensor_collectives import Levels
from hybridps.tiers import NoTier, ServersTier

pytestmark = pytest.mark.timeout(60)

GIVEN = Settings(
    chunk_bytes=1024, bucket_bytes=1024, connect_seconds=5.0, deadline_seconds=20.0, lost_seconds=5.0, quiet=True
)
SIZES = [(1,), (3,), (1, 1), (2, 1), (1, 2, 1)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with in_thread(Server("tcp://127.0.0.1:*", threads=2)) as running:
        yield running


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that the rows of most cases are summed in several parts, and named in several messages."""
    monkeypatch.setattr(hybridps.step.sparse, "TABLE_BYTES", 256)
    monkeypatch.setattr(hybridps.step.sparse, "FIRST_IDS", 2)
    monkeypatch.setattr(hybridps.step.sparse, "IDS", 3)


class Job:
    """A job of groups of these sizes. `run` calls `work(sums, worker)` on all workers."""

    count = 0

    def __init__(self, sizes, server, algorithm="sync"):
        self.sizes, self.server, self.algorithm = sizes, server, algorithm
        Job.count += 1
        self.name = f"{algorithm}-{Job.count}"

    def run(self, work):
        return ThreadGroup.run(sum(self.sizes), lambda world: self.body(world, work), 20)

    def body(self, world, work):
        index = next(group for group in range(len(self.sizes)) if world.rank < sum(self.sizes[: group + 1]))
        group, groups = world.split(index), len(self.sizes)
        levels, store = Levels(group, [0] * group.size, 20), None
        if groups > 1 and group.rank == 0:
            store = Client([self.server.address], job=self.name, group=index, groups=groups, settings=GIVEN)
        tier = ServersTier(group, store) if groups > 1 else NoTier(group)
        row = choose_row(self.algorithm, GIVEN, groups, groups > 1, None, None)
        algorithm = make_algorithm(row, levels, tier, workers=world.size)
        events = EventLog(None, world.rank)
        context = JobContext(GIVEN, world.rank, groups, events, lambda what: nullcontext(), index)
        schedule = Schedule(levels, context)
        initial = InitialValues(schedule, algorithm, context, "initial")
        try:
            return work(Sums(schedule, SparseGradients(schedule, algorithm, context, initial, "rows")), world.rank)
        finally:
            schedule.close()
            world.barrier()
            if store is not None:
                store.close()


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
def test_the_sum_is_that_of_dense_gradients(sizes, server):
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

    for results in Job(sizes, server).run(work):
        assert len(results) == 18
        for name, step, rows in results:
            dtype, shape = keys[name]
            ids, dense = total(range(sum(sizes)), step, shape, dtype)
            assert rows.ids.tolist() == ids
            assert rows.values.dtype == dtype
            np.testing.assert_array_equal(rows.values, dense[ids])


def test_with_elastic_the_sum_of_the_group_is_scaled(server):
    def work(sums, worker):
        sums.gradients.lay_out("a", "float32", (50, 3))
        return [sums.wait(sums.push("a", rows_of(worker, step, (50, 3), "float32"))) for step in range(4)]

    results = Job((2, 1), server, "elastic").run(work)
    for worker, group in enumerate(((0, 1), (0, 1), (2,))):
        for step, rows in enumerate(results[worker]):
            ids, dense = total(group, step, (50, 3), "float32")
            assert rows.ids.tolist() == ids
            np.testing.assert_array_equal(rows.values, dense[ids] * np.float32(3 / len(group)))


def test_nothing_to_sum_is_refused(server):
    def work(sums, worker):
        with pytest.raises(LayoutError, match="no rows"):
            sums.gradients.lay_out("a", "float32", (5, 0))
        with pytest.raises(LayoutError, match="complex64"):
            sums.gradients.lay_out("b", "complex64", (5, 2))

    Job((2,), server).run(work)
