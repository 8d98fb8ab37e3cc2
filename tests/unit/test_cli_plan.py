"""What the command line decides before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridps.cli.app import read_settings
from hybridps.cli.run.mpirun import (
    INTEL_MPI,
    MPICH,
    OPEN_MPI,
    WITHOUT_OFI,
    Mpirun,
    find_mpirun,
    flavour_of,
    rank_environment,
)
from hybridps.cli.run.options import trigger_of
from hybridps.cli.run.plan import ServerLaunch, make_launch, user_command
from hybridps.cli.run.plan.hosts import Host, parse_hostfile, parse_hosts, split_hosts
from hybridps.config import Settings, load_settings, make_settings
from hybridps.errors import ConfigError, PlanError
from hybridps.processes import child_environment, without_rank_marks
from hybridps.ps.server.snapshots import SnapshotFolder

PYTHON = "/venv/bin/python"


@pytest.mark.parametrize(
    ("command", "wrapped"),
    [
        ("python train.py --epochs 3", f"{PYTHON} -m hybridps train.py --epochs 3"),
        ("python3 -u train.py", f"{PYTHON} -u -m hybridps train.py"),
        ("/opt/python3.10 train.py", "/opt/python3.10 -m hybridps train.py"),
        ("train.py -m x", f"{PYTHON} -m hybridps train.py -m x"),
        ("python -W ignore -X dev train.py -c x", f"{PYTHON} -W ignore -X dev -m hybridps train.py -c x"),
        ("python -uWignore train.py", f"{PYTHON} -uWignore -m hybridps train.py"),
        ("python --check-hash-based-pycs never a.py", f"{PYTHON} --check-hash-based-pycs never -m hybridps a.py"),
        ("python -m package.train x", f"{PYTHON} -m hybridps -m package.train x"),
        ("python -mpackage", f"{PYTHON} -m hybridps -m package"),
        ("python -um package x", f"{PYTHON} -u -m hybridps -m package x"),
        ("python -m hybridps train.py", f"{PYTHON} -m hybridps train.py"),
        ("python -m mpi4py train.py", f"{PYTHON} -m mpi4py train.py"),
        ("python -mmpi4py.bench helloworld", f"{PYTHON} -mmpi4py.bench helloworld"),
        ("python -c pass", f"{PYTHON} -c pass"),
        ("python", PYTHON),
        ("python train", f"{PYTHON} train"),
        ("./train --python x.py", "./train --python x.py"),
    ],
)
def test_the_runner_is_put_before_the_script(command: str, wrapped: str) -> None:
    assert " ".join(user_command.wrap(command.split(), PYTHON)) == wrapped


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ([], "no command"),
        (["python", "no_such.py"], "no_such.py"),
        (["no_such.py"], "no_such.py"),
        (["no-such-program"], "no-such-program"),
        (["A=1", "python", "train.py"], "'A=1' on this host: give variables with -x A=1 before the command"),
        (["python no_such.py"], "leave out the quotes"),
        (["cd x; python train"], "leave out the quotes around the command, or run bash -c"),
    ],
)
def test_a_command_that_cannot_run_is_refused(command: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        user_command.check(command)


def test_hosts_and_hostfiles_say_the_same() -> None:
    hosts = (Host("a", 4), Host("b", 2), Host("c", 1))
    assert parse_hosts("a:4, b:2,c") == hosts
    assert parse_hostfile("# cluster\na slots=4 max_slots=8\n\nb:2  # two\nc\n") == hosts


@pytest.mark.parametrize("text", ["a:0", "a:00", "a:x", "a:-1", ":4", "a:", "-x:1"])
def test_a_host_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a host"):
        parse_hosts(text)


def test_groups_take_the_slots_in_order() -> None:
    hosts = parse_hosts("a:3,b:3")
    assert split_hosts(hosts, (2, 3)) == ((Host("a", 2),), (Host("a", 1), Host("b", 2)))
    assert launch_of(make_settings({"group_sizes": "2,3"}), servers=0, hosts=hosts).workers_on_a_host == 3
    assert launch_of(make_settings({"group_sizes": "2,3"})).workers_on_a_host == 5


def test_too_few_slots_are_refused_with_the_numbers() -> None:
    with pytest.raises(PlanError, match=r"5 workers do not fit into the 4 slots of a:2, b:2"):
        split_hosts(parse_hosts("a:2,b:2"), (3, 2))


def launch_of(settings: Settings | None = None, **options: object):  # type: ignore[no-untyped-def]
    return make_launch(("true",), settings or Settings(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "workers", "sizes"),
    [
        ({}, None, [1]),
        ({}, 3, [3]),
        ({"groups": 2}, 5, [3, 2]),
        ({"groups": 2}, None, [1, 1]),
        ({"group_sizes": "3,1"}, None, [3, 1]),
        ({"group_sizes": "3,1"}, 4, [3, 1]),
        ({"workers_per_group": 2}, 5, [2, 2, 1]),
        ({"algorithm": "dist-esgd"}, 3, [1, 1, 1]),
    ],
)
def test_group_sizes(options: dict[str, object], workers: int | None, sizes: list[int]) -> None:
    launch = launch_of(make_settings(options), workers=workers)
    assert [group.size for group in launch.groups] == sizes
    assert len(launch.servers) == (1 if len(sizes) > 1 else 0)


def test_group_sizes_that_do_not_add_up_are_refused_with_the_numbers() -> None:
    with pytest.raises(PlanError, match=r"5 workers cannot form groups of 3 \+ 3 = 6 workers"):
        launch_of(make_settings({"group_sizes": "3,3"}), workers=5)


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'elastic'"):
        launch_of(make_settings({"algorithm": "elastik"}))


def test_workers_default_to_the_slots() -> None:
    launch = launch_of(hosts=parse_hosts("localhost:3"))
    assert launch.groups[0].hosts == (Host("localhost", 3),)


def test_servers_for_other_hosts_get_keys_unless_told_otherwise() -> None:
    far, settings = parse_hosts("192.0.2.1:2"), make_settings({"groups": 2})
    assert launch_of(settings, hosts=far).makes_keys
    assert not launch_of(settings, hosts=far).bind.startswith("tcp://127.")
    assert not launch_of(settings, hosts=far, insecure=True).makes_keys
    assert not launch_of(settings, hosts=parse_hosts("localhost:2")).makes_keys
    assert not launch_of(make_settings({"groups": 2, "server_keys": "keys"}), hosts=far).makes_keys


def test_mxnet_s_servers_are_one_process_and_never_get_keys() -> None:
    far, settings = parse_hosts("192.0.2.1:2"), make_settings({"groups": 2, "backend": "mxnet"})
    with pytest.raises(ConfigError, match="open to everybody on the network.*--insecure"):
        launch_of(settings, hosts=far)
    launch = launch_of(settings, hosts=far, insecure=True, servers=3)
    assert not launch.makes_keys
    assert launch.servers == (ServerLaunch("servers", options=("--groups", "2", "--servers", "3")),)
    assert launch_of(settings, servers=0).servers == ()
    two = launch_of(make_settings({"groups": 2}), servers=2).servers
    assert [server.name for server in two] == ["server 0", "server 1"]
    with pytest.raises(ConfigError, match="--racks 2: MXNet's servers have no parents"):
        launch_of(make_settings({"groups": 2, "backend": "mxnet", "racks": 2}))


def test_servers_are_started_again_as_often_as_asked() -> None:
    two = make_settings({"groups": 2})
    again = ServerLaunch("server 0", options=("--restarts", "3"))
    assert launch_of(two).servers == launch_of(two, server_restarts=3).servers == (again,)
    assert launch_of(two, server_restarts=0).servers == (ServerLaunch("server 0"),)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "this launch starts no servers"),
        ({"groups": 2, "algorithm": "gossip"}, "this launch starts no servers"),
        ({"groups": 2, "racks": 2}, "the servers of racks lose their tables"),
        ({"groups": 2, "backend": "mxnet"}, "MXNet's servers lose their tables"),
    ],
)
def test_servers_that_cannot_go_on_are_not_started_again(options: dict[str, object], reason: str) -> None:
    settings = make_settings(options)
    with pytest.raises(ConfigError, match=f"--server-restarts 1 cannot be used: {reason}"):
        launch_of(settings, server_restarts=1)
    for unasked in (None, 0):
        assert not any(
            "--restarts" in server.options for server in launch_of(settings, server_restarts=unasked).servers
        )


def test_keys_go_to_those_alone_who_need_them() -> None:
    launch = launch_of(make_settings({"groups": 2, "keys": "for-me", "server_keys": "keys"}))
    group = launch.group_settings(launch.groups[0], ["tcp://127.0.0.1:5"], "word")
    server = launch.server_settings(launch.servers[0])
    assert (group.credentials, group.keys, group.server_keys) == ("word", "for-me", None)
    assert (server.credentials, server.keys, server.server_keys) == (None, None, "keys")
    assert launch.server_settings(launch.servers[0], keys="once").server_keys == "once"


def test_servers_without_keys_are_not_met_with_keys() -> None:
    mine = launch_of(make_settings({"groups": 2, "keys": "for-me"}))
    group = mine.group_settings(mine.groups[0], ["tcp://127.0.0.1:5"])
    assert (group.keys, group.credentials) == (None, None)
    theirs = launch_of(make_settings({"groups": 2, "keys": "for-me", "servers": "tcp://127.0.0.1:5"}))
    assert theirs.group_settings(theirs.groups[0], []).keys == "for-me"


def test_racks_have_servers_of_their_own_and_a_parent() -> None:
    launch = launch_of(make_settings({"groups": 5, "racks": 2, "keys": "for-me", "rack_index": 1}), servers=2)
    parent, *in_racks = launch.servers
    assert [server.name for server in launch.servers] == [
        "parent",
        *(f"rack {rack} server {index}" for rack in (0, 1) for index in (0, 1)),
    ]
    told = launch.server_settings(parent, credentials="word")
    assert (told.parents, told.racks, told.rack_index, told.keys, told.credentials) == ((), 1, 0, None, None)
    for server, rack in zip(in_racks, (0, 0, 1, 1), strict=True):
        told = launch.server_settings(server, ["tcp://127.0.0.1:5"], credentials="word")
        assert (told.parents, told.racks, told.rack_index) == (("tcp://127.0.0.1:5",), 2, rack)
        assert (told.keys, told.credentials) == ("for-me", "word")
    group = launch.group_settings(launch.groups[4], ["a", "b", "c", "d"])
    assert group.workers_on_host == sum(each.size for each in launch.groups)
    assert (group.racks, group.rack_index, group.servers) == (2, 0, ("a", "b", "c", "d"))


def test_racks_that_cannot_be_are_refused() -> None:
    with pytest.raises(PlanError, match="HYBRIDPS_RACKS=3, and 2 groups"):
        launch_of(make_settings({"groups": 2, "racks": 3}))
    with pytest.raises(PlanError, match="HYBRIDPS_RACKS=2, and 0 servers"):
        launch_of(make_settings({"groups": 2, "racks": 2}), servers=0)
    running = make_settings({"groups": 2, "racks": 2, "servers": "tcp://127.0.0.1:1"})
    with pytest.raises(PlanError, match="HYBRIDPS_RACKS=2, and 1 servers"):
        launch_of(running, workers=2)
    above = make_settings({"groups": 2, "racks": 2, "parents": "tcp://127.0.0.1:1"})
    assert [server.name for server in launch_of(above).servers] == ["rack 0 server 0", "rack 1 server 0"]


def test_secrets_are_on_no_command_line() -> None:
    exported = {"HYBRIDPS_CREDENTIALS": "word", "HYBRIDPS_TAU": "3"}
    for flavour in (OPEN_MPI, MPICH):
        line = Mpirun("mpirun", flavour).command(1, parse_hosts("a:1"), exported, ["x"])
        assert "word" not in line
        assert "HYBRIDPS_TAU" in line


def test_new_and_running_servers_exclude_each_other() -> None:
    running = make_settings({"groups": 2, "servers": "tcp://127.0.0.1:1"})
    assert launch_of(running, workers=2).servers == ()
    with pytest.raises(ConfigError, match="give only one of them"):
        launch_of(running, workers=2, servers=1)


@pytest.mark.parametrize("name", ["gossip", "gosgd", "sgp", "adaptive-gossip"])
def test_groups_that_gossip_need_no_server_and_know_each_other(name: str) -> None:
    launch = launch_of(make_settings({"algorithm": name}), workers=3)
    assert (launch.servers, launch.makes_keys) == ((), False)
    assert [group.size for group in launch.groups] == [1, 1, 1]
    told = launch.group_settings(launch.groups[1], [], folder="/tmp/of-run")
    assert told.peers == tuple(f"ipc:///tmp/of-run/group-{index}" for index in range(3))
    assert load_settings(child_environment({}, told)) == told
    with_server = launch_of(make_settings({"algorithm": name, "groups": 2}), workers=4, servers=1)
    assert [group.size for group in with_server.groups] == [2, 2]
    assert len(with_server.servers) == 1


@pytest.mark.parametrize(("name", "sizes"), [("async", [1, 1]), ("stale", [1, 1]), ("mpi-asgd", [2])])
def test_asynchronous_workers_are_groups_of_their_own(name: str, sizes: list[int]) -> None:
    launch = launch_of(make_settings({"algorithm": name}), workers=2)
    assert [group.size for group in launch.groups] == sizes


def test_groups_that_gossip_from_several_hosts_get_ports_and_keys() -> None:
    far = parse_hosts("192.0.2.1:1,192.0.2.2:2")
    launch = launch_of(make_settings({"algorithm": "gossip"}), hosts=far, insecure=True)
    assert launch.makes_keys
    told = launch.group_settings(launch.groups[0], [], "word", "/tmp/of-run")
    hosts, ports = zip(*(peer.removeprefix("tcp://").split(":") for peer in told.peers), strict=True)
    assert hosts == ("192.0.2.1", "192.0.2.2", "192.0.2.2")
    assert len(set(ports)) == 3
    assert told.credentials == "word"


def test_addresses_that_are_given_are_used() -> None:
    given = ["tcp://10.0.0.1:7000", "tcp://10.0.0.2:7000"]
    launch = launch_of(make_settings({"algorithm": "gossip", "peers": ",".join(given)}), workers=2)
    assert launch.makes_keys
    assert launch.group_settings(launch.groups[0], [], "word", "/tmp/of-run").peers == tuple(given)
    here = make_settings({"algorithm": "gossip", "peers": "tcp://127.0.0.1:7000,tcp://127.0.0.1:7001"})
    assert not launch_of(here, workers=2).makes_keys
    with pytest.raises(ConfigError, match="HYBRIDPS_PEERS has 2 addresses, and there are 3 groups"):
        launch_of(here, workers=3)


def test_algorithms_with_servers_tell_nobody_of_other_groups() -> None:
    launch = launch_of(make_settings({"algorithm": "elastic", "groups": 2}), workers=2)
    assert launch.group_settings(launch.groups[0], [], folder="/tmp/of-run").peers == ()


def test_ranks_read_what_the_launcher_decided() -> None:
    launch = launch_of(make_settings({"algorithm": "elastic", "groups": 2, "tau": 4}), workers=5)
    told = launch.group_settings(launch.groups[1], ["tcp://127.0.0.1:5"])
    environ = child_environment({"HOME": "/root", "HYBRIDPS_GROUPS": "7"}, told)
    assert environ["HOME"] == "/root"
    assert load_settings(environ) == told
    assert (told.group_index, told.group_sizes, told.tau, told.groups) == (1, (3, 2), 4, None)
    assert told.servers == ("tcp://127.0.0.1:5",)
    assert told.job == launch.settings.job != launch_of().settings.job
    assert launch.server_settings(launch.servers[0]).group_sizes is None


def test_options_go_over_the_environment_and_pairs_over_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDPS_TAU", "3")
    monkeypatch.setenv("HYBRIDPS_ALPHA", "0.5")
    settings = read_settings({"tau": 4, "alpha": None, "run_folder": "runs/x"}, ["chunk_bytes=4096", "HYBRIDPS_TAU=5"])
    assert (settings.tau, settings.alpha, settings.chunk_bytes) == (5, 0.5, 4096)
    assert settings.run_folder is not None
    assert settings.run_folder.startswith("/")


def test_a_budget_is_short_for_a_trigger() -> None:
    assert [trigger_of(*given) for given in ((None, None), ("every:3", None))] == [None, "every:3"]
    assert trigger_of(None, "10MB/s") == "budget:10MB/s"
    with pytest.raises(ConfigError, match="--trigger every:3 and --budget 1MB/s both say when"):
        trigger_of("every:3", "1MB/s")


def test_a_trigger_that_is_none_ends_the_launch_before_it_begins() -> None:
    with pytest.raises(ConfigError, match="did you mean 'every'"):
        launch_of(make_settings({"groups": 2, "trigger": "evry:3"}), workers=2)


@pytest.mark.parametrize(
    ("pair", "reason"), [("tau", "has no value"), ("tua=3", "HYBRIDPS_TAU"), ("tau=0", "cannot be used")]
)
def test_a_bad_pair_is_refused(pair: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_settings({}, [pair])


def test_the_command_line_of_open_mpi() -> None:
    mpirun = Mpirun("/bin/mpirun", OPEN_MPI)
    assert mpirun.command(2, (), {"A": "1"}, ["x"]) == (
        *("/bin/mpirun", "--oversubscribe", "--bind-to", "none"),
        *("-n", "2", "x"),
    )
    assert mpirun.command(2, parse_hosts("a:1,b:1"), {"A": "1"}, ["x"])[4:] == (
        *("--host", "a:1,b:1", "-x", "A"),
        *("-n", "2", "x"),
    )


def test_parts_of_lines_are_passed_on_where_mpirun_holds_them_back() -> None:
    new, old = "mpirun (Open MPI) 5.0.11", "mpirun (Open MPI) 4.1.6"
    for version, asked in ((new, True), (old, False)):
        command = Mpirun("mpirun", OPEN_MPI, version).command(1, (), {}, ["x"], at_once=True)
        assert ("--stream-buffering" in command) == asked


def test_the_command_line_of_mpich() -> None:
    assert Mpirun("mpirun", MPICH).command(2, parse_hosts("a:2"), {"A": "1"}, ["x"]) == (
        *("mpirun", "-hosts", "a:2", "-genv", "A", "1"),
        *("-n", "2", "x"),
    )


def test_the_command_line_of_intel_mpi_whose_hosts_have_no_numbers() -> None:
    mpirun = Mpirun("mpirun", INTEL_MPI)
    hosts, more = parse_hosts("a:2,b:2,c:1"), ["-env", "B", "2"]
    assert mpirun.command(3, hosts, {"A": "1"}, ["x", "y"], over_ssh=True, more=more) == (
        *("mpirun", "-launcher", "ssh", "-genv", "A", "1"),
        *(*more, "-host", "a", "-n", "2", "x", "y", ":", *more, "-host", "b", "-n", "1", "x", "y"),
    )
    assert mpirun.command(3, (), {}, ["x"]) == ("mpirun", "-n", "3", "x")


def test_intel_mpi_is_told_of_the_batch_system_as_by_its_script() -> None:
    mpirun, slurm = Mpirun("mpirun", INTEL_MPI), {"SLURM_JOBID": "1", "PBS_NODEFILE": "f"}
    assert mpirun.of_batch_system(slurm) == {"I_MPI_HYDRA_BOOTSTRAP": "slurm"}
    assert mpirun.of_batch_system({"PBS_ENVIRONMENT": "b", "PBS_NODEFILE": "f"}) == {
        "I_MPI_HYDRA_RMK": "pbs",
        "I_MPI_HYDRA_BOOTSTRAP": "pbs",
    }
    assert mpirun.of_batch_system(slurm | {"I_MPI_HYDRA_BOOTSTRAP": "ssh"}) == {}
    assert Mpirun("mpirun", MPICH).of_batch_system(slurm) == {}


@pytest.mark.parametrize(
    ("environ", "files", "used"),
    [
        ({}, [], "mpiexec.hydra"),
        ({}, ["bin/mpivars.sh"], "mpirun"),
        ({}, ["env/vars.sh"], "mpirun"),
        ({"I_MPI_ROOT": "here"}, ["env/vars.sh"], "mpiexec.hydra"),
        ({"I_MPI_ROOT": "here", "PE_HOSTFILE": "f"}, [], "mpirun"),
    ],
)
def test_the_program_of_intel_mpi_gets_the_signals(
    environ: dict[str, str], files: list[str], used: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "env").mkdir()
    (tmp_path / "bin" / "mpirun").write_text("#!/bin/sh\necho 'Intel(R) MPI Library for Linux* OS, Version 2021.18'\n")
    (tmp_path / "bin" / "mpiexec.hydra").write_text("#!/bin/sh\n")
    for path in [*files, "bin/mpirun", "bin/mpiexec.hydra"]:
        (tmp_path / path).touch()
        (tmp_path / path).chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin" / "python"))
    for name in ("I_MPI_ROOT", "PE_HOSTFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    found = find_mpirun()
    assert (found.path, str(found)) == (str(tmp_path / "bin" / used), "Intel MPI 2021.18")


def test_the_mpi_library_is_known_by_its_version() -> None:
    assert flavour_of("Intel(R) MPI Library for Linux* OS, Version 2021.18.1", "mpirun") == INTEL_MPI
    assert flavour_of("mpirun (Open MPI) 5.0.11", "mpirun") == OPEN_MPI
    assert flavour_of("HYDRA build details:\n    Version: 5.0.2", "mpirun") == MPICH
    with pytest.raises(ConfigError, match="neither Open MPI's, MPICH's nor Intel MPI's"):
        flavour_of("something else", "mpirun")


def test_ranks_share_the_cores() -> None:
    always = WITHOUT_OFI | {"I_MPI_PIN": "0"}
    assert rank_environment({}, cores=8, workers=3, processes=4) == {"OMP_NUM_THREADS": "2"} | always
    chosen = {"OMP_NUM_THREADS": "5", "OMPI_MCA_btl": "self,tcp", "I_MPI_PIN_DOMAIN": "core"}
    assert rank_environment(chosen, cores=8, workers=8, processes=8) == {}
    assert rank_environment({}, cores=2, workers=4, processes=5) == {
        "OMP_NUM_THREADS": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        **always,
    }


def test_children_are_not_taken_for_ranks_of_the_launchers_world() -> None:
    environ = {"PMIX_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "PRTE_MCA_x": "1", "OMPI_MCA_y": "2", "PATH": "/bin"}
    assert without_rank_marks(environ) == {"PRTE_MCA_x": "1", "OMPI_MCA_y": "2", "PATH": "/bin"}


def test_a_launch_without_a_name_goes_on_with_the_only_job_that_has_snapshots(tmp_path: Path) -> None:
    settings = make_settings({"groups": 2, "snapshots": str(tmp_path)})
    new = launch_of(settings)
    assert new.settings.job.startswith("run-")
    assert new.server_settings(new.servers[0]).snapshots == str(tmp_path)
    place = SnapshotFolder(str(tmp_path)).of(new.settings.job, 0, 1)
    place.path(7).mkdir(parents=True)
    assert launch_of(settings).settings.job == new.settings.job
    assert launch_of(make_settings({"groups": 2, "snapshots": str(tmp_path), "job": "mine"})).settings.job == "mine"
    assert launch_of(make_settings({"groups": 2})).settings.job not in ("job", new.settings.job)


@pytest.mark.parametrize(
    ("settings", "servers", "reason"),
    [
        ({}, None, "this launch starts no servers"),
        ({"groups": 2, "backend": "mxnet"}, None, "MXNet's servers take no snapshots"),
        ({"groups": 2, "racks": 2}, 1, "the servers of racks take no snapshots"),
    ],
)
def test_snapshots_that_cannot_be_taken_are_refused(
    settings: dict[str, object], servers: int | None, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"--snapshots {tmp_path} cannot be used: {reason}; omit"):
        launch_of(make_settings(settings | {"snapshots": str(tmp_path)}), servers=servers)
