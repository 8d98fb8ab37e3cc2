"""Where ranks run: what `--launcher`, `-H` and `--hostfile` make of each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridps.cli.run.mpirun import MPICH, OPEN_MPI, Mpirun
from hybridps.cli.run.plan import make_launch
from hybridps.cli.run.plan.hosts import Host, parse_hosts, spread_workers
from hybridps.cli.run.plan.places import check_sync, find_hosts
from hybridps.config import Settings, make_settings
from hybridps.errors import ConfigError, PlanError

A_AND_B = (Host("a", 4), Host("b", 2))
SCONTROL = """#!/bin/sh
[ "$1 $2" = "show hostnames" ] || exit 1
echo "$3" | tr , '\\n'
"""


@pytest.fixture
def hostfile(tmp_path: Path) -> Path:
    path = tmp_path / "hosts"
    path.write_text("# launch.py knows no slots\na slots=4\nb slots=2\n")
    return path


def test_hosts_may_be_a_list_or_a_file(hostfile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_slurm = {"SLURM_JOB_NODELIST": "a,b"}
    for launcher in (None, "ssh", "mpi", "slurm"):
        assert find_hosts(launcher, "a:4,b:2", None, in_slurm) == A_AND_B
        assert find_hosts(launcher, str(hostfile), None, in_slurm) == A_AND_B
        assert find_hosts(launcher, None, hostfile, in_slurm) == A_AND_B
    assert len(find_hosts(None, ",".join(f"host{number}" for number in range(999)), None)) == 999
    assert find_hosts(None, None, None) == find_hosts("mpi", None, None) == ()
    monkeypatch.chdir(hostfile.parent)
    assert find_hosts(None, "hosts", None) == A_AND_B
    assert find_hosts(None, "other", None) == (Host("other", 1),)


@pytest.mark.parametrize(
    ("launcher", "hosts", "reason"),
    [
        ("local", "a:4", "starts all ranks here, and -H names a"),
        ("ssh", None, "--launcher ssh needs hosts: .*-H h1:4,h2:4"),
        ("slurm", None, "--launcher slurm needs an allocation: .*salloc .*sbatch"),
        ("slurm", "a:4", "--launcher slurm needs an allocation"),
        ("sge", "a:4", r"--launcher sge is not supported: .*\$PE_HOSTFILE"),
        ("yarn", None, "--launcher yarn is not supported: .*-H"),
        ("shh", "a:4", "--launcher shh is not one of local, ssh, mpi, slurm; did you mean 'ssh'?"),
        (None, "no/such/file", "'no/such/file' cannot be read: there is no such file"),
        (None, "", "'' names no host"),
        (None, "me@a:2", "'me@a:2' is not a host"),
    ],
)
def test_what_contradicts_or_is_unknown_is_refused(launcher: str | None, hosts: str | None, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        find_hosts(launcher, hosts, None, {})


def test_a_hostfile_that_names_no_host_or_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("# none\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, reason in (("empty", "names no host"), ("binary", "cannot be read: it is not a text file")):
        with pytest.raises(ConfigError, match=reason):
            find_hosts(None, str(tmp_path / name), None)


def test_what_launch_py_takes_for_a_port_is_not_taken_for_slots(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# x:1\na slots=4\nb:22\n")
    with pytest.raises(ConfigError, match="'b:22' in .* may be a port of ssh.* write `b slots=N`"):
        find_hosts("ssh", str(tmp_path / "hosts"), None)
    assert find_hosts("mpi", str(tmp_path / "hosts"), None) == (Host("a", 4), Host("b", 22))


def test_workers_are_spread_where_no_host_says_its_slots() -> None:
    assert spread_workers(parse_hosts("a,b,c"), 7) == (Host("a", 3), Host("b", 2), Host("c", 2))
    assert spread_workers(parse_hosts("a,b"), 1) == (Host("a", 1), Host("b", 1))
    assert spread_workers((), 3) == ()
    launch = make_launch(["true"], make_settings({"groups": 2}), workers=4, servers=0, hosts=parse_hosts("a,b"))
    assert [group.hosts for group in launch.groups] == [(Host("a", 2),), (Host("b", 2),)]
    with pytest.raises(PlanError, match="4 workers do not fit into the 2 slots of a:1, b:1"):
        make_launch(["true"], Settings(), workers=4, hosts=parse_hosts("a:1,b"))


def test_the_launcher_local_leaves_no_choice_to_mpirun() -> None:
    launch = make_launch(["true"], make_settings({"groups": 2}), workers=3, hosts=find_hosts("local", None, None))
    assert [group.hosts for group in launch.groups] == [(Host("localhost", 2),), (Host("localhost", 1),)]
    assert launch.bind.startswith("tcp://127.0.0.1:")


@pytest.mark.parametrize(("tasks", "slots"), [("4(x2),1", (4, 4, 1)), ("2,3,4", (2, 3, 4)), ("", (1, 1, 1))])
def test_the_hosts_of_an_allocation(tmp_path: Path, tasks: str, slots: tuple[int, ...]) -> None:
    """SLURM's own command, which is not here, is made up."""
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    environ = {"SLURM_JOB_NODELIST": "a,b,c", "SLURM_TASKS_PER_NODE": tasks, "PATH": f"{tmp_path}:/usr/bin:/bin"}
    found = find_hosts("slurm", None, None, environ)
    assert found == tuple(Host(name, count) for name, count in zip("abc", slots, strict=True))
    assert spread_workers(found, 30) == (found if tasks else (Host("a", 10), Host("b", 10), Host("c", 10)))
    assert find_hosts("slurm", "b:2", None, environ) == (Host("b", 2),)
    with pytest.raises(ConfigError, match=r"SLURM_TASKS_PER_NODE=4\(x2\) does not fit the 3 hosts of a,b,c"):
        find_hosts("slurm", None, None, environ | {"SLURM_TASKS_PER_NODE": "4(x2)"})
    with pytest.raises(ConfigError, match="scontrol show hostnames a,b,c failed"):
        find_hosts("slurm", None, None, environ | {"PATH": "/nowhere"})


def test_folders_are_not_copied() -> None:
    check_sync(None)
    with pytest.raises(ConfigError, match="--sync-dst-dir /x: hybridps run copies no files.*rsync -az ./ HOST:/x"):
        check_sync("/x")


def test_mpirun_is_told_to_use_ssh() -> None:
    new, old = Mpirun("mpirun", OPEN_MPI, "mpirun (Open MPI) 5.0.11"), Mpirun("mpirun", OPEN_MPI, "(Open MPI) 4.1.6")
    for mpirun, words in (
        (new, ("--prtemca", "plm", "ssh")),
        (old, ("--mca", "plm", "rsh")),
        (Mpirun("mpirun", MPICH), ("-launcher", "ssh")),
    ):
        line = " ".join(mpirun.command(1, parse_hosts("a:1"), {}, ["x"], over_ssh=True))
        assert " ".join(words) in line
        assert " ".join(words) not in " ".join(mpirun.command(1, parse_hosts("a:1"), {}, ["x"]))


def test_values_that_the_user_gave_are_on_no_command_line() -> None:
    for flavour in (OPEN_MPI, MPICH):
        line = Mpirun("mpirun", flavour).command(1, parse_hosts("a:1"), {"TOKEN": "word"}, ["x"], secret=["TOKEN"])
        assert "word" not in line
        assert ("TOKEN" in line) == (flavour == OPEN_MPI)
