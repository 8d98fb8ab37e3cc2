"""The server tier, hybrids of groups and servers, and the search."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridps.errors import OracleError
from hybridps.oracle.hybrid import constraints_of, plan
from hybridps.oracle.hybrid.ps_tier import (
    PLACEMENTS,
    Tier,
    exchange_seconds,
    placement_bytes_per_second,
    server_busy_seconds,
)
from hybridps.oracle.hybrid.schemes import (
    ALGORITHMS,
    Scheme,
    broadcast_seconds,
    predict_scheme,
    step,
)
from hybridps.oracle.hybrid.search import Constraints
from hybridps.oracle.machines import ABCI, Link
from hybridps.oracle.networks import built_in
from hybridps.oracle.output.plots import plot
from hybridps.oracle.output.tables import plan_table, predictions_table
from hybridps.oracle.paradl import Work, predict

HUGE = msgspec.structs.replace(ABCI, memory_bytes=1e18, max_pes=None)
WORK = Work(built_in("resnet50"), HUGE)
LINK = Link(1e-5, 1e-9)


@pytest.mark.parametrize(
    ("rate", "gigabits"),
    [
        pytest.param(11.0e9, [1232, 308, 1408, 176], id="AlexNet"),
        pytest.param(0.3585e9, [40, 10, 46, 6], id="GoogleNet"),
        pytest.param(0.3913e9, [44, 11, 50, 6], id="Inception"),
        pytest.param(1.0919e9, [122, 31, 140, 17], id="ResNet-269"),
    ],
)
def test_placements_of_phub(rate: float, gigabits: list[int]) -> None:
    """M / T is inferred: the middle of what all four published numbers of a network leave (docs/oracle.md)."""
    found = [8e-9 * placement_bytes_per_second(placement, 3 * rate, 3.0, 8) for placement in PLACEMENTS]
    assert [round(value) for value in found] == gigabits


def test_placements_of_one_worker_need_nothing_where_it_is_the_server() -> None:
    assert [placement_bytes_per_second(placement, 1e6, 1.0, 1) for placement in PLACEMENTS] == [0, 0, 2e6, 2e6]
    with pytest.raises(OracleError, match="unknown placement 'here': use one of colocated centralised"):
        placement_bytes_per_second("here", 1e6, 1.0, 1)
    with pytest.raises(OracleError, match="0 workers"):
        placement_bytes_per_second(PLACEMENTS[0], 1e6, 1.0, 0)


def test_one_chunk_is_a_round_trip() -> None:
    seconds = exchange_seconds(HUGE, LINK, Tier(chunk_bytes=10**9), 1, 1e6)
    assert seconds == pytest.approx(2 * (1e-5 + 1e-3) + 2 * 1e-3)


@given(st.integers(1, 64), st.integers(1, 16), st.integers(10, 24), st.floats(1e5, 1e9))
def test_an_exchange_takes_at_least_what_its_slowest_part_does(
    clients: int, servers: int, chunk_power: int, model_bytes: float
) -> None:
    tier = Tier(servers, 1 << chunk_power)
    seconds = exchange_seconds(HUGE, LINK, tier, clients, model_bytes)
    busy = server_busy_seconds(HUGE, LINK, tier, clients, model_bytes)
    assert seconds >= max(model_bytes * LINK.seconds_per_byte, busy)
    assert seconds >= exchange_seconds(HUGE, LINK, Tier(2 * servers, 1 << chunk_power), clients, model_bytes) * (
        1 - 1e-9
    )
    shared = exchange_seconds(HUGE, LINK, Tier(servers, 1 << chunk_power, tenants=2), clients, model_bytes)
    assert seconds <= shared * (1 + 1e-9)


def test_chunks_have_a_best_size() -> None:
    machine = msgspec.structs.replace(HUGE, server_message_seconds=1e-6)
    sizes = 2 ** np.arange(8, 28)
    seconds = exchange_seconds(machine, LINK, Tier(2, sizes), 4, 1e8)
    assert 0 < int(np.argmin(seconds)) < len(sizes) - 1


def test_kernels_of_the_server_limit() -> None:
    slow = msgspec.structs.replace(HUGE, aggregate_bytes_per_second=1e6)
    assert exchange_seconds(slow, LINK, Tier(), 4, 1e7) >= 4 * 1e7 / 1e6


def test_racks_send_less_across() -> None:
    """Cross-rack traffic of a box is that of an allreduce of R, instead of that of all its workers."""
    flat, racks = (exchange_seconds(HUGE, LINK, Tier(racks=count), 32, 1e9) for count in (1, 4))
    assert racks < flat
    across = exchange_seconds(HUGE, LINK, Tier(racks=4), 32, 1e9) - exchange_seconds(HUGE, LINK, Tier(), 8, 1e9)
    assert across == pytest.approx(2 * 3 * (1e-5 + 1e9 / 4 * 1e-9))


@given(st.integers(1, 2048), st.integers(2048, 65536))
def test_one_group_is_data_parallel(pes: int, batch: int) -> None:
    data = predict(WORK, "data", pes, batch).prediction
    for algorithm in ALGORITHMS:
        one = predict_scheme(WORK, Scheme(algorithm), pes, batch).prediction
        assert one.compute_seconds_per_epoch == pytest.approx(data.compute_seconds_per_epoch)
        assert one.communication_seconds_per_epoch == pytest.approx(data.communication_seconds_per_epoch)
        assert one.memory_bytes_per_pe == pytest.approx(data.memory_bytes_per_pe)


@given(st.sampled_from(["elastic", "gossip", "adaptive"]), st.sampled_from([2, 8, 64]), st.integers(1, 64))
def test_a_longer_period_costs_less(algorithm: str, groups: int, tau: int) -> None:
    shorter, longer = (step(WORK, Scheme(algorithm, groups, each), 64, 4096) for each in (tau, 2 * tau))
    assert longer.across_seconds == pytest.approx(shorter.across_seconds / 2, rel=1e-9) or (
        algorithm == "elastic" and longer.across_seconds < shorter.across_seconds
    )
    assert longer.group_seconds == shorter.group_seconds


def test_async_groups_share_the_servers() -> None:
    """With enough groups a step takes what the servers need for all of them."""
    machine = msgspec.structs.replace(HUGE, server_bandwidth_bytes_per_second=1e9)
    work = Work(WORK.network, machine)
    one = step(work, Scheme("async", 1024), 1024, 1024)
    needed = server_busy_seconds(machine, machine.link(1024), Tier(), 1024, work.weight_bytes)
    assert one.seconds == pytest.approx(needed)


def test_adaptive_traffic_is_a_part_of_that_of_gossip() -> None:
    full, part = Scheme("gossip", 8, 4), Scheme("adaptive", 8, 4, traffic=0.08)
    ratio = step(WORK, part, 8, 64).across_seconds / step(WORK, full, 8, 64).across_seconds
    assert ratio == pytest.approx(0.08)


def test_a_broadcast_to_oneself_is_free() -> None:
    assert broadcast_seconds(LINK, 1, 1e9) == 0
    assert broadcast_seconds(LINK, 2, 1e6) == pytest.approx(2 * 1e-5 + 1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Scheme("dist"), "unknown algorithm 'dist': use one of sync"),
        (lambda: Scheme("sync", 0), "groups=0"),
        (lambda: Scheme("elastic", 2, 0), "tau=0"),
        (lambda: Scheme("adaptive", 2, traffic=1.5), "traffic=1.5"),
        (lambda: Tier(servers=0), "servers=0"),
        (lambda: predict_scheme(WORK, Scheme("sync"), 0, 8), "pes=0"),
        (lambda: constraints_of(["data", "tree"]), "unknown strategy 'tree'"),
    ],
)
def test_numbers_that_cannot_be_are_refused(make, message: str) -> None:
    with pytest.raises(OracleError, match=message):
        make()


def test_more_groups_than_workers_is_a_limit() -> None:
    assert predict_scheme(WORK, Scheme("sync", 8), 4, 64).prediction.limits == ("groups: 8 > 4 workers",)


def test_the_plan_is_the_best_of_its_choices() -> None:
    found = plan(WORK, 4096, [1, 16, 256])
    for choice in found.choices:
        data = predict(WORK, "data", choice.pes, 4096).prediction
        assert choice.seconds_per_epoch <= data.seconds_per_epoch
        assert 0 < choice.efficiency <= 1 + 1e-9
    assert found.best.pes == 256
    assert found.choices[0].efficiency == pytest.approx(1)


def test_the_plan_compares_a_hundred_thousand_configurations_up_to_a_hundred_thousand_elements() -> None:
    found = plan(WORK, 1 << 17, [2**power for power in range(17)] + [100_000], Constraints(algorithms=ALGORITHMS))
    assert found.configurations > 100_000
    assert {choice.pes for choice in found.choices} >= {100_000}


def test_what_stops_doubling_is_named() -> None:
    only_data = constraints_of(["data"])
    (choice,) = plan(WORK, 64, [64], only_data).choices
    assert choice.doubling_speedup is None
    assert choice.stopped_by == ("pes: 128 > 64, the global batch",)
    slow = Work(built_in("vgg16"), HUGE)
    (choice,) = plan(slow, 4096, [1024], only_data).choices
    assert choice.doubling_speedup is not None
    assert choice.doubling_speedup < 1
    assert choice.stopped_by[0].startswith("gradient exchange (inherent")


def test_nothing_feasible_says_why() -> None:
    work = Work(WORK.network, msgspec.structs.replace(ABCI, memory_bytes=1e6))
    with pytest.raises(OracleError, match="nothing is feasible with 8 to 8 PEs: data: memory"):
        plan(work, 64, [8], constraints_of(["data"]))


def test_of_equals_the_tightest_is_chosen() -> None:
    """With free communication nothing is gained by a longer period or by more servers."""
    level = msgspec.structs.replace(ABCI.levels[0], pes=None, latency_seconds=0.0, bandwidth_bytes_per_second=1e30)
    work = Work(WORK.network, msgspec.structs.replace(HUGE, levels=(level,)))
    (choice,) = plan(work, 64, [8], constraints_of(["elastic"])).choices
    assert (choice.tau, choice.groups) == (1, 1)


def test_answers_are_written(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    answers = [predict(WORK, name, pes, 64) for name in ("data", "filter") for pes in (4, 128)]
    lines = json.loads(msgspec.json.encode([one.prediction for one in answers]))
    assert [line["feasible"] for line in lines] == [True, False, True, False]
    assert set(lines[0]) == {
        "network",
        "strategy",
        "pes",
        "global_batch",
        "compute_seconds_per_epoch",
        "communication_seconds_per_epoch",
        "memory_bytes_per_pe",
        "feasible",
        "limits",
    }
    assert predictions_table(answers).row_count == 4
    plot(WORK, answers, tmp_path / "answers.png")
    assert (tmp_path / "answers.png").read_bytes().startswith(b"\x89PNG")
    found = plan(WORK, 64, [4, 8])
    assert json.loads(msgspec.json.encode(found))["best"]["pes"] == found.best.pes
    assert plan_table(found).row_count == 2
