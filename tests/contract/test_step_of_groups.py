"""The steps of several groups with a real server: each group does them in its own way, and none waits for ever.

Ranks are threads. All have the same program, but each reads other sums in the middle of a step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import algorithm_groups
import numpy as np
import pytest
from algorithm_groups import Groups, job_context
from hypothesis import given, settings
from hypothesis import strategies as st
from in_thread import in_thread

import hybridps.step.steps
import hybridps.step.votes
from hybridps.algorithms import Algorithm
from hybridps.ps.server import Server
from hybridps.step import Gradients, InitialValues, JobContext, KeySpec, Schedule, SparseGradients, SparseRows

pytestmark = pytest.mark.timeout(100, method="thread")
"""Hypothesis would take the exception of another method for a failed example, and try it again."""

SECONDS = 20.0
GIVEN = {"bucket_bytes": 1024, "deadline_seconds": SECONDS, "quiet": True}
KEYS = {"a": (100,), "b": (400,), "c": (3,), "d": (700,), "e": (256,), "f": (30,)}
MODELS = 2
ROWS = "rows"


class Push(NamedTuple):
    """A push of a key of a model. `needs`: the earlier push whose sum its gradient is computed from, or -1."""

    model: int
    key: str
    needs: int = -1


def run(sizes: tuple[int, ...], steps: list[list[Push]], reads: Callable[[int, int], set[int]]) -> None:
    """Do these steps, each a list of pushes, in groups of these sizes.

    `reads(worker, step)` returns the numbers of the pushes whose sum a worker reads before it goes on.
    """

    def body(algorithm: Algorithm, worker: int) -> None:
        own = Worker(algorithm, job_context(sizes, worker, **GIVEN))
        try:
            for step, pushes in enumerate(steps):
                own.train(pushes, step, reads(worker, step), sum(sizes))
        finally:
            own.schedule.close()

    algorithm_groups.run(sizes, "sync", body, **GIVEN)


class Worker:
    """One rank with two models of dense keys and one row-sparse key. Gradients are computed by threads."""

    def __init__(self, algorithm: Algorithm, context: JobContext) -> None:
        self.waits = False
        self.schedule = Schedule(algorithm.levels, context, lambda thread: self.waits)
        self.worker = context.worker
        given = self.schedule, algorithm, context, InitialValues(self.schedule, algorithm, context, "initial")
        self.models = [Gradients(*given, f"model{number}-") for number in range(MODELS)]
        for model in self.models:
            model.lay_out({key: KeySpec("float32", shape) for key, shape in KEYS.items()})
        self.sparse = SparseGradients(*given, "rows")
        self.sparse.lay_out(ROWS, "float32", (50, 3))

    def train(self, pushes: list[Push], step: int, reads: set[int], workers: int) -> None:
        for model in sorted({push.model for push in pushes if push.key != ROWS}):
            self.models[model].begin()
        pushed: list[tuple[Callable[[], np.ndarray], threading.Event]] = []
        for number, push in enumerate(pushes):
            pushed.append(self.push(push, 10 * step + self.worker, pushed))
            if number in reads:
                self.read(*pushed[number])
        want = sum(10 * step + worker for worker in range(workers))
        for values, released in pushed:
            assert np.unique(self.read(values, released)).tolist() == [want]

    def push(self, push: Push, value: float, pushed: list) -> tuple[Callable[[], np.ndarray], threading.Event]:
        released, needed = threading.Event(), pushed[push.needs][1] if push.needs >= 0 else None
        if push.key == ROWS:
            rows = SparseRows(np.array([3, 7]), np.full((2, 3), value, np.float32))
            item = self.sparse.push(ROWS, lambda: rows)
            values = lambda: item.rows.values  # noqa: E731
        else:
            item, view = self.models[push.model].push(push.key), self.models[push.model].views(push.key)[0]
            values = lambda: view  # noqa: E731

        def compute() -> None:
            if needed is not None and not needed.wait(SECONDS):
                return
            if push.key != ROWS:
                view[...] = value
            item(released.set)

        threading.Thread(target=compute, daemon=True).start()
        return values, released

    def read(self, values: Callable[[], np.ndarray], released: threading.Event) -> np.ndarray:
        self.waits = True
        try:
            while not released.wait(0.05):
                if self.schedule._error is not None:
                    raise self.schedule._error
        finally:
            self.waits = False
        return values()


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    with in_thread(Server("tcp://127.0.0.1:*", threads=2)) as Groups.server:
        yield


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few reductions under way, and short waits, so that a test meets them often."""
    monkeypatch.setattr(hybridps.step.steps, "UNDER_WAY", 2)
    monkeypatch.setattr(hybridps.step.steps, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(hybridps.step.steps, "LITTLE_PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(hybridps.step.votes, "STALL_SECONDS", 0.2)


ALL = [Push(0, key) for key in KEYS]


def nobody(worker: int, step: int) -> set[int]:
    return set()


@pytest.mark.parametrize("reader", [0, 1, 2])
@pytest.mark.parametrize("pushes", [ALL, ALL[::-1]], ids=["forwards", "backwards"])
def test_one_worker_reads_each_sum(pushes: list[Push], reader: int) -> None:
    everything = set(range(len(pushes)))
    run((2, 1), 4 * [pushes], lambda worker, step: everything if worker == reader else set())


def test_one_worker_reads_rows_that_are_pushed_before_dense_keys() -> None:
    pushes = [Push(0, ROWS), *ALL]
    run((1, 2), 4 * [pushes], lambda worker, step: {0} if worker == 0 else set())


def test_one_worker_reads_a_key_of_another_model_between_two_keys() -> None:
    pushes = [Push(0, "a"), Push(1, "a"), Push(0, "d"), Push(1, "d")]
    run((1, 1), 4 * [pushes], lambda worker, step: {1} if worker == 0 else set())


@pytest.mark.parametrize("reader", [0, 2, None])
def test_rows_that_are_computed_from_a_sum_come_between_keys_of_one_bucket(reader: int | None) -> None:
    pushes = [Push(0, "c"), Push(0, ROWS, needs=0), Push(0, "a"), Push(1, "a", needs=1), Push(0, "d")]
    run((2, 1), 4 * [pushes], lambda worker, step: {0} if worker == reader else set())


@pytest.mark.parametrize("left_out", KEYS)
def test_a_key_is_left_out_and_comes_back(left_out: str) -> None:
    fewer = [push for push in ALL if push.key != left_out]
    run((2, 1), [ALL, fewer, fewer, ALL, ALL], nobody)


@pytest.mark.parametrize("sizes", [(1,), (2,), (1, 1)])
def test_a_program_that_waits_for_nothing_ends_after_a_step_that_lacks_a_key(
    sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The missing key has a bucket for itself, and all others are released before the program ends."""
    monkeypatch.setattr(hybridps.step.steps, "UNDER_WAY", 0)
    pushes = [Push(0, key) for key in "ace"]

    def body(algorithm: Algorithm, worker: int) -> None:
        own = Worker(algorithm, job_context(sizes, worker, **GIVEN))
        for step in range(3):
            own.train(pushes, step, set(), sum(sizes))
        own.models[0].begin()
        pushed: list[tuple[Callable[[], np.ndarray], threading.Event]] = []
        for push in pushes[1:]:
            pushed.append(own.push(push, 1.0, pushed))
        for _, released in pushed:
            released.wait(1.0)  # the communication thread does not know it
        own.schedule.close()

    algorithm_groups.run(sizes, "sync", body, **GIVEN)


def test_a_key_in_several_buckets_is_released_when_all_are_reduced() -> None:
    """Its last bucket has another key, whose turn is earlier; the step cannot be completed."""
    pushes = [Push(0, "c"), Push(1, "c"), Push(0, "d"), Push(0, "a")]
    run((1, 1), 5 * [pushes], lambda worker, step: {0, 2} if worker == 0 else {0})


def test_what_has_begun_in_part_has_not_begun() -> None:
    """Of d, the buckets that are complete have begun, and the one that it shares with c has not. So e and f, before and
    after it, are reduced apart, although they share a bucket: the other group reads d before it pushes f.
    """
    pushes = [Push(1, "e"), Push(0, "a"), Push(1, "d"), Push(1, "f"), Push(0, "b"), Push(1, "c")]
    run((1, 1), 4 * [pushes], lambda worker, step: {4} if worker == 0 else {2})


EVERY = [Push(model, key) for model in range(MODELS) for key in KEYS] + [Push(0, ROWS)]


@st.composite
def programs(draw) -> tuple[tuple[int, ...], list[list[Push]], dict[tuple[int, int], set[int]]]:
    """Sizes of groups, the pushes of four steps, some of which lack a few, and what workers read in each step."""
    sizes = draw(st.sampled_from([(1, 1), (2, 1), (1, 2, 1)]))
    pushes = draw(st.lists(st.sampled_from(EVERY), unique=True, min_size=2, max_size=8))
    numbers = st.sets(st.integers(0, len(pushes) - 1))
    left_out = [draw(st.one_of(st.just(set()), numbers)) for _ in range(4)]
    steps = [[push for number, push in enumerate(pushes) if number not in out] for out in left_out]
    readers = draw(st.sets(st.integers(0, sum(sizes) - 1)))
    return sizes, steps, {(worker, step): draw(numbers) for worker in readers for step in range(4)}


@settings(max_examples=25, deadline=None)
@given(programs())
def test_each_worker_reads_what_it_likes(program) -> None:
    sizes, steps, reads = program
    run(sizes, steps, lambda worker, step: reads.get((worker, step), set()))


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from(EVERY), unique=True, min_size=2, max_size=5), st.data())
def test_gradients_are_computed_from_earlier_sums(pushes: list[Push], data) -> None:
    needs = [data.draw(st.integers(-1, number - 1)) for number in range(len(pushes))]
    program = [push._replace(needs=need) for push, need in zip(pushes, needs, strict=True)]
    reads = data.draw(st.sets(st.integers(0, len(pushes) - 1)))
    run((2, 1), 3 * [program], lambda worker, step: reads if worker == 2 else set())
