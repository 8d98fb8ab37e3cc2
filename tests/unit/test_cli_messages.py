"""The command line as a user meets it: one process, what it prints, and its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import hybridps
from hybridps.cli.doctor import LATE, NOTE, OK, PROBLEM, Done, check_huge_pages, check_python, judge_hello
from hybridps.cli.summary import print_summary
from hybridps.config import Settings

SECONDS = 60


def hybridps_cli(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | variables
    command = [sys.executable, "-m", "hybridps.cli", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=SECONDS)


def test_version_and_help() -> None:
    assert hybridps_cli("--version").stdout == f"hybridps {hybridps.__version__}\n"
    alone = hybridps_cli()
    assert alone.returncode == 0
    for command in ("run", "serve", "doctor", "report"):
        assert f"  {command} " in alone.stdout


def test_settings_are_listed_with_their_values_and_defaults() -> None:
    every = hybridps_cli("settings").stdout
    assert all(f"HYBRIDPS_{name.upper()}" in every for name in Settings.__struct_fields__)
    found = hybridps_cli("settings", "two averagings", HYBRIDPS_TAU="5").stdout
    assert found.startswith("HYBRIDPS_TAU=5 (default: not set)\n    Number of steps between two averagings of weights.")
    assert len(found.split("\n\n")) == 1
    none = hybridps_cli("settings", "xyz")
    assert (none.returncode, "no setting has 'xyz' in its name" in none.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "-n", "5", "--group-sizes", "3,3", "--", "true"], "5 workers cannot form groups of 3 + 3 = 6 workers"),
        (["run", "-np", "2", "--groups", "3", "true"], "2 workers cannot form 3 groups"),
        (["run", "--tau", "0", "--", "true"], "HYBRIDPS_TAU='0' cannot be used"),
        (["run", "--set", "tua=3", "--", "true"], "did you mean 'HYBRIDPS_TAU'?"),
        (["run", "--algorithm", "elastik", "--", "true"], "did you mean 'elastic'?"),
        (["run", "-n", "0", "--", "true"], "-n 0 cannot be used"),
        (["run", "-H", "a:0", "--", "true"], "'a:0' is not a host"),
        (["run", "-H", "a:2", "b:2", "--", "true"], "hosts are separated by commas"),
        (
            ["run", "--groups", "2", "--algorithm", "elastic", "-s", "0", "true"],
            "--servers 0: the groups of 'elastic' need a",
        ),
        (["run", "--hostfile", "/nowhere", "--", "true"], "'/nowhere' cannot be read: No such file or directory"),
        (["run", "-H", "a", "--hostfile", "b", "--", "true"], "give only one of them"),
        (["run", "--set", "servers=nonsense", "--", "true"], "HYBRIDPS_SERVERS='nonsense' cannot be used"),
        (["run", "--set", "lost_seconds=inf", "--", "true"], "HYBRIDPS_LOST_SECONDS='inf' cannot be used"),
        (["run", "--run", "/dev/null/x", "--", "true"], "the run folder '/dev/null/x' cannot be written: Not a direct"),
        (["run", "--run", __file__, "--", "true"], "cannot be written: it is a file; give a folder"),
        (["run", "--run", "--trace", "--", "true"], "--run needs a value, and the option --trace follows it"),
        (["run", "--run", "", "--", "true"], "--run needs a value, and the one given is empty"),
        (["run", "--log-dir", "", "--", "true"], "--log-dir needs a value, and the one given is empty"),
        (["run", "--set", "run_folder=", "--", "true"], "HYBRIDPS_RUN_FOLDER='' cannot be used"),
        (["compare", "--algorithms", "sync", "-n", "0", "true"], "-n 0 cannot be used: a job has at least one worker"),
        (["compare", "--algorithms", "sync", "--groups", "0", "true"], "--groups 0 cannot be used: a job has at least"),
        (["run", "--launcher", "yarn", "--", "true"], "--launcher yarn is not supported"),
        (["run", "--launcher", "local", "-H", "a:2", "true"], "--launcher local starts all ranks here"),
        (["run", "--sync-dst-dir", "/x", "true"], "--sync-dst-dir /x: hybridps run copies no files"),
        (["run", "--env", "NOT_HERE", "true"], "--env NOT_HERE passes on a variable that is not set here"),
        (["run", "-x", "A=1", "--env", "A:2", "true"], "--env gives A two values"),
        (["run", "--num-workers", "0", "--num-servers", "1", "true"], "-n 0 cannot be used"),
        (["run"], "no command was given"),
        (["report", "/nowhere"], "/nowhere"),
    ],
)
def test_what_a_user_gets_wrong_is_one_line_and_status_2(arguments: list[str], message: str) -> None:
    done = hybridps_cli(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("hybridps: error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_bad_setting_of_the_environment_is_refused() -> None:
    done = hybridps_cli("run", "--", "true", HYBRIDPS_TUA="3")
    assert (done.returncode, "HYBRIDPS_TAU" in done.stderr) == (2, True)


def test_a_missing_mpirun_says_how_to_get_it(tmp_path: object) -> None:
    code = "import sys; sys.executable = sys.argv.pop(1); from hybridps.cli import main; main()"
    command = [sys.executable, "-c", code, f"{tmp_path}/python", "run", "--", "/bin/true"]
    done = subprocess.run(command, env=os.environ | {"PATH": ""}, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 2
    assert "pip install 'hybridps[mpi]'" in done.stderr


def test_starting_the_command_line_imports_no_mpi_mxnet_or_zmq() -> None:
    code = (
        "import sys, hybridps.cli\n"
        "try: hybridps.cli.main(['run', '--help'])\n"
        "except SystemExit: print({'mpi4py', 'mxnet', 'zmq', 'numba'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS)
    assert done.stdout.endswith("set()\n")


def test_the_doctor_names_a_python_that_fits_as_a_note_since_only_mxnet_needs_it() -> None:
    assert check_python((3, 11)).state == OK
    assert check_python((3, 12)).state == NOTE
    assert "3.10 and 3.11" in check_python((3, 12)).advice


def test_the_doctor_reads_what_the_kernel_says_of_huge_pages() -> None:
    assert check_huge_pages("always [madvise] never").state == OK
    assert check_huge_pages("always madvise [never]").state == NOTE
    assert check_huge_pages("").state == NOTE


RANK = {"size": 2, "sum": 3, "sharing": 2, "level": "MULTIPLE", "library": "Open MPI v5"}


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({}, OK),
        ({"size": 1, "sum": 1, "sharing": 1}, PROBLEM),
        ({"sharing": 1}, NOTE),
        ({"level": "SINGLE"}, PROBLEM),
    ],
)
def test_the_doctor_judges_two_ranks(changed: dict[str, object], state: str) -> None:
    line = json.dumps(RANK | changed) + "\n"
    assert judge_hello(Done("", 0, line * 2, "")).state == state


@pytest.mark.parametrize("said", [(LATE, "", "late"), (1, "", "ImportError: libmpi.so"), (0, "", "")])
def test_the_doctor_sees_that_ranks_do_not_start(said: tuple[int, str, str]) -> None:
    assert judge_hello(Done("", *said)).state == PROBLEM


def test_a_summary_in_a_pipe_is_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"top1": 0.98765, "finished": [0, 1], "lost": []}
    monkeypatch.setattr("hybridps.report.make_report", lambda folder: figures)
    print_summary("x")
    assert (
        capsys.readouterr().out == "top1: 0.9877\nfinished: workers 0, 1\nlost: none\nhybridps: wrote x/report.html\n"
    )
