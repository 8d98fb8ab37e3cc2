"""Limits and identities of the ParaDL strategies."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridps.errors import OracleError
from hybridps.oracle.machines import ABCI, Level, Link, Machine
from hybridps.oracle.networks import NETWORKS, Layer, Network, built_in
from hybridps.oracle.paradl import PAPER, predict
from hybridps.oracle.paradl.answers import PUBLISHED
from hybridps.oracle.paradl.pipeline import largest_of_parts
from hybridps.oracle.paradl.work import Work, halo_items

HUGE = msgspec.structs.replace(ABCI, memory_bytes=1e18, max_pes=None)
WORKS = {name: Work(built_in(name), HUGE) for name in NETWORKS}
NAMES = st.sampled_from(sorted(WORKS))
BATCHES = st.integers(1, 4096)
PES = st.integers(2, 4096)


def free(work: Work) -> Work:
    """The same network where communication costs nothing."""
    level = Level(name="none", latency_seconds=0.0, bandwidth_bytes_per_second=float("inf"))
    return Work(work.network, msgspec.structs.replace(HUGE, levels=(level,)))


@given(NAMES, BATCHES, st.sampled_from(sorted(PAPER)))
def test_one_element_is_serial(name: str, batch: int, strategy: str) -> None:
    alone = predict(WORKS[name], "serial", 1, batch).prediction
    one = predict(WORKS[name], strategy, 1, batch).prediction
    assert one.compute_seconds_per_epoch == pytest.approx(alone.compute_seconds_per_epoch)
    assert one.communication_seconds_per_epoch == 0
    assert one.memory_bytes_per_pe == pytest.approx(alone.memory_bytes_per_pe)
    assert one.feasible


@given(NAMES, BATCHES, PES)
def test_without_updates_ideal_strategies_divide_compute(name: str, batch: int, pes: int) -> None:
    work = free(WORKS[name])
    passes = work.network.samples * work.passes_seconds / pes
    for strategy in ("data", "spatial", "filter", "channel"):
        answer = predict(work, strategy, pes, batch)
        assert answer.costs.passes_seconds == pytest.approx(passes)
        assert answer.prediction.communication_seconds_per_epoch == 0


@given(NAMES, BATCHES, PES, st.integers(1, 64))
def test_a_pipeline_is_never_faster_than_its_parts(name: str, batch: int, pes: int, segments: int) -> None:
    work = WORKS[name]
    answer = predict(work, "layer", pes, batch, segments=segments)
    assert answer.costs.passes_seconds >= work.network.samples * work.passes_seconds / pes * (1 - 1e-9)
    assert answer.costs.idle_seconds >= -1e-9 * answer.costs.passes_seconds


@given(NAMES, st.integers(1, 40), BATCHES)
def test_no_cut_into_parts_is_longer_than_all_layers_or_shorter_than_their_share(
    name: str, parts: int, batch: int
) -> None:
    work = WORKS[name]
    seconds = work.times.forward_seconds + work.times.backward_seconds
    largest = largest_of_parts(work, parts, batch)
    longest = largest.forward_seconds + largest.backward_seconds
    assert max(seconds.max(), seconds.sum() / parts) <= longest * (1 + 1e-9)
    assert longest <= seconds.sum() / parts + seconds.max() + 1e-12


@given(NAMES, BATCHES, st.sampled_from([8, 64, 512]), st.sampled_from(["data+filter", "data+spatial"]))
def test_a_hybrid_on_nodes_of_one_is_data(name: str, batch: int, pes: int, strategy: str) -> None:
    work = Work(WORKS[name].network, msgspec.structs.replace(HUGE, pes_per_node=1))
    hybrid, data = (predict(work, which, pes, batch).prediction for which in (strategy, "data"))
    assert hybrid.compute_seconds_per_epoch == pytest.approx(data.compute_seconds_per_epoch)
    assert hybrid.memory_bytes_per_pe == pytest.approx(data.memory_bytes_per_pe)
    assert hybrid.communication_seconds_per_epoch == pytest.approx(data.communication_seconds_per_epoch)


def test_a_hybrid_on_one_node_is_filter() -> None:
    work = WORKS["vgg16"]
    hybrid, alone = (predict(work, which, 4, 64).prediction for which in ("data+filter", "filter"))
    assert hybrid.communication_seconds_per_epoch == pytest.approx(alone.communication_seconds_per_epoch)
    assert hybrid.memory_bytes_per_pe == pytest.approx(alone.memory_bytes_per_pe)


def toy(*, machine: Machine = HUGE, mask: tuple[bool, ...] | None = None) -> Work:
    """Two convolutions and a classifier whose costs can be counted by hand."""
    layers = (
        Layer(name="CONV1", kind="CONV", input=(3, 10, 6), weight=(3, 8, 3, 3), output=(8, 10, 6), forward_seconds=1.0),
        Layer(name="CONV2", kind="CONV", input=(8, 10, 6), weight=(8, 4, 5, 5), output=(4, 10, 6), forward_seconds=2.0),
        Layer(name="FC", kind="FC", input=(4, 10, 6), weight=(4, 10, 10, 6), output=(10,), forward_seconds=0.5),
    )
    layers = tuple(msgspec.structs.replace(layer, backward_seconds=2.0, update_seconds=0.25) for layer in layers)
    return Work(Network(name="toy", samples=1000, layers=layers), machine, mask)


WEIGHTS = 3 * 8 * 9 + 8 * 4 * 25 + 4 * 10 * 60
A, B = ABCI.link(4)


def test_serial_by_hand() -> None:
    one = predict(toy(), "serial", 1, 10).prediction
    assert one.compute_seconds_per_epoch == 1000 * (3.5 + 6) + 100 * 0.75
    activations = (180 + 480) + (480 + 240) + (240 + 10)
    assert one.memory_bytes_per_pe == 2 * 4 * (10 * activations + WEIGHTS)


def test_data_by_hand() -> None:
    one = predict(toy(), "data", 4, 10).prediction
    assert one.compute_seconds_per_epoch == 1000 / 4 * 9.5 + 100 * 0.75
    assert one.communication_seconds_per_epoch == pytest.approx(2 * 100 * 3 * (A + WEIGHTS * 4 * B / 4))


def test_filter_by_hand() -> None:
    one = predict(toy(), "filter", 4, 10).prediction
    assert one.compute_seconds_per_epoch == pytest.approx(1000 / 4 * 9.5 + 100 / 4 * 0.75)
    gathered = 2 * A + 10 * (480 + 240) * 4 * B / 4
    assert one.communication_seconds_per_epoch == pytest.approx(3 * 100 * 3 * gathered)


def test_filter_of_one_layer_by_hand() -> None:
    one = predict(toy(mask=(False, True, False)), "filter", 4, 10).prediction
    assert one.compute_seconds_per_epoch == pytest.approx(1000 * (4 / 4 + 5.5) + 100 * (0.25 / 4 + 0.5))
    assert one.communication_seconds_per_epoch == pytest.approx(3 * 100 * 3 * (A + 10 * 240 * 4 * B / 4))


def test_spatial_by_hand() -> None:
    work = toy()
    assert [halo_items(layer) for layer in work.network.layers[:2]] == [(3 * 6, 8 * 6), (2 * 8 * 6, 2 * 4 * 6)]
    one = predict(work, "spatial", 4, 10).prediction
    halos = 2 * (2 * A + 10 * (18 + 48) * 4 * B) + 2 * (2 * A + 10 * (96 + 48) * 4 * B)
    gradients = 2 * 3 * (A + WEIGHTS * 4 * B / 4)
    assert one.communication_seconds_per_epoch == pytest.approx(100 * (gradients + halos))


def test_pipeline_by_hand() -> None:
    one = predict(toy(), "layer", 3, 10, segments=5).prediction
    assert one.compute_seconds_per_epoch == pytest.approx(1000 * 7 / 5 * (2 + 2) + 100 * 0.25)
    assert one.communication_seconds_per_epoch == pytest.approx(2 * 1000 * 6 / 10 * (A + 10 / 5 * 480 * 4 * B))
    assert one.memory_bytes_per_pe == 2 * 4 * max(10 * 660 + 216, 10 * 720 + 800, 10 * 250 + 2400)


@pytest.mark.parametrize(
    ("strategy", "most", "limit"),
    [
        ("serial", 1, "a serial run"),
        ("data", 10, "the global batch"),
        ("spatial", 60, "the smallest width times height of a split layer"),
        ("layer", 3, "the number of layers"),
        ("filter", 4, "the smallest number of filters of a split layer"),
        ("channel", 4, "the smallest number of channels of a split layer but the first"),
        ("data+filter", 40, "nodes, by the global batch"),
        ("data+spatial", 40, "nodes, by the global batch"),
    ],
)
def test_a_limit_is_named_and_exact(strategy: str, most: int, limit: str) -> None:
    assert predict(toy(), strategy, most, 10).prediction.feasible
    beyond = predict(toy(), strategy, most + 4, 10).prediction
    assert not beyond.feasible
    assert any(limit in text for text in beyond.limits), beyond.limits


def test_memory_and_the_size_of_the_machine_are_limits() -> None:
    machine = msgspec.structs.replace(ABCI, memory_bytes=1e4, max_pes=2)
    limits = predict(toy(machine=machine), "data", 4, 10).prediction.limits
    assert [limit.split(":")[0] for limit in limits] == ["memory", "pes"]


def test_a_hybrid_needs_whole_nodes() -> None:
    assert "not a multiple of the 4" in predict(toy(), "data+filter", 6, 10).prediction.limits[0]


def test_contention_is_congestion() -> None:
    calm, crowded = (
        predict(toy(machine=msgspec.structs.replace(HUGE, contention=value)), "data+filter", 8, 10)
        for value in (None, 3.0)
    )
    assert calm.costs.communication_seconds["congestion"] == 0
    gained = crowded.prediction.communication_seconds_per_epoch - calm.prediction.communication_seconds_per_epoch
    assert gained == pytest.approx(crowded.costs.communication_seconds["congestion"])


def test_bottlenecks_are_named() -> None:
    names = [found.name for found in predict(WORKS["resnet50"], "filter", 64, 64).bottlenecks()]
    assert names == ["memory redundancy", "layer-wise collectives"]
    assert [found.kind for found in predict(WORKS["alexnet"], "data", 1024, 1024).bottlenecks()] == ["inherent"] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("dta", 4, 8), "unknown strategy 'dta': use one of serial, data"),
        (("data", 0, 8), "pes=0"),
        (("data", 4, -8), "batch=-8"),
    ],
)
def test_questions_that_cannot_be_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(OracleError, match=message):
        predict(toy(), *arguments)


def test_what_the_program_does_not_compute_is_refused() -> None:
    with pytest.raises(OracleError, match="no 'layer': use variant paper"):
        predict(toy(), "pipeline", 2, 8, variant="code")
    with pytest.raises(OracleError, match="unknown variant 'draft': use one of paper, code"):
        predict(toy(), "data", 2, 8, variant="draft")


def test_the_program_by_hand() -> None:
    """Data+filter of 2 nodes of 4: whole iterations, time by operations, convolutions split, 8 flows on a link."""
    operations = [2 * 2 * 216 * 60 + 216, 2 * 2 * 800 * 60 + 800, 2 * 2400 + 2400]
    answer = predict(toy(), "data+filter", 8, 12, variant="code")
    iterations, micro = 84, 6
    share = ((operations[0] + operations[1]) / 4 + operations[2]) / sum(operations)
    assert answer.prediction.compute_seconds_per_epoch == pytest.approx(iterations * micro * 9.5 * share)
    a, b = ABCI.link(8)
    layerwise = 3 * 3 * (2 * A + micro * 720 * 4 * B / 4)
    gradients = 2 * (a + WEIGHTS * 4 * b * 8 / 2)
    assert answer.prediction.communication_seconds_per_epoch == pytest.approx(iterations * (layerwise + gradients))
    items = micro * (660 + 720 + 250) + 1016 / 4 + 2400
    assert answer.prediction.memory_bytes_per_pe == pytest.approx(2 * 4 * items)


@given(st.sampled_from(sorted(set(PUBLISHED) - {"serial"})), NAMES, st.sampled_from([64, 256]))
def test_the_program_costs_nothing_to_communicate_where_messages_do(strategy: str, name: str, batch: int) -> None:
    work = free(WORKS[name])
    free_levels = (msgspec.structs.replace(work.machine.levels[0], pes=4), work.machine.levels[0])
    work = Work(work.network, msgspec.structs.replace(work.machine, levels=free_levels, staging=None, latency_plx_us=0))
    pes = 4 if strategy == "spatial" else 16
    assert predict(work, strategy, pes, batch, variant="code").prediction.communication_seconds_per_epoch == 0


@given(st.integers(1, 10**5), st.floats(0, 1e12))
def test_collectives(pes: int, message_bytes: float) -> None:
    link = Link(1e-6, 1e-9)
    two_passes = 2 * link.allgather_seconds(pes, message_bytes / pes)
    assert link.allreduce_seconds(pes, message_bytes) == pytest.approx(two_passes)
    assert link.allreduce_seconds(1, message_bytes) == 0
