"""The forecast of traffic from recorded changes: its limits, and walks whose traffic is known."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from hybridps.cli import main
from hybridps.errors import OracleError
from hybridps.events import Changed, EventLog, Registered
from hybridps.memory import Layout
from hybridps.oracle.hybrid.traffic import forecast, read_changes
from hybridps.triggers import Change

LAYOUT = Layout.of("float32", {"w": (400,)})
NBYTES = LAYOUT.nbytes


def record(trigger: Change, steps: int, straight: bool) -> list[Changed]:
    """The looks of a group whose weights walk at random, or straight on, slower and slower."""
    random = np.random.default_rng(5)
    weights = random.standard_normal(LAYOUT.length).astype(np.float32)
    way = random.standard_normal(LAYOUT.length)
    state, looks = trigger.start(LAYOUT, weights), []
    for step in range(1, steps):
        pace = 0.02 / (1 + step / 200)
        weights += (pace * (way if straight else random.standard_normal(LAYOUT.length))).astype(np.float32)
        due = state.due(step, weights)
        looks.append(Changed("t", step, state.change, NBYTES, NBYTES * due))
        if due:
            state.sent(step, weights, NBYTES)
    return looks


@pytest.mark.parametrize("straight", [True, False])
def test_at_the_recorded_threshold_it_gives_what_was_recorded(straight: bool) -> None:
    for trigger in (Change(0.05), Change(0.03, silence=9), Change(0.0), Change(None, silence=7)):
        looks = record(trigger, 400, straight)
        found = forecast([looks], [trigger.theta], trigger.silence)
        assert found.forecasts[0].messages == found.recorded_messages == sum(look.sent > 0 for look in looks)
        assert found.forecasts[0].nbytes == found.recorded_bytes


def test_limits() -> None:
    looks = record(Change(0.05), 101, straight=False)
    found = forecast([looks, looks], [0.0, None], None).forecasts
    assert [(one.messages, one.saved) for one in found] == [(200, 0.0), (0, 1.0)]
    assert forecast([looks], [None], 10).forecasts[0].messages == 10


@pytest.mark.parametrize(("straight", "power"), [(True, 1.0), (False, 0.5)])
@pytest.mark.parametrize("theta", [0.04, 0.08, 0.16])
def test_other_thresholds_are_forecast_within_a_fifth(straight: bool, power: float, theta: float) -> None:
    looks = record(Change(0.08), 1000, straight)
    found = forecast([looks], [theta], None)
    actual = sum(look.sent > 0 for look in record(Change(theta), 1000, straight))
    assert found.power == pytest.approx(power, abs=0.15)
    assert found.forecasts[0].messages == pytest.approx(actual, rel=0.2, abs=1)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = EventLog(tmp_path, 0)
    for look in record(Change(0.05), 50, straight=False):
        log.emit(look)
    log.close()
    assert len(read_changes(tmp_path)[0]) == 49
    with pytest.raises(SystemExit) as ended:
        main(["oracle", "traffic", str(tmp_path), "--threshold", "0", "--threshold", "inf", "--format", "json"])
    assert ended.value.code == 0
    found = msgspec.json.decode(capsys.readouterr().out)
    assert [one["messages"] for one in found["forecasts"]] == [49, 0]
    with pytest.raises(SystemExit) as ended:
        main(["oracle", "traffic", str(tmp_path), "--threshold", "0.1"])
    assert "recorded:" in capsys.readouterr().out


def test_a_run_that_gossiped_is_refused(tmp_path: Path) -> None:
    log = EventLog(tmp_path, 0)
    log.emit(Registered("t", "gossip", 1, NBYTES, False))
    for look in record(Change(0.05), 20, straight=False):
        log.emit(look)
    log.close()
    with pytest.raises(OracleError, match="is a run of gossip, in which partners move the weights"):
        read_changes(tmp_path)


@pytest.mark.parametrize(("threshold", "said"), [("x", "--threshold x cannot be used"), ("0.1", "has no changes")])
def test_what_cannot_be_forecast_is_said(threshold: str, said: str, tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["oracle", "traffic", str(tmp_path), "--threshold", threshold])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
