"""Which groups are started again, how often, and where they are told to go on."""

from __future__ import annotations

import pytest

from hybridps import resume
from hybridps.cli.run.groups.lives import Lives
from hybridps.cli.run.plan import make_launch
from hybridps.cli.run.run_log import RunLog
from hybridps.config import Settings, to_environment
from hybridps.errors import LATE, MISUSED, ConfigError
from hybridps.progress import ALONE, TOGETHER
from hybridps.resuming import Resume


def test_groups_are_started_again_one_by_one_until_no_restart_is_left() -> None:
    lives = Lives(3, 2)
    assert lives.failed(1, 137) == "started again, 1 of 2"
    assert lives.begin() == [1]
    assert lives.failed(2, 1) == "started again, 2 of 2"
    assert lives.failed(1, 1) == ""
    assert lives.begin() == [2]
    assert (lives.of, lives.due) == ([0, 1, 1], [])


def test_two_that_die_at_once_are_started_again_at_once() -> None:
    lives = Lives(3, 5)
    assert (lives.failed(2, 1), lives.failed(0, 1)) == ("started again, 1 of 5", "started again, 2 of 5")
    assert lives.begin() == [2, 0]


def test_a_group_that_was_misused_is_not_started_again() -> None:
    assert Lives(2, 5).failed(0, MISUSED) == ""


def test_a_group_that_comes_too_late_counts_once_and_from_then_on_all_begin_together() -> None:
    lives = Lives(2, 2)
    lives.failed(1, 137)
    lives.begin()
    assert lives.failed(1, LATE) == "all groups are started again, 1 of 2"
    assert lives.failed(0, 1) == "all groups are started again"
    assert lives.begin() == [0, 1]
    assert lives.of == [1, 2]
    assert lives.failed(1, LATE) == "all groups are started again, 2 of 2", "it is late for another reason now"
    lives.begin()
    assert lives.failed(0, 1) == ""


def test_a_single_group_that_comes_too_late_begins_in_a_new_job() -> None:
    lives = Lives(1, 1)
    assert lives.failed(0, 137) == "started again, 1 of 1"
    assert not lives.together
    lives.begin()
    assert lives.failed(0, LATE) == "started again, 1 of 1"
    assert lives.together
    lives.begin()
    assert lives.failed(0, LATE) == ""


def test_groups_that_begin_together_are_known_beforehand() -> None:
    lives = Lives(3, 1, in_step=True)
    assert lives.failed(1, 137) == "all groups are started again, 1 of 1"
    assert lives.begin() == [0, 1, 2]


def test_groups_in_step_whose_script_hands_over_the_weights_are_restarted_alone() -> None:
    lives = Lives(3, 9)
    lives.learn(TOGETHER)
    lives.learn(ALONE)
    assert lives.failed(1, 137) == "started again, 1 of 9"
    assert lives.begin() == [1]
    assert lives.failed(1, LATE) == "all groups are started again, 1 of 9", "nobody could give it the weights"
    assert lives.begin() == [0, 1, 2]
    assert lives.failed(2, 137) == "started again, 2 of 9"
    assert lives.begin() == [2]


def test_what_groups_say_after_a_failure_concerns_only_the_next_one() -> None:
    lives = Lives(2, 9, in_step=True)
    assert lives.failed(1, 137) == "all groups are started again, 1 of 9"
    lives.learn(ALONE)
    assert lives.together
    assert lives.begin() == [0, 1]
    assert not lives.together
    assert lives.failed(1, 137) == "started again, 2 of 9"
    assert lives.begin() == [1]


def test_groups_in_step_begin_together_if_no_other_runs() -> None:
    lives = Lives(2, 9)
    lives.learn(ALONE)
    assert lives.failed(1, 137) == "started again, 1 of 9"
    assert lives.failed(0, 137, others_train=False) == "all groups are started again, 2 of 9"
    assert lives.begin() == [0, 1]
    assert not lives.together


@pytest.mark.parametrize(
    ("algorithm", "groups", "together"),
    [("sync", 2, True), ("mpi-sgd", 2, True), ("sync", 1, True), ("elastic", 2, False), (None, 2, False)],
)
def test_the_algorithm_tells_whether_groups_begin_together(algorithm: str | None, groups: int, together: bool) -> None:
    launch = make_launch(["python"], Settings(algorithm=algorithm, groups=groups), restarts=2)
    assert (launch.begins_together, launch.restarts) == (together, 2)


def test_restarts_that_have_no_meaning_are_refused() -> None:
    with pytest.raises(ConfigError, match="--restarts 1 has no meaning with MXNet's servers"):
        make_launch(["python"], Settings(backend="mxnet", groups=2), restarts=1)
    with pytest.raises(ConfigError, match="--restarts -1 cannot be used"):
        make_launch(["python"], Settings(groups=2), restarts=-1)


def test_a_group_is_told_where_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = make_launch(["python"], Settings(groups=2, life=7), restarts=2)  # 7: of a launcher that this one runs in
    assert launch.group_settings(launch.groups[1], []).life == 0
    told = to_environment(launch.group_settings(launch.groups[1], [], resume=Resume(2, 3.5, 700)))
    assert {name: told[name] for name in told if "LIFE" in name or "RESUME" in name} == {
        "HYBRIDPS_LIFE": "2",
        "HYBRIDPS_RESUME_EPOCH": "3.5",
        "HYBRIDPS_RESUME_STEP": "700",
    }
    assert launch.as_another_job(1).settings.job == f"{launch.settings.job}.1"
    assert len(make_launch(["python"], Settings(job="x" * 64)).as_another_job(12).settings.job) <= 64
    for name, text in told.items():
        monkeypatch.setenv(name, text)
    assert resume() == (2, 3.5, 700)


def test_a_script_goes_on_at_the_beginning_without_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LIFE", "RESUME_EPOCH", "RESUME_STEP"):
        monkeypatch.delenv(f"HYBRIDPS_{name}", raising=False)
    assert resume() == Resume(0, 0.0, 0)


def test_the_job_is_where_its_furthest_worker_is() -> None:
    log = RunLog(Settings())
    for group, line in [(0, "epoch=2 step=90 worker=0"), (1, "epoch=3 worker=1"), (0, "epoch=2.5 worker=0 step=80")]:
        log.hear(group, f"hybridps: {line}", {0: 1, 1: 1})
    assert (log.epoch, log.step) == (3, 90)
    log.begin_anew()
    assert (log.epoch, log.step) == (0, 0)
