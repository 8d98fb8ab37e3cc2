"""Environment variables of the command line: who gets which value."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hybridps.cli.run.mpirun import session_environment
from hybridps.cli.run.plan.environment import Environment, read_environment
from hybridps.errors import ConfigError
from hybridps.processes import use_memory_here

MEMORY = "OMPI_MCA_btl_sm_backing_directory"
HERE = {"HOME": "/root", "LANG": "C", "HYBRIDPS_TAU": "3"}


def same(**variables: str) -> Environment:
    return Environment(variables, variables)


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        ({}, same()),
        ({"exports": ["HOME", "A=1"]}, same(HOME="/root", A="1")),
        ({"exports": ["A=", "B=x=y", "C=a,b", "D=a:b"]}, same(A="", B="x=y", C="a,b", D="a:b")),
        ({"env": ["HOME"]}, same(HOME="/root")),
        ({"env": ["HOME,LANG", "A:1,B=2"]}, same(HOME="/root", LANG="C", A="1", B="2")),
        ({"env": ["A=/a:/b", "B:http://h", "C=1\n2"]}, same(A="/a:/b", B="http://h", C="1\n2")),
        ({"env_worker": ["A:1,LANG"]}, Environment({"A": "1", "LANG": "C"}, {})),
        ({"env_server": ["A:1"]}, Environment({}, {"A": "1"})),
        ({"env": ["LANG"], "env_worker": ["LANG:de"]}, Environment({"LANG": "de"}, {"LANG": "C"})),
        ({"env": ["A:1", "A:1"], "exports": ["A=1"]}, same(A="1")),
        ({"exports": ["HYBRIDPS_TAU"]}, same(HYBRIDPS_TAU="3")),
    ],
)
def test_variables_and_their_values(options: dict[str, list[str]], environment: Environment) -> None:
    assert read_environment(HERE, **options) == environment


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"exports": ["1A=2"]}, "-x '1A=2' is not a variable: write NAME or NAME=VALUE$"),
        ({"exports": ["A:2"]}, "-x 'A:2' is not a variable"),
        ({"exports": [""]}, "-x '' is not a variable"),
        ({"env": ["A=1,2"]}, "--env '2' is not a variable: .* -x NAME=VALUE for a value with a comma"),
        ({"exports": ["NOT_HERE"]}, "-x NOT_HERE passes on a variable that is not set here: .*NOT_HERE=VALUE"),
        ({"env_server": ["NOT_HERE"]}, "--env-server NOT_HERE"),
        ({"env": ["A:1,A:2"]}, "--env gives A two values"),
        ({"env": ["A:1"], "exports": ["A=2"]}, "--env gives A two values"),
        ({"exports": ["HYBRIDPS_TAU=4"]}, "-x HYBRIDPS_TAU is a setting: give it with --set tau=VALUE"),
        ({"env": ["DMLC_ROLE:server"]}, "--env DMLC_ROLE is for MXNet's own servers: .*leave it out"),
    ],
)
def test_what_is_no_variable_or_has_no_effect_is_refused(options: dict[str, list[str]], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_environment(HERE, **options)


def test_ranks_of_this_host_use_the_folder_of_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, elsewhere = str(tmp_path), str(tmp_path / "not here")
    assert session_environment({}, "/f", here, all_here=True)[MEMORY] == here
    monkeypatch.delenv(MEMORY, raising=False)
    for folder, found in ((here, here), (elsewhere, None)):
        given = session_environment({}, "/f", folder, all_here=False)
        assert MEMORY not in given, "other hosts do not have the folder"
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        use_memory_here()
        assert os.environ.pop(MEMORY, None) == found
    chosen = {MEMORY: "/mine"}
    assert here not in session_environment(chosen, "/f", here, all_here=False).values()
