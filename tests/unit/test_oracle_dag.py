"""Schedules of an iteration: against the recurrences of the papers, and by what must hold for any schedule."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hybridps.errors import OracleError
from hybridps.oracle.machines import Line, fit_cost, fit_line
from hybridps.oracle.output.timeline import chrome_trace, plot_schedules
from hybridps.oracle.ssgd.dag import (
    COMMUNICATION,
    COMPUTE,
    VARIANTS,
    Iteration,
    Layer,
    exposed_communication_seconds,
    iteration_seconds,
    place,
)
from hybridps.oracle.ssgd.merge import Message, all_in_one, buckets, merge_gradients
from hybridps.oracle.ssgd.schedule import Task, end_seconds, exposed_seconds, schedule

NEAR = 1e-9
# Multiples of powers of two: their sums are exact, so that in any order of adding a tie stays a tie.
times = st.integers(0, 10 * 2**10).map(lambda number: number / 2**10)
rates = st.integers(0, 10**4).map(lambda number: number / 2**30)
layers = st.lists(
    st.builds(
        Layer,
        name=st.just("layer"),
        backward_seconds=times,
        forward_seconds=times,
        update_seconds=times,
        gradient_bytes=st.sampled_from([0, 4, 100, 4096, 10**6]),
    ),
    min_size=1,
    max_size=8,
)
links = st.builds(Line, start_seconds=times, seconds_per_unit=rates)


def wait_free_end(backward: Sequence[float], communication: Sequence[float]) -> float:
    """tau_c(1) + t_c(1) of the paper; 1-based there, lists from the first layer on here."""
    ready, end = 0.0, 0.0
    for t_b, t_c in zip(reversed(backward), reversed(communication), strict=True):
        ready += t_b
        end = max(end, ready) + t_c
    return end


def merged_as_published(backward: Sequence[float], sizes: Sequence[float], link: Line) -> tuple[float, int]:
    """MG-WFBP as its paper writes it, all start times computed again after each merge: end, number of messages."""
    count = len(backward)
    begin = [sum(backward[layer + 1 :]) for layer in range(count)]
    sizes = list(sizes)

    def starts(cost: Sequence[float]) -> list[float]:
        tau = [0.0] * count
        tau[-1] = begin[-1] + backward[-1]
        for layer in reversed(range(count - 1)):
            tau[layer] = max(tau[layer + 1] + cost[layer + 1], begin[layer] + backward[layer])
        return tau

    cost = [link(size) for size in sizes]
    tau = starts(cost)
    for layer in range(count - 1, 0, -1):
        if begin[layer - 1] + backward[layer - 1] - tau[layer] < link.start_seconds:
            sizes[layer - 1] += sizes[layer]
            sizes[layer], cost[layer] = 0, 0.0
            cost[layer - 1] = link(sizes[layer - 1])
            tau = starts(cost)
    return tau[0] + cost[0], sum(size > 0 for size in sizes)


def each_alone(sizes: Sequence[float], link: Line) -> list[Message]:
    """One message per layer, last layer first (wait-free backpropagation)."""
    return [Message((layer,), link(size)) for layer, size in reversed(list(enumerate(sizes))) if size]


def sizes_of(network: Sequence[Layer]) -> list[float]:
    return [layer.gradient_bytes for layer in network]


@settings(deadline=None)
@given(layers, links, times, times)
def test_the_closed_forms(network: list[Layer], link: Line, io: float, copy: float) -> None:
    messages = each_alone(sizes_of(network), link)
    iteration = Iteration(network, messages, io, copy)
    forward, backward, update = (
        [getattr(layer, f"{name}_seconds") for layer in network] for name in ("forward", "backward", "update")
    )
    computing = sum(forward) + sum(backward) + sum(update)
    communicating = sum(message.seconds for message in messages)
    exposed = wait_free_end(backward, [link(size) if size else 0.0 for size in sizes_of(network)]) - sum(backward)
    assert iteration_seconds(iteration, "naive") == pytest.approx(io + copy + computing + communicating, abs=NEAR)
    expected = max(io + copy, computing + communicating)
    assert iteration_seconds(iteration, "io_overlapped") == pytest.approx(expected, abs=NEAR)
    assert iteration_seconds(iteration, "wait_free") == pytest.approx(max(io + copy, computing + exposed), abs=NEAR)
    assert exposed_communication_seconds(iteration, "wait_free") == pytest.approx(exposed, abs=NEAR)
    assert exposed_communication_seconds(iteration, "naive") == pytest.approx(communicating, abs=NEAR)


@settings(deadline=None)
@given(layers, links)
@example([Layer("layer", 1.0, gradient_bytes=4)] * 2, Line(1.0, 0.0))  # a tie: not merged
def test_merging_is_the_published_one(network: list[Layer], link: Line) -> None:
    network = [layer for layer in network if layer.gradient_bytes] or [Layer("one", 1.0, gradient_bytes=4)]
    backward = [layer.backward_seconds for layer in network]
    messages = merge_gradients(backward, sizes_of(network), link.start_seconds, link)
    bare = [Layer(layer.name, layer.backward_seconds) for layer in network]
    end = end_seconds(place(Iteration(bare, messages), "wait_free"))
    expected, count = merged_as_published(backward, sizes_of(network), link)
    assert (end, len(messages)) == (expected, count)


@settings(deadline=None)
@given(layers, links, st.integers(40, 4000))
def test_every_gradient_is_sent_once_last_layers_first(network: list[Layer], link: Line, lines: int) -> None:
    sizes = sizes_of(network)
    sending = [layer for layer, size in enumerate(sizes) if size]
    backward = [layer.backward_seconds for layer in network]
    merged = merge_gradients(backward, sizes, link.start_seconds, link)
    assert [layer for message in merged for layer in reversed(message.layers)] == sending[::-1]
    assert [message.layers for message in all_in_one(sizes, link)] == ([tuple(sending)] if sending else [])
    lengths = buckets(sizes, 64 * lines, cost=float)
    assert sum(message.seconds for message in lengths) == sum(-(-size // 64) * 64 for size in sizes)
    assert {layer for message in lengths for layer in message.layers} == set(sending)
    assert [message.layers[0] for message in lengths] == sorted((m.layers[0] for m in lengths), reverse=True)


@settings(deadline=None, max_examples=40)
@given(layers, links, times)
def test_a_schedule_keeps_to_the_graph(network: list[Layer], link: Line, io: float) -> None:
    iteration = Iteration(network, buckets(sizes_of(network), 4096, link), io)
    for variant in VARIANTS:
        placed = place(iteration, variant, 2)
        for each in placed:
            assert all(placed[earlier].end_seconds <= each.start_seconds for earlier in each.task.after)
        for resource in (COMPUTE, COMMUNICATION):
            own = sorted((p.start_seconds, p.end_seconds) for p in placed if p.task.resource == resource)
            assert all(stop <= start for (_, stop), (start, _) in zip(own, own[1:], strict=False))


@settings(deadline=None, max_examples=40)
@given(layers, links, times)
def test_more_overlap_is_never_slower(network: list[Layer], link: Line, io: float) -> None:
    iteration = Iteration(network, buckets(sizes_of(network), 4096, link), io)
    seconds = [iteration_seconds(iteration, variant) for variant in VARIANTS]
    assert list(VARIANTS) == ["naive", "io_overlapped", "wait_free", "hybridps"]
    assert all(after <= before + NEAR for before, after in zip(seconds, seconds[1:], strict=False))


def test_hybridps_updates_a_layer_while_others_are_sent() -> None:
    network = [Layer("first", 1, forward_seconds=1, update_seconds=2), Layer("last", 1, update_seconds=3)]
    iteration = Iteration(network, [Message((1,), 2.0), Message((0,), 2.0)])
    # backward of last to 2, of first to 3; messages to 4 and to 6; updates of last 4..7, of first 7..9
    assert end_seconds(place(iteration, "hybridps")) == 9
    assert end_seconds(place(iteration, "wait_free")) == 6 + 2 + 3


def test_a_bucket_cuts_layers() -> None:
    assert [m.layers for m in buckets([100, 200, 50], 256, float)] == [(1, 2), (0, 1)]
    assert [m.seconds for m in buckets([100, 200, 50], 256, float)] == [192, 256]
    assert buckets([0, 0], 256, float) == []


def test_a_free_resource_takes_the_first_ready_task() -> None:
    tasks = [Task("long", "a", 5), Task("late", "b", 1, (0,)), Task("early", "b", 3), Task("next", "b", 3)]
    assert [each.start_seconds for each in schedule(tasks)] == [0, 6, 0, 3]
    assert exposed_seconds(schedule(tasks), "b", behind="a") == 2
    assert schedule([]) == []


def test_an_unknown_variant_names_the_known_ones() -> None:
    with pytest.raises(OracleError, match="'eager' is unknown: use one of naive, io_overlapped"):
        place(Iteration([Layer("a", 1)], []), "eager")


def test_lines() -> None:
    line = fit_line([1, 2, 4], [3, 5, 9])
    assert (line.start_seconds, line.seconds_per_unit, line.residual) == pytest.approx((1, 2, 0))
    assert line(10) == pytest.approx(21)
    skewed = [1.0, 2.0, 1000.0], [1.1, 1.9, 1500.0]
    assert fit_line(*skewed, relative=True).residual < fit_line(*skewed).residual
    with pytest.raises(OracleError, match="2 points with 1 different sizes"):
        fit_line([4, 4], [1, 2])


def test_the_cost_of_messages_is_never_negative():
    assert fit_cost([1, 2, 4], [3, 5, 9]) == fit_line([1, 2, 4], [3, 5, 9])
    for seconds in ([1, 4, 16], [5, 4, 3]):
        assert fit_cost([1, 2, 4], seconds) == Line(0.0, sum(seconds) / 7)


def test_chrome_trace_and_plot(tmp_path: Path) -> None:
    network = [Layer("a", 1e-3, 2e-3, 1e-3, 4096), Layer("b", 1e-3, 2e-3, 1e-3, 4096)]
    placed = place(Iteration(network, each_alone([4096, 4096], Line(1e-3, 0)), 5e-3), "wait_free")
    trace = json.loads(json.dumps(chrome_trace({"one": placed, "two": placed})))
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(spans) == 2 * (1 + 2 * 3 + 2)
    for event in spans:
        (match,) = [each for each in placed if each.task.name == event["name"]]
        assert (event["ts"], event["dur"]) == pytest.approx((1e6 * match.start_seconds, 1e6 * match.task.seconds))
    pytest.importorskip("matplotlib")
    plot_schedules({"one": placed}, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
