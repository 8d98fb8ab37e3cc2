from __future__ import annotations

from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridps.algorithms import ALGORITHMS, KNOWN, resolve
from hybridps.config import (
    Settings,
    find_tuning_file,
    load_settings,
    make_settings,
    started_by_mpi,
    to_environment,
    tuning_file,
    world_rank,
    world_size,
)
from hybridps.errors import ConfigError


def test_defaults() -> None:
    assert load_settings({"PATH": "/bin"}) == Settings()
    assert to_environment(Settings()) == {}


def test_values_are_converted() -> None:
    settings = load_settings(
        {
            "HYBRIDPS_GROUP_SIZES": "3, 1",
            "HYBRIDPS_SERVERS": "tcp://a:1,tcp://b:2",
            "HYBRIDPS_ALPHA": "0.5",
            "HYBRIDPS_QUIET": "true",
            "HYBRIDPS_TAU": "7",
            "HYBRIDPS_RUN_FOLDER": "",
        }
    )
    assert settings.group_sizes == (3, 1)
    assert settings.servers == ("tcp://a:1", "tcp://b:2")
    assert (settings.alpha, settings.quiet, settings.tau, settings.run_folder) == (0.5, True, 7, None)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("HYBRIDPS_GRUPS", "2", "HYBRIDPS_GRUPS is not a setting of hybridps; did you mean 'HYBRIDPS_GROUPS'"),
        ("HYBRIDPS_GROUPS", "x", "HYBRIDPS_GROUPS='x' cannot be used"),
        ("HYBRIDPS_GROUPS", "0", ">= 1"),
        ("HYBRIDPS_GROUP_SIZES", "2,-1", "HYBRIDPS_GROUP_SIZES"),
        ("HYBRIDPS_ALPHA", "1.5", "<= 1"),
        ("HYBRIDPS_BACKEND", "ps-lite", "HYBRIDPS_BACKEND='ps-lite' cannot be used"),
        ("HYBRIDPS_CHUNK_BYTES", "1000", "HYBRIDPS_CHUNK_BYTES"),
        ("HYBRIDPS_JOB", "a job", "HYBRIDPS_JOB='a job'"),
        ("HYBRIDPS_DEADLINE_SECONDS", "0", "HYBRIDPS_DEADLINE_SECONDS"),
        ("HYBRIDPS_CHECK_FINITE", "true", "'true' cannot be used: expected one of warn, refuse, ignore"),
        ("HYBRIDPS_CHECK_FINITE", "false", "'false' cannot be used: expected one of warn, refuse, ignore"),
        ("HYBRIDPS_SERVERS", "nonsense", "HYBRIDPS_SERVERS='nonsense' cannot be used: it must have the form tcp://"),
        ("HYBRIDPS_SERVERS", "tcp://a:1,tcp://b:22x", "'tcp://b:22x' cannot be used: the port '22x' must be a number"),
        ("HYBRIDPS_SERVERS", "ps-lite://a:1?groups=1&servers=1", "it must have the form tcp://HOST:PORT"),
        ("HYBRIDPS_PARENTS", "tcp://127.0.0.1:*", "HYBRIDPS_PARENTS='tcp://127.0.0.1:*' cannot be used: the port '*'"),
        ("HYBRIDPS_METRICS_BIND", "127.0.0.1:9100", "HYBRIDPS_METRICS_BIND='127.0.0.1:9100' cannot be used"),
    ],
)
def test_bad_settings_are_named(name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_settings({name: text})
    assert said in str(error.value)


FLOATS = [name for name, hint in get_type_hints(Settings).items() if float in (hint, *get_args(hint))]


@pytest.mark.parametrize("text", ["inf", "-inf", "nan", "1e400", "Infinity"])
@pytest.mark.parametrize("field", FLOATS)
def test_no_number_is_infinite_and_none_is_nan(field: str, text: str) -> None:
    said = f"HYBRIDPS_{field.upper()}='{text}' cannot be used: expected a number (of seconds )?>=? [01] and <= [0-9]+"
    with pytest.raises(ConfigError, match=said):
        load_settings({f"HYBRIDPS_{field.upper()}": text})
    with pytest.raises(ConfigError, match="expected a number"):
        make_settings({field: float(text)})


def test_all_float_settings_are_covered() -> None:
    seconds = {"connect_seconds", "deadline_seconds", "heartbeat_seconds", "lost_seconds", "start_seconds"}
    seconds |= {"snapshot_seconds", "notice_seconds", "reconnect_seconds"}
    assert set(FLOATS) == {"alpha", "rho", "outer_rate", "outer_momentum", "resume_epoch", "slow_factor", *seconds}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"heartbeat_seconds": "11"}, "HYBRIDPS_HEARTBEAT_SECONDS='11' .*HYBRIDPS_LOST_SECONDS=10"),
        ({"lost_seconds": "3", "reconnect_seconds": "2"}, "HYBRIDPS_LOST_SECONDS='3' .*HYBRIDPS_RECONNECT_SECONDS=2"),
        ({"lost_seconds": "30", "deadline_seconds": "20"}, "HYBRIDPS_LOST_SECONDS='30' .*HYBRIDPS_DEADLINE_SECONDS=20"),
        ({"connect_seconds": "2000"}, "HYBRIDPS_CONNECT_SECONDS='2000' .*HYBRIDPS_DEADLINE_SECONDS=1200"),
        ({"reconnect_seconds": "1300"}, "HYBRIDPS_RECONNECT_SECONDS='1300' .*HYBRIDPS_DEADLINE_SECONDS=1200"),
    ],
)
def test_a_wait_that_ends_after_one_that_contains_it_is_refused(first, second) -> None:
    with pytest.raises(ConfigError, match=second):
        make_settings(first)


def test_waits_follow_from_those_that_are_given() -> None:
    settings = make_settings({"lost_seconds": "2", "deadline_seconds": "100"})
    assert (settings.beat_seconds, settings.longest_away_seconds) == (0.5, 75)
    assert make_settings({"reconnect_seconds": "0", "lost_seconds": "20"}).longest_away_seconds == 0


def test_addresses_of_servers_fit_the_backend() -> None:
    scheduler = "ps-lite://127.0.0.1:9000?groups=2&servers=1"
    assert make_settings({"backend": "mxnet", "servers": scheduler}).servers == (scheduler,)
    with pytest.raises(ConfigError, match="HYBRIDPS_SERVERS='tcp://a:1' cannot be used: the backend mxnet needs"):
        make_settings({"backend": "mxnet", "servers": "tcp://a:1"})


@given(
    groups=st.none() | st.integers(1, 99),
    sizes=st.none() | st.lists(st.integers(1, 9), min_size=1).map(tuple),
    alpha=st.none() | st.floats(0, 1),
    quiet=st.booleans(),
)
def test_environment_round_trip(groups, sizes, alpha, quiet) -> None:
    folder = "/two  spaces/and\ta tab"
    settings = make_settings(
        {"groups": groups, "group_sizes": sizes, "alpha": alpha, "quiet": quiet, "run_folder": folder}
    )
    assert load_settings(to_environment(settings)) == settings


def test_mpi_launchers_are_known() -> None:
    assert not started_by_mpi({})
    assert started_by_mpi({"OMPI_COMM_WORLD_SIZE": "2"})
    assert started_by_mpi({"PMIX_RANK": "0"})


def test_the_place_in_an_mpi_world_is_known() -> None:
    assert (world_rank({}), world_size({})) == (0, 1)
    assert world_size({"OMPI_COMM_WORLD_SIZE": "1"}) == 1
    assert (world_rank({"PMI_RANK": "3", "PMI_SIZE": "5"}), world_size({"PMI_RANK": "3", "PMI_SIZE": "5"})) == (3, 5)
    assert world_rank({"OMPI_COMM_WORLD_RANK": "2", "PMIX_RANK": "2"}) == 2
    assert world_size({"SLURM_STEP_NUM_TASKS": "4"}) == 1


def test_algorithm_names() -> None:
    assert resolve(Settings(algorithm="mpi-ESGD")).algorithm == "elastic"
    assert resolve(Settings(algorithm="dist-sgd")) == Settings(algorithm="sync", workers_per_group=1)
    assert resolve(Settings()) == Settings()
    assert resolve(Settings(algorithm="dist-local")) == Settings(algorithm="local", workers_per_group=1)
    for name in ("async", "stale", "gossip"):
        assert resolve(Settings(algorithm=name)) == Settings(algorithm=name, workers_per_group=1)
        assert resolve(Settings(algorithm=name, groups=2)) == Settings(algorithm=name, groups=2)
        assert resolve(Settings(), name) == Settings(workers_per_group=1)
    assert resolve(Settings(algorithm="mpi-asgd")) == Settings(algorithm="async")
    assert resolve(Settings(), "dist-sgd") == Settings(workers_per_group=1)
    assert resolve(Settings(algorithm="elastic"), "gossip") == Settings(algorithm="elastic")
    with pytest.raises(ConfigError, match="did you mean 'change'"):
        resolve(Settings(trigger="chang:0.1"))
    with pytest.raises(ConfigError, match="'elastik' is unknown; did you mean 'elastic'"):
        resolve(Settings(algorithm="elastik"))
    assert set(ALGORITHMS.values()) == set(KNOWN) > {"sync", "async", "stale", "elastic", "easgd", "eamsgd", "local"}


def test_a_home_folder_that_is_not_there_or_cannot_be_entered_has_no_tuning_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bool:
        raise PermissionError(13, "Permission denied")

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find_tuning_file() is None
    tuning_file().parent.mkdir()
    tuning_file().touch()
    assert find_tuning_file() == tuning_file()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", refuse)
        assert find_tuning_file() is None
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert find_tuning_file() is None
    with pytest.raises(ConfigError, match="set XDG_CACHE_HOME"):
        tuning_file()
