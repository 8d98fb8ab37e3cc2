"""The chaos benchmark: faults are survived, and the weights are what they must be. Never how fast anything is."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worlds import environment

TOP = Path(__file__).parents[2]
sys.path.insert(0, str(TOP))

from benchmarks.chaos import chains, outcomes, records, schedule  # noqa: E402
from benchmarks.chaos.outcomes import Outcome, quiet_spans  # noqa: E402
from benchmarks.chaos.schedule import Fault, Victim, make_schedule  # noqa: E402


def chaos(folder: Path, *options: str, seconds: float) -> dict[str, Any]:
    file = folder / "results.json"
    command = [sys.executable, "-m", "benchmarks.chaos", *options, "--json", str(file)]
    done = subprocess.run(command, cwd=TOP, env=environment(), capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert found["survived"] == found["injected"] > 0
    return found


@pytest.mark.timeout(100)
def test_light_groups_survive(tmp_path: Path) -> None:
    found = chaos(tmp_path, "--light", "8", "--minutes", "0.1", "--faults-per-hour", "9000", seconds=90)
    assert found["injected"] == 15
    assert set(found["kinds"]) == {"kill-server", "vanish", "pause"}
    assert set(found["checks"]) == {"sum", "momentum", "elastic", "async"}


@pytest.mark.nightly
@pytest.mark.timeout(150)
def test_training_survives(tmp_path: Path) -> None:
    kinds = "kill-leader,kill-server,stop"
    options = ["--algorithm", "sync-server", "--kinds", kinds, "--groups", "2", "--minutes", "0.1", "--no-compare"]
    found = chaos(tmp_path, *options, "--faults-per-hour", "1800", seconds=140)
    assert {kind: counts["survived"] for kind, counts in found["kinds"].items()} == dict.fromkeys(kinds.split(","), 1)
    assert found["restarts"] == 1
    assert set(found["checks"]) == {"distance", "digests"}


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_synchronous_training_has_the_same_bits(tmp_path: Path) -> None:
    options = ["--algorithm", "sync-server", "--kinds", "kill-server,stop", "--groups", "2", "--minutes", "1"]
    found = chaos(tmp_path, *options, "--faults-per-hour", "1200", seconds=390)
    assert set(found["compared"]) == {"accuracy", "bits"}
    assert found["throughput"] > 0


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("algorithm", ["elastic", "sync-server", "async"])
def test_many_kinds_of_faults(tmp_path: Path, algorithm: str) -> None:
    options = ["--algorithm", algorithm, "--groups", "3", "--minutes", "3", "--faults-per-hour", "300"]
    assert len(chaos(tmp_path, *options, seconds=890)["kinds"]) == 5


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_thousand_faults_of_light_groups(tmp_path: Path) -> None:
    found = chaos(tmp_path, "--light", "32", "--minutes", "5", "--faults-per-hour", "12000", seconds=890)
    assert found["injected"] == 1000


def test_kinds_that_are_unknown_are_refused() -> None:
    command = [sys.executable, "-m", "benchmarks.chaos", "--light", "8", "--kinds", "stop"]
    done = subprocess.run(command, cwd=TOP, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "'stop' is unknown: use kill-server, vanish, pause" in done.stderr


def test_kinds_come_equally_often_within_the_time() -> None:
    victims = {"stop": [Victim(0), Victim(1)], "freeze": [Victim(0)], "kill-server": [Victim(0)]}
    made = make_schedule(3, victims, 30, 60.0)
    assert [sum(fault.kind == kind for fault in made) for kind in victims] == [10, 10, 10]
    assert made == sorted(made) == make_schedule(3, victims, 30, 60.0)
    assert made != make_schedule(4, victims, 30, 60.0)
    assert all(0 <= fault.seconds <= 60 and fault.victim in victims[fault.kind] for fault in made)


def test_quiet_spans_are_those_without_an_open_fault() -> None:
    def outcome(injected: float, recovered: float) -> Outcome:
        return Outcome(Fault(0, "stop", Victim(0)), injected, recovered)

    assert quiet_spans([outcome(5, 6), outcome(1, 2), outcome(5.5, 8)], 0, 10) == [(0, 1), (2, 5), (8, 10)]
    assert quiet_spans([outcome(0, 12)], 0, 10) == []
    before_and_after = [outcome(-3, -2), outcome(11, 12), outcome(14, 15)]
    assert quiet_spans(before_and_after, 0, 10) == [(0, 10)]


def test_lives_that_never_meet_have_diverged() -> None:
    with pytest.raises(chains.DivergedError, match="never meet"):
        chains.check_chain([[1, 2], [3, 4]])


def test_steps_of_all_lives_are_found(tmp_path: Path) -> None:
    assert records.last_step(tmp_path) == 0
    for life, seconds in enumerate([[1.0, 2.0], [5.0, 6.0]]):
        writer = records.Writer(tmp_path, records.Place(0, 0, life))
        for moment in seconds:
            writer.write(moment, 10 * int(moment), -7)
        writer.close()
    assert [records.first_step_after(tmp_path, 0, *what) for what in ((1.5, 0), (1.5, 1), (6.0, 0))] == [2.0, 5.0, None]
    assert records.count_steps(tmp_path, [(0.0, 1.5), (4.0, 9.0)]) == 3
    assert records.last_step(tmp_path) == 60
    records.Writer(tmp_path, records.Place(0, 0, 2)).write(7.0, 1, -7)
    assert records.last_step(tmp_path) == 1  # a group that began anew
    assert np.all(records.read(tmp_path, records.Place(0, 0, 1))["digest"] == -7)


@pytest.mark.parametrize("module", [chains, schedule, outcomes])
def test_examples(module: Any) -> None:
    assert doctest.testmod(module).failed == 0
