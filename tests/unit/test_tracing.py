"""The trace of a run: bounded files, one clock, the parts of a step, and what they say."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridps import loading
from hybridps.config import Settings
from hybridps.errors import ConfigError, HybridPSError, OracleError
from hybridps.memory import Layout
from hybridps.oracle.ssgd.recorded import read_chrome_trace, recorded_layers
from hybridps.oracle.ssgd.trace import replay
from hybridps.tracing import (
    Keys,
    Probe,
    Process,
    Recorder,
    Served,
    Span,
    Step,
    TraceFile,
    chrome_events,
    diagnose,
    on_one_clock,
    read_trace,
    write_chrome_trace,
)
from hybridps.tracing.clocks import Bound, difference
from hybridps.tracing.diagnosis import path
from hybridps.tracing.parts import parts_of
from hybridps.tracing.reading import (
    Communication,
    Interval,
    ServerWork,
    Trace,
    TracedServer,
    TracedStep,
    TracedWorker,
)
from hybridps.tracing.recorder import MOST_ARRIVALS, check_trace

STEPS = 20
AHEAD = 12_345.678
"""Seconds that the clock of worker 1 is ahead of that of worker 0."""


def write(folder: Path, name: str, *lines: Process | Keys | Step | Served | Probe) -> None:
    file = TraceFile(folder, name, 1 << 20)
    for line in lines:
        file.write(line, stays=isinstance(line, (Process, Keys)))
    file.close()


def worker(
    folder: Path,
    number: int,
    compute_us: int = 1000,
    base: float = 50.0,
    group: int = 0,
    begins_us: int = 100,
    stall_us: int = 0,
    host: str = "host",
) -> None:
    """Steps of 2000 us. The program begins them at `begins_us`, the gradients are there at `compute_us`, or in every
    fourth step `stall_us` later, the group meets at 1500, and the sum is there at 1900.
    """
    steps = []
    usual_us = compute_us
    for step in range(STEPS):
        at = 10_000 + 2000 * step
        compute_us = usual_us + (stall_us if step % 4 == 0 else 0)
        arrived = [(1, at + compute_us - 200), (0, at + compute_us)]
        spans = [
            Span("vote", at + compute_us + 10, at + 1500 + number, 0),
            Span("allreduce", at + 1510, at + 1800, 0, 4000),
            Span("exchange", at + 1810, at + 1900, 0, 4000),
        ]
        steps.append(Step(step, 0, at + begins_us, at + 1990, arrived, spans))
    process = Process(number, group, number, base, 0.0, host)
    write(folder, str(number), process, Keys("t", 0, ["first", "second"], [700, 300], [2800, 1200]), *steps)


def test_files_are_bounded_and_keep_the_last_steps(tmp_path: Path) -> None:
    file = TraceFile(tmp_path, "0", 20_000)
    file.write(Process(0, 0, 0, 0.0, 0.0), stays=True)
    for number in range(1000):
        file.write(Step(number, 0, 0, 1, [(0, 1)], []))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 20_000
    file.close()
    steps = [step.number for step in read_trace(tmp_path).workers[0].steps]
    assert steps[-1] == 999
    assert steps == list(range(steps[0], 1000))
    assert len(steps) * 50 > 5_000


def test_what_a_kill_has_cut_off_is_left_out(tmp_path: Path) -> None:
    worker(tmp_path, 0)
    path = tmp_path / "trace-0.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    assert [step.number for step in read_trace(tmp_path).workers[0].steps] == list(range(STEPS - 1))
    worker(tmp_path, 0, compute_us=900, base=60)  # the next life begins below half a line
    trace = read_trace(tmp_path)
    assert len(trace.workers[0].steps) == STEPS
    assert trace.workers[0].steps[3].last_gradient == pytest.approx(60 + 0.0169)


def test_files_of_an_earlier_launch_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, "0", Process(0, 0, 0, 0.0, 0.0, launch="first"), Step(0, 0, 0, 1, [(0, 1)], []))
    write(tmp_path, "1", Process(1, 0, 1, 0.0, 0.0, launch="second"), Step(0, 0, 0, 1, [(0, 1)], []))
    assert set(read_trace(tmp_path, "second").workers) == {1}
    assert set(read_trace(tmp_path).workers) == {0, 1}


def test_a_full_disk_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    file = TraceFile("/proc", "0", 1 << 16)
    file.write(Process(0, 0, 0, 0.0, 0.0))
    file.close()
    assert "/proc/trace-0.jsonl can no longer be written" in capsys.readouterr().err


def test_a_recorder_writes_what_it_is_told(tmp_path: Path) -> None:
    recorder = Recorder.of(Settings(trace=True, run_folder=str(tmp_path)), worker=3, group=1, group_rank=1)
    model = recorder.add_model()
    recorder.add_keys("t", Layout.of("float32", {"a": (5,), "b": (2, 3)}), vectors=2)
    assert recorder.process is not None
    with loading():
        pass
    base = recorder.process.base
    recorder.begin(0, model)
    computed = time.monotonic()
    recorder.arrived(model, "t", "b", computed)
    recorder.span("allreduce", base + 0.125, "t", "a", 44)
    with loading():  # for a next step
        pass
    recorder.arrived(model + 1, "t", "b", computed + 1)  # of a step of another model, which has ended there
    recorder.end(0, model + 1)
    recorder.end(0, model)
    recorder.begin(1, model)  # nothing happens in it
    recorder.close()
    (found,) = read_trace(tmp_path).workers.values()
    assert list(found.keys.values()) == [("t", "a", 5, 40), ("t", "b", 6, 48)]
    (step,) = found.steps
    assert step.arrived == ((1, pytest.approx(computed, abs=1e-6)),)
    (span,) = step.spans
    assert (span.kind, span.key, span.nbytes, span.time.began) == ("allreduce", 0, 44, pytest.approx(base + 0.125))
    assert len(step.loading) == 1


def test_a_wait_between_two_steps_belongs_to_the_later_one(tmp_path: Path) -> None:
    recorder = Recorder.of(Settings(trace=True, run_folder=str(tmp_path)), worker=0, group=0, group_rank=0)
    model = recorder.add_model()
    recorder.add_keys("t", Layout.of("float32", {"a": (5,)}), vectors=1)
    recorder.span("vote", time.monotonic())  # before the first step
    for number in range(2):
        recorder.begin(number, model)
        recorder.arrived(model, "t", "a", time.monotonic())
        recorder.span("allreduce", time.monotonic(), "t", "a", 20)
        recorder.end(number, model)
        recorder.span("vote", time.monotonic())
    recorder.close()
    (found,) = read_trace(tmp_path).workers.values()
    assert [[span.kind for span in step.spans] for step in found.steps] == [["allreduce"], ["vote", "allreduce"]]


@pytest.mark.parametrize("order", [1, -1])
def test_of_very_many_gradients_only_the_last_one_is_recorded(tmp_path: Path, order: int) -> None:
    """In whatever order they are reported."""
    recorder = Recorder.of(Settings(trace=True, run_folder=str(tmp_path)), 0, 0, 0)
    keys = [f"k{number}" for number in range(3 * MOST_ARRIVALS)]
    recorder.add_keys("t", Layout.of("float32", dict.fromkeys(keys, (1,))), 1)
    recorder.begin(0, recorder.add_model())
    for number, key in list(enumerate(keys))[::order]:
        recorder.arrived(0, "t", key, number)
    recorder.end(0, 0)
    recorder.close()
    (step,) = read_trace(tmp_path).workers[0].steps
    assert len(step.arrived) == MOST_ARRIVALS + 1
    assert step.last_gradient == pytest.approx(3 * MOST_ARRIVALS - 1, abs=1e-5)


def test_without_the_setting_nothing_is_written(tmp_path: Path) -> None:
    recorder = Recorder.of(Settings(run_folder=str(tmp_path)), 0, 0, 0)
    recorder.begin(0, recorder.add_model())
    recorder.arrived(0, "t", "k", 1.0)
    recorder.end(0, 0)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="HYBRIDPS_TRACE needs a folder"):
        check_trace(Settings(trace=True))


@given(st.floats(-1e6, 1e6), st.floats(-2e-5, 2e-5), st.integers(0, 1 << 16))
def test_the_difference_of_two_clocks_is_found(ahead: float, drift: float, seed: int) -> None:
    """Messages take 20 us to 2 ms each way; in a window some are fast. The clocks drift."""
    chance = random.Random(seed)
    bounds = []
    for number in range(300):
        when = number * 0.1
        there, back = (2e-5 + 2e-3 * chance.random() ** 4 for _ in range(2))
        b = when + there + ahead + drift * when  # when it arrives, on clock B
        low, high = b - (when + there + back), b - when
        bounds.append(Bound(when, low, high, (low + high) / 2))
    found = difference(bounds)
    assert found is not None
    assert len(found.times) == 3
    for when in found.times:
        assert found.at(when) == pytest.approx(ahead + drift * when, abs=found.uncertainty + 2e-4)
    assert found.uncertainty < 1e-3


def test_all_processes_are_put_on_one_clock(tmp_path: Path) -> None:
    worker(tmp_path, 0, base=50)
    worker(tmp_path, 1, base=50 + AHEAD)
    times = [10_000 + 3000 * number for number in range(4)]
    probes = [Probe(0, "tcp://a:1", 7 + number, at, at + 60) for number, at in enumerate(times)]
    columns = ([0] * 4, [1] * 4, [-1] * 4, [0] * 4, [0] * 4, [7, 8, 9, 10])
    server_us = [int(1e6 * (50 - AHEAD)) + at + 30 for at in times]
    served = Served(0, "tcp://a:1", ["profile", ""], *columns, server_us, [5] * 4)
    write(tmp_path, "servers-0", Process(0, 0, 0, 50.0, 0.0, "host"), *probes, served)
    clock = on_one_clock(read_trace(tmp_path))
    assert clock.uncertainty < 1e-3
    assert clock.by_wall_clock == ()
    first, second = clock.trace.workers[0].steps[5], clock.trace.workers[1].steps[5]
    assert second.last_gradient == pytest.approx(first.last_gradient, abs=2e-6)
    handled = clock.trace.servers[0].work[2].time
    assert handled.began == pytest.approx(50 + 1e-6 * (times[2] + 30), abs=31e-6)


def test_workers_of_a_host_have_one_clock(tmp_path: Path) -> None:
    for number in range(2):
        worker(tmp_path, number, compute_us=1400 if number else 1000)
    clock = on_one_clock(read_trace(tmp_path))
    assert clock.uncertainty == 1e-6
    first, second = clock.trace.workers[0].steps[5], clock.trace.workers[1].steps[5]
    assert second.last_gradient - first.last_gradient == pytest.approx(400e-6)


def test_workers_of_another_host_share_their_clock(tmp_path: Path) -> None:
    for number in range(3):
        worker(
            tmp_path, number, compute_us=1000 + 200 * number, base=50 + (AHEAD if number else 0), host=f"{number > 0}"
        )
    clock = on_one_clock(read_trace(tmp_path))
    assert 1e-6 < clock.uncertainty < 1e-3
    _, first, second = (clock.trace.workers[number].steps[5].last_gradient for number in range(3))
    assert second - first == pytest.approx(200e-6, abs=2e-6)


def test_groups_of_a_host_share_a_clock_without_servers(tmp_path: Path) -> None:
    for number in range(2):
        worker(tmp_path, number, compute_us=1000 + 200 * number, group=number)
    clock = on_one_clock(read_trace(tmp_path))
    assert (clock.uncertainty, clock.by_wall_clock) == (1e-6, ())


def test_a_worker_that_no_message_connects_is_put_there_by_its_host_s_clock(tmp_path: Path) -> None:
    for number, (base, wall) in enumerate(((50.0, 1000.0), (70.0, 1001.0))):
        process = Process(number, number, 0, base, wall, f"host {number}")
        write(tmp_path, str(number), process, Step(0, 0, 0, 9, [(0, 5)], []))
    clock = on_one_clock(read_trace(tmp_path))
    assert clock.by_wall_clock == ("worker 1",)
    assert clock.trace.workers[1].steps[0].last_gradient == pytest.approx(51 + 5e-6)


times_of_a_step = st.lists(st.floats(0, 1), min_size=4, max_size=4)


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=5),
    st.lists(st.floats(0, 1), max_size=8),
    st.lists(times_of_a_step, max_size=3),
)
def test_the_parts_of_a_step_add_up(arrivals: list[float], cuts: list[float], loads: list[list[float]]) -> None:
    """Whatever the communication thread did, one thing after the other."""
    edges = sorted(cuts)
    kinds = ("vote", "allreduce", "exchange", "averaging")
    spans = tuple(
        Communication(kinds[number % 4], Interval(*pair), 0, 0)
        for number, pair in enumerate(zip(edges, edges[1:], strict=False))
    )
    loading = tuple(Interval(*sorted(each[:2])) for each in loads[:1])
    arrived = tuple(enumerate(sorted(arrivals)))
    parts = parts_of(TracedStep(0, 0, Interval(0.0, 1.0), 0.0, arrived, spans, loading))
    assert min(parts) >= 0
    assert parts.whole == pytest.approx(1.0)


def test_a_slow_worker_is_named_with_what_the_others_wait_for(tmp_path: Path) -> None:
    for number in range(4):
        worker(tmp_path, number, compute_us=1410 if number == 3 else 1000, base=50 + number * AHEAD)
    found = diagnose(on_one_clock(read_trace(tmp_path)))
    assert found is not None
    (slow,) = found.slow
    assert slow.worker == 3
    # A step begins when the one before has ended, 10 us before it is pushed
    assert slow.share == pytest.approx(1420 / 1010 - 1)
    assert slow.last_in == 1
    assert found.steps == STEPS - 3
    assert any(
        "worker 3 computes 41 % longer than the others (1.4 ms; the others 1 ms)" in said for said in found.sentences
    )
    assert any("0.38 ms of its allreduce are not hidden" in said for said in found.sentences)
    assert found.parts.whole == pytest.approx(0.002)
    assert found.by_worker[0].waiting == pytest.approx(490e-6)


def test_a_worker_whose_program_begins_its_steps_late_does_not_compute_longer(tmp_path: Path) -> None:
    for number in range(3):
        worker(tmp_path, number, **({"compute_us": 1400, "begins_us": 500} if number == 1 else {}))
    found = diagnose(on_one_clock(read_trace(tmp_path)))
    assert found is not None
    (slow,) = found.slow
    assert (slow.worker, slow.cause, slow.stalls) == (1, "program", False)
    said = (
        "worker 1 spends time on other code of its program, and takes 40 % longer than the others until its last "
        "gradient"
    )
    assert any(said in each for each in found.sentences)


def test_a_worker_that_stalls_in_some_steps_is_named_by_its_mean(tmp_path: Path) -> None:
    for number in range(3):
        worker(tmp_path, number, stall_us=600 if number == 2 else 0)
    found = diagnose(on_one_clock(read_trace(tmp_path)))
    assert found is not None
    (slow,) = found.slow
    assert (slow.worker, slow.cause, slow.stalls) == (2, "compute", True)
    assert any("on average, because it stalls in some steps, and is the last in" in said for said in found.sentences)


def test_an_even_run_names_nobody(tmp_path: Path) -> None:
    for number in range(3):
        worker(tmp_path, number, stall_us=500)
    found = diagnose(on_one_clock(read_trace(tmp_path)))
    assert found is not None
    assert found.slow == []
    assert "all workers take about as long" in " ".join(found.sentences)


@pytest.mark.parametrize(
    ("whole_ms", "said"),
    [
        (1000, "worker 0 computes for 1.01 s"),  # the wait is too short to be mentioned, and so is what servers do
        (10, "worker 0 computes for 20 ms; it waits for the servers for 0.5 ms, which compute for 0.3 ms of that"),
    ],
)
def test_the_work_of_servers_is_told_with_the_wait_for_them(whole_ms: int, said: str) -> None:
    last = 0.01 + whole_ms / 1000
    exchange = Communication("exchange", Interval(last, last + 0.0005), 0, 0)
    step = TracedStep(0, 0, Interval(0.01, last + 0.0005), 0.0, ((0, last),), (exchange,), ())
    work = ServerWork("round", "t", 0, -1, 1, -1, Interval(last + 0.0001, last + 0.0004))
    trace = Trace({0: TracedWorker(Process(0, 0, 0, 0.0, 0.0), steps=[step])}, {0: TracedServer(0, "a", [work])})
    assert path(trace, {(0, 0): {0: step}}, (0, 0)) == said


def own_pace() -> dict[int, TracedStep]:
    """The same step of two groups that do not train in step: of 4 ms, and later of 56 ms, most of it averaging."""
    first = TracedStep(0, 0, Interval(0.001, 0.004), 0.0, ((0, 0.0039),), (), ())
    averaging = Communication("averaging", Interval(0.1026, 0.1560), 0, 0)
    later = TracedStep(0, 0, Interval(0.101, 0.1561), 0.1, ((0, 0.1025),), (averaging,), ())
    return {0: first, 1: later}


def test_of_groups_that_do_not_train_in_step_the_one_that_takes_long_is_named() -> None:
    steps = own_pace()
    trace = Trace(
        {number: TracedWorker(Process(number, number, 0, 0.0, 0.0), steps=[steps[number]]) for number in steps}
    )
    said = path(trace, {(0, 0): steps}, (0, 0))
    assert said == "worker 1 computes for 2.5 ms; averaging weights takes 53 ms"


def in_step(*last_ms: float, averaging_ms: float = 0.0) -> str:
    """What is said of a step of 10 ms of workers of a group, whose last gradients arrive at these times."""
    spans = (Communication("averaging", Interval(0.0099 - averaging_ms / 1000, 0.0099), 0, 0),) if averaging_ms else ()
    steps = {
        number: TracedStep(0, 0, Interval(0.0, 0.01), 0.0, ((0, ms / 1000),), spans, ())
        for number, ms in enumerate(last_ms)
    }
    workers = {
        number: TracedWorker(Process(number, 0, number, 0.0, 0.0), steps=[step]) for number, step in steps.items()
    }
    return path(Trace(workers), {(0, 0): steps}, (0, 0))


def test_a_worker_is_compared_with_the_others_only_if_that_tells_something() -> None:
    """That is, if it is late by a tenth of the step; a small difference is noise."""
    assert in_step(6.6, 6.0) == "computing takes longest (6.6 ms of worker 0)"
    assert in_step(7.2, 6.0) == "worker 0 computes 20 % longer than the others (7.2 ms; the others 6 ms)"
    assert in_step(6.1, 6.0) == "all workers take about as long until their last gradient (6.1 ms)"


def test_a_part_that_is_named_as_the_largest_is_not_named_again() -> None:
    said = "averaging weights with other groups takes longest (5 ms of worker 0)"
    assert in_step(3.3, 3.0, averaging_ms=5) == said


def test_a_step_has_no_more_computing_than_it_has_time_for() -> None:
    """A program that is ahead of its gradients takes longer from one step to the next than this step does."""
    long = TracedStep(1, 0, Interval(0.001, 0.004), 0.0, ((0, 0.0039),), (), (), program_seconds=0.008)
    trace = Trace({0: TracedWorker(Process(0, 0, 0, 0.0, 0.0), steps=[long])})
    assert path(trace, {(0, 1): {0: long}}, (0, 1)) == "worker 0 computes for 4 ms"


def test_no_trace_says_nothing(tmp_path: Path) -> None:
    assert not read_trace(tmp_path)
    assert diagnose(on_one_clock(read_trace(tmp_path))) is None


def test_the_chrome_trace_is_what_viewers_read(tmp_path: Path) -> None:
    """Slices of a row nest or follow each other, what is begun is ended, and every process has a name."""
    worker(tmp_path, 0)
    worker(tmp_path, 1, base=50 + AHEAD)
    path = tmp_path / "trace.json"
    count = write_chrome_trace(on_one_clock(read_trace(tmp_path)), path)
    events = json.loads(path.read_text())["traceEvents"]
    assert len(events) == count
    check_chrome(events)
    kinds = Counter(event["cat"] for event in events if "cat" in event)
    assert kinds["gradient"] == 2 * 2 * STEPS
    assert kinds["bucket"] == 2 * 2 * STEPS
    (tmp_path / "trace-7.jsonl").mkdir()
    with pytest.raises(HybridPSError, match="cannot be read"):
        read_trace(tmp_path)


def check_chrome(events: list[dict]) -> None:
    assert {event["ph"] for event in events} <= {"M", "X", "b", "e"}
    named = {event["pid"] for event in events if event["name"] == "process_name"}
    assert {event["pid"] for event in events} == named
    rows: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events:
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"], -event["dur"]))
    for row in rows.values():
        ends: list[int] = []
        for began, minus in sorted(row):
            while ends and ends[-1] <= began:
                ends.pop()
            assert not ends or began - minus <= ends[-1]
            ends.append(began - minus)
    open_ = Counter()
    for event in events:
        if event["ph"] in "be":
            open_[event["pid"], event["id2"]["local"]] += 1 if event["ph"] == "b" else -1
    assert not any(open_.values())


def test_a_trace_replays_in_the_oracle(tmp_path: Path) -> None:
    worker(tmp_path, 0)
    write_chrome_trace(on_one_clock(read_trace(tmp_path)), tmp_path / "trace.json")
    layers = recorded_layers(read_chrome_trace(tmp_path / "trace.json"), "it")
    assert layers == recorded_layers(chrome_events(on_one_clock(read_trace(tmp_path))), "it")
    assert [(layer.name, layer.gradient_bytes) for layer in layers] == [("first", 2800), ("second", 1200)]
    assert [layer.backward_seconds for layer in layers] == pytest.approx([200e-6, 0.0])
    bucket = 290e-6 + 90e-6  # of 4000 bytes
    assert [layer.allreduce_seconds for layer in layers] == pytest.approx([0.7 * bucket, 0.3 * bucket])
    found = replay(layers)
    assert found.naive_ms == pytest.approx(0.2 + 1e3 * bucket)
    with pytest.raises(OracleError, match="it has no step with gradients"):
        recorded_layers([], "it")
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(OracleError, match="is not a trace of"):
        read_chrome_trace(tmp_path / "other.json")
