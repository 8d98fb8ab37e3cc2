"""`hybridps run -H` on two hosts with an sshd each: networks, names, processes and file systems of their own.

It skips where openssh-server is not installed, and without root.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from namespaces import TRAIN, Cluster, Program, missing, two_hosts, wait_for

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

HYBRIDPS = f"{sys.prefix}/bin/hybridps"
LONG = "100000"
"""More steps than a test takes."""

SOON = ("--set", "start_seconds=45")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "train.py").write_text(TRAIN)
    with two_hosts(str(tmp_path)) as hosts:
        yield hosts


def start(cluster: Cluster, folder: Path, steps: str, *options: str, **variables: str) -> Program:
    words = [HYBRIDPS, "run", "-H", "hosta:2,hostb:2", *options, "--", "python", f"{folder}/train.py", steps]
    return Program(cluster.hosts[0], *words, **variables)


def start_training(cluster: Cluster, folder: Path, *options: str, **variables: str) -> Program:
    """A job of two groups, on a host each, when all workers train."""
    for _ in range(2):  # a daemon of Open MPI (prted) hangs at times in a fork on a busy host
        job = start(cluster, folder, LONG, "--groups", "2", "--algorithm", "elastic", *SOON, *options, **variables)
        wait_for(lambda: job.has("trains on", 4) or job.process.poll() is not None, 90, about=job)  # noqa: B023
        if job.has("trains on", 4):
            return job
    raise AssertionError(str(job))


def test_two_groups_on_two_hosts_meet_at_a_server_with_keys(cluster: Cluster, tmp_path: Path) -> None:
    job = start(cluster, tmp_path, "50", "--groups", "2", "--algorithm", "sync", "--run", f"{tmp_path}/run")
    assert job.end(150) == 0, str(job)
    assert job.has("serving at tcp://10.77.0.1:"), str(job)
    where = {line.partition("] ")[2] for line in job.lines if "trains on" in line}
    hosts = ("hosta", "hosta", "hostb", "hostb")
    assert where == {f"worker {worker} of 4 trains on {host}" for worker, host in enumerate(hosts)}
    assert all(job.has(f"worker {worker} has 4") for worker in range(4)), str(job)
    assert len([*(tmp_path / "run").glob("hybridps-[0-3].jsonl")]) == 4
    assert [host.leftovers() for host in cluster.hosts] == [[], []]


def test_one_group_on_two_hosts(cluster: Cluster, tmp_path: Path) -> None:
    job = start(cluster, tmp_path, "5", "--algorithm", "sync")
    assert job.end(150) == 0, str(job)
    assert all(job.has(f"worker {worker} has 4") for worker in range(4)), str(job)
    assert [host.leftovers() for host in cluster.hosts] == [[], []]


def test_a_killed_launcher_leaves_nothing_on_either_host(cluster: Cluster, tmp_path: Path) -> None:
    job = start_training(cluster, tmp_path)
    job.send("KILL")
    assert job.end() != 0
    for host in cluster.hosts:
        wait_for(lambda: not host.leftovers())  # noqa: B023


def test_a_host_that_ends_is_named_and_the_other_group_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    job = start_training(cluster, tmp_path, "--set", "lost_seconds=3")
    cluster.hosts[1].close()
    wait_for(lambda: job.has("(no connection to the host hostb); the other groups go on"), about=job)
    wait_for(lambda: job.has("group 1 of job"))
    job.send("TERM")
    job.end()
    assert job.has("SIGTERM: stopping 1 group and 1 server"), str(job)
    assert cluster.hosts[0].leftovers() == []


def test_a_host_that_lets_nobody_in_is_named(cluster: Cluster, tmp_path: Path) -> None:
    cluster.hosts[1].do("rm /root/.ssh/authorized_keys")
    job = start(cluster, tmp_path, "5", "--groups", "2", "--algorithm", "elastic")
    status = job.end(150)
    assert status not in (0, -9), str(job)
    assert job.has("group 1 ended with exit status"), str(job)
    assert job.has("(no connection to the host hostb)"), str(job)
    assert [host.leftovers() for host in cluster.hosts] == [[], []]
