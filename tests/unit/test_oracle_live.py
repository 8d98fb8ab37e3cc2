"""Predictions for runs from a calibration, and what events say of a run."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridps.algorithms import KNOWN
from hybridps.calibrate.runs import describe, measure
from hybridps.errors import OracleError
from hybridps.events import AlgorithmChosen, Communicated, Configured, EventLog, Exchanged, Planned
from hybridps.oracle.machines import Line, machine_of
from hybridps.oracle.machines.calibration import (
    Calibration,
    Communication,
    Layers,
    Operation,
    Pass,
    Steps,
    machine_measured,
    read_calibration,
    write_calibration,
)
from hybridps.oracle.networks import Layer, Network
from hybridps.oracle.ssgd.live import Phases, Run, compare, messages, predict, stretched_layers

LAYER = Layer(name="one", kind="FC", input=(8,), output=(8,), weight=(8, 8), forward_seconds=1.0, backward_seconds=3.0)
NETWORK = Network(
    name="small",
    samples=10,
    layers=(
        LAYER,
        Layer(name="relu", kind="RELU", input=(8,), output=(8,), forward_seconds=1.0, backward_seconds=1.0),
        msgspec.structs.replace(LAYER, name="two", vector_items=16, after=(1,), backward_seconds=2.0),
    ),
)
ITEMS = 64 + 80


def calibration(loss: float = 1.0, seconds_per_byte: float = 0.01, groups: int = 2) -> Calibration:
    operation = Operation(Line(0.0, seconds_per_byte), loss)
    return Calibration(
        cores=2,
        hosts="",
        steps=(Steps(1, Line(1.0, 1.0), Line(0.1, 0.0)), Steps(2, Line(2.0, 1.0), Line(0.2, 0.0))),
        communications=(Communication(2, 1, operation), Communication(2, groups, operation, operation)),
        layers=Layers(NETWORK, batch_size=4, whole=Pass(4.0, 12.0, 4.0), weight_items=ITEMS + 4),
        copy_bytes_per_second=1e9,
        add_bytes_per_second=1e9,
        matrix_flops=1e9,
        memory_bytes=16 * 10**9,
    )


def run(workers: int = 2, groups: int = 1, elastic: bool = False, tau: int = 4, bucket_bytes: int = 64) -> Run:
    return Run(workers, groups, batch_size=8, elastic=elastic, tau=tau, bucket_bytes=bucket_bytes)


def test_one_worker_only_computes() -> None:
    assert predict(calibration(), run(workers=1)) == Phases(9.0, 9.0, 0.1, 0.0, 0.0)


def test_the_measured_machine_takes_what_was_measured(tmp_path: Path) -> None:
    costs = {2: Line(1e-3, 1e-9), 4: Line(3e-3, 2e-9)}
    measured = [Communication(workers, 1, Operation(cost, 0.0)) for workers, cost in costs.items()]
    served = Communication(4, 2, Operation(Line(4e-3, 8e-9), 0.0))
    known = msgspec.structs.replace(calibration(), communications=(*measured, served))
    write_calibration(known, tmp_path)
    machine = machine_of(str(tmp_path / "machine.json"))
    for workers, cost in costs.items():
        assert machine.link(workers).allreduce_seconds(workers, 10**6) == pytest.approx(cost(10**6))
    assert machine.link(100) == machine.link(4)
    assert machine.memory_bytes == 8e9
    assert machine.server_bandwidth_bytes_per_second == pytest.approx(2 / 8e-9)
    assert machine.server_message_seconds == pytest.approx(2e-3)


def test_a_machine_needs_an_allreduce(tmp_path: Path) -> None:
    known = msgspec.structs.replace(calibration(), communications=())
    with pytest.raises(OracleError, match="--layouts 2x1"):
        machine_measured(known)
    write_calibration(known, tmp_path)
    assert not (tmp_path / "machine.json").exists()


def test_layers_are_stretched_to_the_step() -> None:
    layers = stretched_layers(calibration(), 10.0)
    assert sum(each.forward_seconds for each in layers) == pytest.approx(2.0)
    assert [each.backward_seconds for each in layers] == pytest.approx([3.0, 1.0, 2.0])
    assert [each.update_seconds for each in layers] == pytest.approx([2.0 * 64 / ITEMS, 0.0, 2.0 * 80 / ITEMS])
    assert [each.gradient_bytes for each in layers] == [4 * 64, 0, 4 * 80]


@settings(deadline=None)
@given(st.floats(0, 1), st.floats(0, 0.1), st.integers(1, 20))
def test_communication_is_hidden_behind_backward_as_far_as_it_leaves_it_cores(
    loss: float, seconds_per_byte: float, lines: int
) -> None:
    known = calibration(loss, seconds_per_byte)
    found = predict(known, run(bucket_bytes=64 * lines))
    total = 4 * ITEMS * seconds_per_byte
    assert found.step == pytest.approx(found.compute + found.exposed)
    assert found.communication == pytest.approx(total)
    assert 10.0 - 1e-9 <= found.step <= 10.0 + total + 1e-9
    if loss == 1.0:
        assert found.step == pytest.approx(10.0 + total)


def test_communication_that_needs_no_cores_overlaps() -> None:
    """The second layer's 80 items are sent while the first's backward runs, and the first's while it is updated."""
    found = predict(calibration(loss=0.0, seconds_per_byte=1e-3), run(bucket_bytes=256))
    last = sum(message.seconds for message in messages(calibration(0.0, 1e-3), run(bucket_bytes=256))[-1:])
    assert found.exposed == pytest.approx(last)
    assert found.step == pytest.approx(10.0)


def test_averaging_comes_every_tau_steps() -> None:
    known = calibration()
    weights = 4 * (ITEMS + 4) * 0.01
    for tau in (1, 4):
        found = predict(known, run(groups=2, elastic=True, tau=tau))
        assert found.step == pytest.approx(10.0 + weights / tau)
        assert found.communication == pytest.approx(weights / tau)
    often, seldom = (predict(calibration(0.5), run(groups=2, elastic=True, tau=tau)).step for tau in (1, 1000))
    assert 10.0 < seldom < often


def test_more_workers_than_were_measured() -> None:
    assert calibration().steps_of(6).step(8) == pytest.approx(3 * 10.0)
    with pytest.raises(OracleError, match="no steps of 2 copies were measured, only of 1"):
        msgspec.structs.replace(calibration(), steps=calibration().steps[:1]).steps_of(2)
    with pytest.raises(OracleError, match="4 workers in 2 groups were not measured, only 2 in 1, 2 in 2"):
        calibration().communication_of(4, 2)


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_calibration(calibration(), tmp_path / "here")
    assert read_calibration(tmp_path / "here") == calibration()
    with pytest.raises(OracleError, match="make it with `hybridps oracle calibrate`"):
        read_calibration(tmp_path / "nowhere")
    (tmp_path / "calibration.json").write_text("{}")
    with pytest.raises(OracleError, match="is not a calibration"):
        read_calibration(tmp_path)


def test_accuracy_is_that_of_the_paper() -> None:
    rows = compare(Phases(9.0, 8.0, 0.0, 2.0, 1.0), Phases(10.0, 8.0, 0.01, 1.0, 2.0))
    assert [row.accuracy for row in rows] == [pytest.approx(0.9), 1.0, None, 0.0, pytest.approx(0.5)]
    assert compare(Phases(3.0, 3.0, 0.0, 0.0, 0.0), Phases(1.0, 1.0, 0.0, 0.0, 0.0))[0].accuracy == pytest.approx(-1.0)
    assert [row.phase for row in rows] == ["step", "compute", "loader", "communication", "exposed"]


def write_run(folder: Path, elastic: bool, algorithm: str | None = None) -> None:
    kind = f"dist_hybridps_{'elastic' if elastic else 'sync'}"
    for worker in range(2):
        of_training = {"batch_size": 4, "workers": 2, "kvstore_type": kind, "network": "small"}
        lines = [{"event": "run", "first_epoch": 0, "settings": of_training}]
        for epoch, seconds in enumerate((90.0, 20.0, 40.0, 30.0), 1):
            timing = {"train_images": 40, "train_seconds": seconds, "loader_seconds": seconds / 10}
            lines.append({"event": "epoch", "epoch": epoch, "images_per_second": 1.0} | timing)
        nothing = {"train_images": 0, "train_seconds": 0.0, "loader_seconds": 0.0}  # resumed at the end of an epoch
        lines.append({"event": "epoch", "epoch": 5, "images_per_second": 0.0} | nothing)
        (folder / f"train-{worker}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        log = EventLog(folder, worker)
        log.emit(Communicated(99, 99.0, 99.0, 99.0))  # of an earlier start
        log.emit(Configured(0.0, {"tau": 2, "bucket_bytes": 10_240, "chunk_bytes": 4096}))
        log.emit(Planned("worker", worker, 2, worker, 2, 0, 0, []))
        if algorithm is not None:
            log.emit(AlgorithmChosen(algorithm))
        log.emit(Communicated(5, 50.0, 50.0, 50.0))
        log.emit(Communicated(10, 60.0, 60.0, 60.0))
        log.emit(Communicated(30, 64.0, 62.0, 70.0 + 10 * worker))
        if elastic:
            log.emit(Exchanged("weights", 2, 1.0, 100, 0.1))
        log.close()


@pytest.mark.parametrize("elastic", [False, True])
def test_what_the_events_say(tmp_path: Path, elastic: bool) -> None:
    """Steps 10 to 30 after the first epoch; of its three epochs the median, 30 seconds for 10 steps."""
    write_run(tmp_path, elastic)
    what, told = describe(tmp_path)
    assert what == Run(workers=2, groups=2, batch_size=4, elastic=elastic, tau=2, bucket_bytes=8192)
    assert told["network"] == "small"
    found = measure(tmp_path, what)
    assert (found.step, found.loader, found.exposed, found.compute) == pytest.approx((3.0, 0.3, 0.5, 2.5))
    assert found.communication == pytest.approx((4 + 2) / 20 + (0.5 if elastic else 0.0))


def test_the_algorithm_is_that_of_the_events(tmp_path: Path) -> None:
    write_run(tmp_path, elastic=False, algorithm="elastic")
    assert describe(tmp_path)[0].elastic


@pytest.mark.parametrize("algorithm", sorted(KNOWN.keys() - {"sync", "elastic"}))
def test_an_algorithm_without_a_model_is_refused_by_name(tmp_path: Path, algorithm: str) -> None:
    write_run(tmp_path, elastic=False, algorithm=algorithm)
    with pytest.raises(OracleError, match=f"the algorithm {algorithm}: this command predicts sync and elastic alone"):
        describe(tmp_path)
