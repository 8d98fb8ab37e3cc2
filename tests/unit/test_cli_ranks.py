"""What `hybridps run` does for single ranks, and what it says before it starts them."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridps.cli.run.children.log_files import LogFiles, LoggedScreen
from hybridps.cli.run.children.output import ERR
from hybridps.cli.run.children.rank_lines import RankSplitter
from hybridps.cli.run.groups.bound import part
from hybridps.cli.run.groups.launched import worker_names
from hybridps.cli.run.mpirun import MPICH, OPEN_MPI, Mpirun
from hybridps.cli.run.plan import make_launch
from hybridps.cli.run.plan.hosts import Host, parse_hosts
from hybridps.cli.run.plan.ranks import places_on_hosts, read_rank_options
from hybridps.cli.run.said import Why, commands, describe
from hybridps.config import make_settings
from hybridps.errors import ConfigError

MPIRUN = Mpirun("mpirun", OPEN_MPI, "mpirun (Open MPI) 5.0.11")
TAGGED = st.lists(st.tuples(st.integers(0, 12), st.text("a[1,]<>: ", max_size=6)), max_size=8)


@given(lines=TAGGED, data=st.data())
def test_each_line_is_of_the_rank_in_its_tag_however_the_bytes_came(
    lines: list[tuple[int, str]], data: st.DataObject
) -> None:
    stream = b"".join(f"[1,{rank}]<stdout>: {text}\n".encode() for rank, text in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=4)))
    splitter = RankSplitter(MPIRUN.tag)
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert [line for piece in pieces for line in splitter.feed(piece)] + [*splitter.end()] == lines


def test_lines_that_do_not_end_and_those_of_mpirun_itself() -> None:
    splitter = RankSplitter(MPIRUN.tag)
    stream = b"[1,0]<stdout>: one\nmpirun says\n[1,2]<stdout>: no end[1,0]<stdout>: nor here"
    assert [*splitter.feed(stream)] == [(0, "one"), (None, "mpirun says")]
    assert {*splitter.end()} == {(2, "no end"), (0, "nor here")}


def test_ranks_whose_parts_of_a_line_alternate_as_with_mpich() -> None:
    splitter = RankSplitter(MPIRUN.tag)
    read = [*splitter.feed(b"[1,0]<stdout>: be[1,1]<stdout>: other\n[1,0]<stdout>: gin\n\n")]
    assert read == [(1, "other"), (0, "begin"), (None, "")]
    assert [*RankSplitter().feed(b"[1,0]<stdout>: untold\n")] == [(None, "[1,0]<stdout>: untold")]


def test_a_line_that_ends_like_the_beginning_of_a_tag_is_not_held_back() -> None:
    assert [*RankSplitter(MPIRUN.tag).feed(b"[1,0]<stdout>: losses [3]\n")] == [(0, "losses [3]")]


@pytest.mark.parametrize(
    ("flavour", "version", "options", "line"),
    [
        (OPEN_MPI, "mpirun (Open MPI) 5.0.11", ("--output", "tag"), b"[1,3]<stdout>: x"),
        (OPEN_MPI, "mpirun (Open MPI) 4.1.6", ("--tag-output",), b"[1,3]<stderr>:x"),
        (
            MPICH,
            "HYDRA build details:\n    Version:    5.0.2",
            ("-prepend-pattern", "[1,%r]<stdout>: "),
            b"[1,3]<stdout>: x",
        ),
    ],
)
def test_mpirun_is_asked_for_tags_that_are_understood(
    flavour: str, version: str, options: tuple[str, ...], line: bytes
) -> None:
    mpirun = Mpirun("mpirun", flavour, version)
    words = mpirun.command(4, (), {}, ["x"], tagged=True, at_once=True)
    assert words[-len(options) - 3 :] == (*options, "-n", "4", "x")
    assert [*RankSplitter(mpirun.tag).feed(line + b"\n")] == [(3, "x")]


def test_options_for_mpirun_replace_those_that_it_takes_once() -> None:
    words = MPIRUN.command(1, (), {}, ["x"], more=("--bind-to", "core"))
    assert words == ("mpirun", "--oversubscribe", "--bind-to", "core", "-n", "1", "x")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prefix": "workers"}, "--prefix workers is not one of group, worker, none; did you mean 'worker'?"),
        ({"bind": "cores,gpu"}, "--bind gpu is not one of cores, gpus; did you mean 'gpus'?"),
        ({"mpi_arguments": "--mca 'btl"}, '--mpi-args "--mca \'btl" cannot be read'),
        ({"mpi_arguments": "-np 3"}, "gives mpirun -np itself; give the number of workers with -n"),
        ({"mpi_arguments": "--map-by node", "bind": "cores"}, "both place the ranks"),
    ],
)
def test_what_cannot_be_asked_of_ranks(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_rank_options(**given)  # type: ignore[arg-type]


def test_places_count_the_workers_of_all_groups_of_a_host() -> None:
    a, b = Host("a", 2), Host("b", 1)
    assert places_on_hosts([(3, [a, b]), (1, [Host("b", 1)])]) == [[(0, 2), (1, 2), (0, 2)], [(1, 2)]]
    assert places_on_hosts([(1, ()), (2, ())]) == [[(0, 3)], [(1, 3), (2, 3)]]


@given(items=st.integers(1, 9), count=st.integers(1, 9))
def test_workers_share_cores_only_if_there_are_too_few(items: int, count: int) -> None:
    parts = [part(range(items), index, count) for index in range(count)]
    if items >= count:
        assert [item for each in parts for item in each] == [*range(items)]
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    else:
        assert {len(each) for each in parts} == {1}


def test_workers_have_the_number_that_their_scripts_see() -> None:
    launch = make_launch(["true"], make_settings({"group_sizes": "2,1"}))
    assert worker_names(launch, launch.groups[1]) == {0: "group 1 worker 2"}


def test_a_file_for_each_name_which_a_later_launch_continues(tmp_path: Path) -> None:
    for text in ("one", "two"):
        files = LogFiles(tmp_path / "logs")
        screen = LoggedScreen(io.StringIO(), io.StringIO(), ["group 0 worker 1"], None, files)
        screen.line("group 0 worker 1", text)
        screen.message("says")
        files.close()
    worker = (tmp_path / "logs" / "group-0-worker-1.log").read_text().splitlines()
    assert [worker[0], worker[2]] == ["one", "two"]
    assert worker[1].startswith("hybridps: a launch of ")
    assert (tmp_path / "logs" / "launcher.log").read_text().count("hybridps: says\n") == 2


def test_a_folder_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--log-dir .* cannot be used: Not a directory"):
        LogFiles(tmp_path / "file" / "logs")


def test_a_full_disk_is_one_message(tmp_path: Path) -> None:
    files, err = LogFiles(tmp_path), io.StringIO()
    (tmp_path / "group-0.log").symlink_to("/dev/full")
    screen = LoggedScreen(io.StringIO(), err, ["group 0"], None, files)
    for _ in range(2):
        screen.line("group 0", "x", ERR)
    said = "hybridps: the files of --log-dir can no longer be written: No space left on device\n"
    assert err.getvalue() == f"[group 0] x\n{said}[group 0] x\n"
    files.close()


@pytest.mark.parametrize(
    ("settings", "options", "why", "said"),
    [
        ({}, {}, Why(), "1 worker (the default) in 1 group on this host; no server (there is one group); "),
        ({"groups": "2"}, {"workers": 3}, Why(workers=3), "3 workers (-n) in 2 groups (2 + 1) on this host; 1 server"),
        ({"groups": "2"}, {"servers": 2}, Why(servers=2), "2 workers (one for each group) in 2 groups (1 + 1) on "),
        ({"groups": "2"}, {"servers": 2}, Why(servers=2), "; 2 servers (-s) at 127.0.0.1 with no keys; "),
        ({"group_sizes": "1,1"}, {"servers": 0}, Why(servers=0), "; no server (-s); algorithm sync, unless "),
        ({"groups": "2", "algorithm": "gossip"}, {}, Why(), "; no server (the groups exchange weights themselves); "),
        (
            {},
            {"hosts": parse_hosts("localhost:2,127.0.0.1:2"), "workers": 2},
            Why(workers=2, hosts="-H"),
            "2 workers (-n) in 1 group on localhost (not on 127.0.0.1: the slots before suffice); no server",
        ),
        ({"servers": "tcp://x:1"}, {"workers": 1}, Why(workers=1), "; using the servers at tcp://x:1; "),
        (
            {"groups": "2"},
            {"hosts": parse_hosts("127.0.0.1:1,localhost:1"), "launcher": "ssh"},
            Why(hosts="-H"),
            "2 workers (the slots of -H) in 2 groups (1 + 1) on 127.0.0.1, localhost; 1 server (there are several "
            "groups) at 127.0.0.1 with no keys; algorithm sync, unless the script names another; Open MPI 5.0.11 "
            "over ssh",
        ),
    ],
)
def test_the_first_line_says_what_was_chosen_and_why(
    settings: dict[str, str], options: dict[str, object], why: Why, said: str
) -> None:
    launch = make_launch(["true"], make_settings(settings), **options)  # type: ignore[arg-type]
    assert said in describe(launch, MPIRUN, why)


def test_a_dry_run_prints_commands_without_secrets() -> None:
    settings = make_settings({"groups": "2", "credentials": "the-secret"})
    lines = [*commands(make_launch(["true"], settings, workers=3), MPIRUN)]
    assert [line for line in lines if line.startswith("#")] == [
        "# server 0",
        "# group 0: 2 workers",
        "# group 1: 1 worker",
    ]
    group = shlex.split(lines[3])
    assert group[0] == "env"
    assert group[-7:] == ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", "2", "true"]
    assert "HYBRIDPS_SERVERS=tcp://127.0.0.1:PORT-OF-SERVER-0" in group
    assert "the-secret" not in "".join(lines)


def test_a_shell_completes_options_and_names() -> None:
    words = {"hybridps run --al": "--algorithm\n--alpha", "hybridps run --algorithm ela": "elastic"}
    for typed, completed in words.items():
        asked = {"_HYBRIDPS_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
        command = [sys.executable, "-c", "from hybridps.cli import main; main()"]
        done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, timeout=60)
        assert done.stdout.strip() == completed
