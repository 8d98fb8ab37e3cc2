from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridps.algorithms import ALGORITHMS, resolve
from hybridps.config import Settings, load_settings, make_settings, started_by_mpi, to_environment
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
        ("HYBRIDPS_GRUPS", "2", "HYBRIDPS_GRUPS is no setting of hybridps; did you mean HYBRIDPS_GROUPS"),
        ("HYBRIDPS_GROUPS", "x", "HYBRIDPS_GROUPS='x' cannot be used"),
        ("HYBRIDPS_GROUPS", "0", ">= 1"),
        ("HYBRIDPS_GROUP_SIZES", "2,-1", "HYBRIDPS_GROUP_SIZES"),
        ("HYBRIDPS_ALPHA", "1.5", "<= 1"),
        ("HYBRIDPS_BACKEND", "ps-lite", "HYBRIDPS_BACKEND='ps-lite' cannot be used"),
        ("HYBRIDPS_CHUNK_BYTES", "1000", "HYBRIDPS_CHUNK_BYTES"),
        ("HYBRIDPS_JOB", "a job", "HYBRIDPS_JOB='a job'"),
        ("HYBRIDPS_DEADLINE_SECONDS", "0", "HYBRIDPS_DEADLINE_SECONDS"),
    ],
)
def test_bad_settings_are_named(name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_settings({name: text})
    assert said in str(error.value)


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


def test_algorithm_names() -> None:
    assert resolve(Settings(algorithm="mpi-ESGD")).algorithm == "elastic"
    assert resolve(Settings(algorithm="dist-sgd")) == Settings(algorithm="sync", workers_per_group=1)
    assert resolve(Settings()) == Settings()
    with pytest.raises(ConfigError, match="'elastik' is unknown; did you mean 'elastic'"):
        resolve(Settings(algorithm="elastik"))
    assert set(ALGORITHMS.values()) == {"sync", "elastic", "async"}
