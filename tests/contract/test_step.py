"""The step, driven by a stand-in for a framework: ranks are threads, and gradients arrive when the test says so."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridps.algorithms import MpiSGD, Rules
from hybridps.config import Settings
from hybridps.errors import DeadlineError, GroupError, LayoutError
from hybridps.events import EventLog
from hybridps.memory import Layout
from hybridps.mpi_groups import SoloGroup, ThreadGroup
from hybridps.mpi_groups.plan import make_plan as plan_job
from hybridps.mpi_groups.session import Session
from hybridps.mpi_groups.watchdog import Watchdog
from hybridps.step import DifferentLayoutsError, DisagreementError, Gradients, InitialValues, KeySpec, Schedule
from hybridps.step.agreement import digest
from hybridps.step.arrays import ArrayModel
from hybridps.step.finite import NotFiniteGradientError
from hybridps.step.job_context import JobContext
from hybridps.step.plan import Span, Table, make_plan, merged, parts
from hybridps.step.step import Step
from hybridps.step.steps import Gradient
from hybridps.step.votes import Vote
from hybridps.tensor_collectives import Levels, Tensor
from hybridps.tiers import NoTier

pytestmark = pytest.mark.timeout(60)

KEYS = {"a": (3,), "empty": (0,), "b": (40, 5), "c": (), "d": (700,), "e": (2, 2)}
SPECS = {name: KeySpec("float32", shape) for name, shape in KEYS.items()}
GIVEN = Settings(chunk_bytes=1024, bucket_bytes=1024, deadline_seconds=20, quiet=True)


class Model:
    """A stand-in for a framework on one rank. It waits for a sum as MXNet does: elsewhere."""

    def __init__(self, group, keys: Mapping[str, KeySpec] = SPECS, given: Settings = GIVEN, watch=None) -> None:
        context = JobContext(given, group.rank, 1, EventLog(None, group.rank), watch or (lambda what: nullcontext()))
        self.rank, self.size = group.rank, group.size
        self.reductions: list[tuple[int, int]] = []
        self.algorithm = MpiSGD(Levels(group, [0] * group.size, given.deadline_seconds), NoTier(group))
        self._reduce, self.algorithm.reduce_ = self.algorithm.reduce_, self._note_and_reduce
        self._waits = False
        self.schedule = Schedule(self.algorithm.levels, context, lambda thread: self._waits)
        self.initial = InitialValues(self.schedule, self.algorithm, context, "initial")
        self.sums = Gradients(self.schedule, self.algorithm, context, self.initial, "model")
        self.released: dict[str, threading.Event] = {}
        if keys:
            self.sums.lay_out(keys)

    def _note_and_reduce(self, table: str, tensor: Tensor, start: int, stop: int, rules: Rules):
        self.reductions.append((start, stop))
        return self._reduce(table, tensor, start, stop, rules)

    def push(self, name: str, value: float, arrives: bool = True) -> Callable[[], None]:
        """Push a gradient that is `value` everywhere; it arrives now, or when what is returned is called."""
        item, released = self.sums.push(name), threading.Event()
        self.released[name] = released

        def arrive() -> None:
            self.sums.views(name)[0][...] = value
            item(released.set)

        if arrives:
            arrive()
        return arrive

    def wait(self, name: str) -> float:
        """The sum of a key: the program waits for it."""
        self._waits = True
        try:
            while not self.released[name].wait(0.05):
                if self.schedule._error is not None:
                    raise self.schedule._error
        finally:
            self._waits = False
        values = np.unique(self.sums.views(name)[0])
        assert values.size <= 1
        return float(values[0]) if values.size else 0.0

    def step(self, names: Sequence[str], value: float, wait_each: bool = False) -> dict[str, float]:
        self.sums.begin()
        for name in names:
            self.push(name, value)
            if wait_each:
                self.wait(name)
        return {name: self.wait(name) for name in names}


def expected(names: Sequence[str], value: float) -> dict[str, float]:
    return {name: value if np.prod(KEYS[name]) else 0.0 for name in names}


def on_ranks(size: int, work: Callable[[Model], object], **options) -> list:
    def body(group):
        model = Model(group, **options)
        result = work(model)
        model.schedule.close()
        return result

    return (
        [body(SoloGroup())] if size == 1 else ThreadGroup.run(size, body, options.get("given", GIVEN).deadline_seconds)
    )


@settings(max_examples=25)
@given(st.integers(1, 3), st.data())
def test_gradients_arrive_in_any_order(size: int, data) -> None:
    steps = 4
    orders = [[data.draw(st.permutations(list(KEYS))) for _ in range(steps)] for _ in range(size)]
    came = [data.draw(st.sets(st.sampled_from(list(KEYS)), min_size=1)) for _ in range(steps)]

    def work(model: Model) -> None:
        for step in range(steps):
            names = [name for name in KEYS if name in came[step]]
            model.sums.begin()
            arrivals = {name: model.push(name, 10 * step + model.rank, arrives=False) for name in names}
            for name in orders[model.rank][step]:
                if name in arrivals:
                    arrivals[name]()
            want = sum(10 * step + rank for rank in range(size))
            assert {name: model.wait(name) for name in names} == expected(names, want)

    on_ranks(size, work)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_program_may_read_each_sum_before_it_pushes_the_next_key(size: int) -> None:
    def work(model: Model) -> None:
        for step in range(4):
            assert model.step(list(KEYS), step + 1, wait_each=True) == expected(list(KEYS), (step + 1) * size)

    on_ranks(size, work)


@pytest.mark.parametrize("names", [list(KEYS), ["a"]])
def test_steps_that_are_done_are_freed_without_a_garbage_collection(names: list[str]) -> None:
    def work(model: Model) -> int:
        for step in range(20):
            model.step(names, step)
        return sum(isinstance(each, (Step, Gradient)) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        (count,) = on_ranks(1, work)
    finally:
        gc.enable()
    assert count < 10 * len(names)


@pytest.mark.parametrize("reader", [0, 1])
def test_only_one_rank_reads(reader: int) -> None:
    def work(model: Model) -> None:
        for step in range(4):
            got = model.step(list(KEYS), step + 1, wait_each=model.rank == reader)
            assert got == expected(list(KEYS), 2 * (step + 1))

    on_ranks(2, work)


def test_a_gradient_that_needs_an_earlier_sum_is_not_waited_for() -> None:
    """The program does not wait: the framework's engine lets the second gradient depend on the first sum."""

    def work(model: Model) -> None:
        for step in range(3):
            model.sums.begin()
            arrive = {name: model.push(name, 1, arrives=False) for name in "abd"}
            arrive["a"]()
            assert model.released["a"].wait(10)
            arrive["b"]()
            assert model.released["b"].wait(10)
            arrive["d"]()
            assert model.released["d"].wait(10), step

    on_ranks(2, work)


def test_keys_are_left_out_and_come_back() -> None:
    def work(model: Model) -> None:
        for names in ("abde", "abde", "be", "be", "abde", "d", "abde", "abde"):
            assert model.step(list(names), 1) == expected(list(names), 2)

    on_ranks(2, work)


def test_a_step_whose_keys_differ_is_fused_again_with_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridps.step.votes.STALL_SECONDS", 50.0)

    def work(model: Model) -> list[str]:
        fused = []
        for names in ["abde", "abde", "be", "be", "abde", "abde", "d", "d"]:
            before = model.sums._reducer.spent.steps
            assert model.step(list(names), 1) == expected(list(names), 2)
            model.schedule.call("the end of the step", lambda: None)
            is_fused = model.sums._reducer.spent.steps > before
            fused.append("".join(sorted(model.sums._step.plan.buckets_of)) if is_fused else "")
        return fused

    # Keys that come back are not expected in the same step; those of which one is missing go on in program order.
    for fused in on_ranks(2, work):
        assert fused == ["", "abde", "", "be", "be", "abde", "", "d"]


def test_the_begin_of_another_model_is_no_reason_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program with two models waits for its own backward before it pushes. This is no wait for a sum."""
    monkeypatch.setattr("hybridps.step.votes.STALL_SECONDS", 50.0)

    def work(model: Model) -> list[bool]:
        fused, other = [], Gradients(model.schedule, model.algorithm, model.schedule._context, model.initial, "other")
        other.lay_out({"x": KeySpec("float16", (3,))})
        for _ in range(4):
            before = model.sums._reducer.spent.steps
            model.sums.begin()
            model.schedule.agree_on("something that nobody waits for")
            other.begin()
            model._waits = True
            time.sleep(0.1)
            model._waits = False
            for name in KEYS:
                model.push(name, 1)
            other.push("x")()
            assert {name: model.wait(name) for name in KEYS} == expected(list(KEYS), 2)
            model.schedule.call("the end of the step", lambda: None)
            fused.append(model.sums._reducer.spent.steps > before)
        return fused

    assert on_ranks(2, work) == 2 * [[False, True, True, True]]


def test_keys_that_are_laid_out_later() -> None:
    def work(model: Model) -> None:
        model.step(list(KEYS), 1)
        model.sums.lay_out({"late": KeySpec("float64", (5,)), "more": KeySpec("float32", (6,))})
        for _ in range(3):
            names = [*KEYS, "late", "more"]
            assert model.step(names, 1) == expected(list(KEYS), 2) | {"late": 2, "more": 2}

    on_ranks(2, work)


def test_a_known_step_is_reduced_by_buckets_and_the_last_layers_first() -> None:
    def work(model: Model) -> list[tuple[int, int]]:
        names = [name for name in KEYS if np.prod(KEYS[name])]
        model.step(names, 1)
        del model.reductions[:]
        model.step(names, 1)
        return model.reductions

    for reductions in on_ranks(2, work):
        assert [start for start, _ in reductions] == sorted((start for start, _ in reductions), reverse=True)
        assert all(start % 256 == 0 for start, _ in reductions)


@pytest.mark.parametrize("late", [[], ["a", "b"]], ids=["together", "one rank is late"])
def test_buckets_that_are_complete_share_a_vote(late: list[str]) -> None:
    """As many as are complete on all ranks. The key of the last layers, which is in the first bucket, arrives last."""
    has_voted = threading.Event()

    def work(model: Model) -> list[int]:
        model.step([*KEYS], 1)
        vote, votes = model.schedule.agreement.vote, []

        def note(phase: int, value: int, here: str) -> tuple[int, int]:
            told = vote(phase, value, here)
            if phase == digest(["step 1"]):
                votes.append(value)
                has_voted.set()
            return told

        model.schedule.agreement.vote = note
        model.sums.begin()
        arrivals = {name: model.push(name, 1, arrives=False) for name in KEYS}
        for name in KEYS:
            if model.rank == 0 or name not in late:
                arrivals[name]()
        if model.rank == 1 and late:
            assert has_voted.wait(10)
            for name in late:
                arrivals[name]()
        assert {name: model.wait(name) for name in KEYS} == expected([*KEYS], 2)
        return votes

    first, second = on_ranks(2, work)
    every = Vote.COMPLETE + 3  # four buckets of 1024 bytes, for 3624 bytes of gradients
    assert first[0] == every
    if late:
        assert Vote.COMPLETE <= second[0] < every
        assert len(first) == len(second) >= 2
    else:
        assert first == second == [every]


def test_many_small_keys_that_have_arrived_are_reduced_together() -> None:
    names = [f"key{number}" for number in range(2000)]

    def work(model: Model) -> int:
        model.sums.begin()
        arrivals = [model.push(name, 1, arrives=False) for name in names]
        for arrive in reversed(arrivals):
            arrive()
        assert all(model.wait(name) == 2 for name in names)
        return len(model.reductions)

    keys = {name: KeySpec("float32", (4,)) for name in names}
    assert max(on_ranks(2, work, keys=keys, given=Settings(quiet=True))) < 20


def test_ranks_with_different_programs_raise_the_same_error() -> None:
    def work(model: Model) -> str:
        def train() -> None:
            for names in ("abde", "a" + "be"[model.rank], "d"):
                model.step(list(names), 1)

        with pytest.raises(DisagreementError) as raised:
            train()
        return str(raised.value)

    first, second = on_ranks(2, work)
    assert first == second
    assert "the sum of key 'b' in step 1" in first
    assert "the sum of key 'e' in step 1" in first


def test_a_step_too_much_on_one_rank_is_an_error() -> None:
    def work(model: Model) -> str:
        def train() -> None:
            for step in range(5):
                model.step(["a", "d"], 1)
                if model.rank == 1 and step == 2:
                    model.schedule.call("reading the centre", lambda: None)

        with pytest.raises(GroupError) as raised:
            train()
        return str(raised.value)

    first, second = on_ranks(2, work)
    assert first == second
    assert "reading the centre" in first
    assert "step 3" in first


def test_a_key_that_never_comes_is_named() -> None:
    said: list[tuple[int, str]] = []
    late = threading.Event()

    def work(model: Model) -> None:
        model.step(["a", "d"], 1)
        model.sums.begin()
        model.push("a", 1, arrives=model.rank == 0)
        model.push("d", 1)
        assert late.wait(10)

    def body(group):
        def on_late(what: str, seconds: float, final: bool) -> None:
            if final:
                said.append((group.rank, what))
                late.set()

        dog = Watchdog(0.5, on_late)
        work(Model(group, watch=dog.watch))
        dog.stop()

    ThreadGroup.run(2, body, deadline_seconds=20)
    assert any("'a'" in what and "step 1" in what for _, what in said), said


def test_networks_that_differ_in_a_group_give_the_same_error_on_all_ranks() -> None:
    def body(group) -> str:
        model = Model(group, keys={})
        other = {"a": KeySpec("float32", (3,)), "b": KeySpec("float32", (5 + group.rank, 2))}
        with pytest.raises(DifferentLayoutsError) as raised:
            model.sums.lay_out(other)
        assert isinstance(raised.value, LayoutError)
        return str(raised.value)

    first, second = ThreadGroup.run(2, body, deadline_seconds=20)
    assert first == second
    assert "key 'b' has the shape (6, 2) of float32 instead of (5, 2) of float32" in first


def test_initial_values_are_the_first_worker_s() -> None:
    def work(model: Model) -> list[np.ndarray]:
        arrays = [np.full(shape, model.rank + 1, kind) for shape in [(3,), (), (2, 5)] * 50 for kind in ("f4", "f8")]
        released = [threading.Event() for _ in arrays]
        for number, (array, event) in enumerate(zip(arrays, released, strict=True)):
            model.initial.fill(f"key{number}", array)(event.set)
        model.schedule.call("a barrier", lambda: None)
        assert all(event.is_set() for event in released)
        return arrays

    for arrays in on_ranks(2, work):
        assert all((array == 1).all() for array in arrays)


def test_one_initial_value_is_read_before_the_next_is_given() -> None:
    def work(model: Model) -> None:
        for number in range(2):
            array, event = np.full(4, model.rank + 1.0), threading.Event()
            model.initial.fill(f"key{number}", array)(event.set)
            model._waits = model.rank == 1
            assert event.wait(10)
            model._waits = False
            assert (array == 1).all()

    on_ranks(2, work)


@pytest.mark.parametrize("how", ["warn", "refuse", "ignore"])
def test_gradients_that_are_no_numbers(how: str, capsys) -> None:
    given = msgspec.structs.replace(GIVEN, check_finite=how, deadline_seconds=3)

    def work(model: Model) -> None:
        for step in range(3):
            model.step(["a", "b"], 1)
            model.sums.begin()
            for name in ("a", "b"):
                model.push(name, np.inf if (name, model.rank, step) == ("b", 1, 1) else 1.0)
            assert model.wait("a") == 2
            assert model.wait("b") == (np.inf if step == 1 else 2)

    if how == "refuse":
        with pytest.raises(NotFiniteGradientError, match="worker 1: the gradient of key 'b' has NaN or Inf in step 3"):
            on_ranks(2, work, given=given)
    else:
        on_ranks(2, work, given=given)
        said = capsys.readouterr().err
        assert said.count("worker 1: the gradient of key 'b' has NaN or Inf in step 3") == (how == "warn"), said


@pytest.mark.parametrize("second", ["b", "c"])
def test_a_worker_that_has_warned_searches_its_part_for_the_others(second: str, capsys) -> None:
    """Ranks share the search of all gradients: what one has seen in one table says nothing of another."""
    keys = {"a": KeySpec("float32", (9999,)), "b": KeySpec("float64", (9999,)), "c": KeySpec("float64", (9999,))}

    def work(model: Model) -> None:
        for step in range(6):
            model.sums.begin()
            came = keys if step > 3 else ["a"]
            for name in came:
                bad = (step, name, model.rank) in {(3, "a", 0), (4, second, 1)}
                model.push(name, np.inf if bad else 1.0)
            for name in came:
                model.wait(name)

    on_ranks(2, work, keys=keys, given=msgspec.structs.replace(GIVEN, bucket_bytes=1 << 20))
    said = capsys.readouterr().err
    assert "worker 0: the gradient of key 'a' has NaN or Inf in step 3" in said
    assert f"worker 1: the gradient of key {second!r} has NaN or Inf in step 4" in said


@given(st.sets(st.sampled_from(list(KEYS))), st.sampled_from([64, 256, 1024, 1 << 20]))
def test_a_plan_covers_each_expected_key_once(names: set[str], bucket_bytes: int) -> None:
    layout = Layout.of("float32", KEYS)
    table = Table("t", layout, Tensor([np.zeros(layout.length, "f4")]))
    plan, covered = make_plan([table], frozenset(names), bucket_bytes), np.zeros(layout.length, int)
    for bucket in plan.buckets:
        assert bucket.spans
        for span in bucket.spans:
            covered[span.start : span.stop] += 1
    for name, (start, stop) in table.spans.items():
        assert (covered[start:stop] == (name in names)).all()
    assert all(bucket.spans_of(bucket.keys) == bucket.spans for bucket in plan.buckets)
    assert plan.buckets_of.keys() == {name for name in names if np.prod(KEYS[name])}


@given(st.sets(st.sampled_from(list(KEYS)), min_size=1), st.sampled_from([64, 256]), st.integers(1, 5))
def test_buckets_that_are_joined_have_the_same_elements_and_keys(names: set[str], bucket_bytes: int, most: int) -> None:
    layout = Layout.of("float32", KEYS)
    tables = [Table(name, layout, Tensor([np.zeros(layout.length, "f4")])) for name in "tu"]
    plan = make_plan(tables, frozenset(names), bucket_bytes)
    of_table = [bucket.spans[0].table for bucket in plan.buckets]
    bundles = list(plan.bundles(0, len(plan.buckets), most))
    spans = merged(span for bucket in plan.buckets for span in bucket.spans)
    assert merged(span for bundle in bundles for span in bundle.spans) == spans
    assert all(list(bundle.spans) == merged(bundle.spans) for bundle in bundles)
    assert {key for bundle in bundles for key in bundle.keys} == plan.buckets_of.keys()
    assert len(bundles) == sum(-(-of_table.count(table) // most) for table in tables)
    assert list(plan.bundles(0, len(plan.buckets), most)) == bundles


def test_adjacent_spans_are_merged_and_parted_at_buckets() -> None:
    layout = Layout.of("float32", KEYS)
    table = Table("t", layout, Tensor([np.zeros(layout.length, "f4")]))
    spans = [Span(table, *table.spans[name]) for name in ("d", "a", "b", "empty", "e")]
    joined = merged(spans)
    assert [(span.start, span.stop) for span in joined] == [(0, 224), (240, layout.length)]
    cut = [(part.start, part.stop) for part in parts(joined[1], 1024)]
    assert cut == [(240, 256), (256, 512), (512, 768), (768, layout.length)]


@contextmanager
def model_of_arrays(**weights):
    world = SoloGroup()
    plan = plan_job(["worker"], ["here"], GIVEN)
    session = Session(GIVEN, plan, plan.places[0], world, 1)
    algorithm = MpiSGD(Levels(world, [0]), NoTier(world))
    with ArrayModel(algorithm, session, weights) as model:
        yield model
    session.close()


def test_a_model_of_arrays() -> None:
    with model_of_arrays(w=np.ones((3, 4), "f4"), b=np.zeros(3)) as model:
        assert (model.weights["w"] == 1).all()
        for step in range(4):
            for gradient in model.gradients.values():
                gradient[...] = step
            model.reduce()
            assert all((gradient == step).all() for gradient in model.gradients.values())


def test_an_error_of_the_communication_reaches_the_program() -> None:
    with model_of_arrays(w=np.ones(3, "f4")) as model:

        def fail(*arguments: object) -> None:
            raise DeadlineError("gone")

        model._algorithm.reduce_ = fail
        with pytest.raises(DeadlineError, match="gone"):
            model.reduce()
        model.close = lambda: None
