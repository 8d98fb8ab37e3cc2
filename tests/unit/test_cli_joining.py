"""What the launcher of groups that join a job asks its first server, and what it refuses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from in_thread import in_thread

from hybridps.cli.app import main
from hybridps.cli.run.joining import tell_end
from hybridps.cli.run.plan import Launch, make_launch
from hybridps.config import Settings
from hybridps.errors import ConfigError, ServerError
from hybridps.ps.client import Client
from hybridps.ps.server import Server

pytestmark = pytest.mark.timeout(30)


@contextmanager
def running(**settings: object) -> Iterator[Client]:
    """The first client of a job of two groups of one worker each."""
    given = Settings(group_sizes=(1, 1), heartbeat_seconds=0.05, **settings)  # type: ignore[arg-type]
    with in_thread(Server("tcp://127.0.0.1:*", threads=1)) as server:
        clients = [Client([server.address], job="mine", group=group, groups=2, settings=given) for group in (0, 1)]
        yield clients[0]
        for client in clients:
            client.close()


def joined(address: str, workers: int = 1, **settings: object) -> Launch:
    return make_launch(["true"], Settings(**settings), workers=workers, join=[address])  # type: ignore[arg-type]


def test_a_launch_has_the_numbers_and_settings_that_the_server_gives_and_says_when_it_ends() -> None:
    with running(algorithm="elastic", tau=7) as client:
        launch = joined(client.session.addresses[0], workers=3)
        assert [(group.index, group.number) for group in launch.groups] == [(0, 2)]
        assert launch.sizes == (1, 1, 3)
        of_group = launch.group_settings(launch.groups[0], ())
        assert (of_group.job, of_group.algorithm, of_group.tau, of_group.joins) == ("mine", "elastic", 7, 2)
        assert (of_group.group_index, of_group.group_sizes) == (2, (1, 1, 3))
        assert of_group.servers == client.session.addresses
        with Client(of_group.servers, job="mine", group=2, groups=3, settings=of_group) as other:
            until(lambda: client.session.counted == (3, 5))
            tell_end(launch, 0, of_group.life, returns=False)
            until(lambda: client.session.counted == (2, 2))
            other.close(lost=True)


@pytest.mark.parametrize(
    ("job", "mine", "named"),
    [
        ({"algorithm": "elastic"}, {"job": "other"}, "no job 'other' is here"),
        ({"algorithm": "elastic"}, {"algorithm": "local"}, "HYBRIDPS_ALGORITHM is elastic in job 'mine', and local"),
        ({"algorithm": "easgd"}, {}, "it has the algorithm easgd, whose groups are in step"),
        ({"algorithm": "elastic", "backend": "mxnet"}, {}, "cannot be joined: it has the backend mxnet: groups can"),
        ({"algorithm": "elastic", "racks": 2}, {}, "cannot be joined: it has racks"),
    ],
)
def test_what_cannot_be_joined_is_refused(job: dict[str, object], mine: dict[str, object], named: str) -> None:
    with running(**job) as client, pytest.raises((ConfigError, ServerError), match=named):
        joined(client.session.addresses[0], **mine)


@pytest.mark.parametrize(("option", "status"), [("--dry-run", 0), ("--run=/dev/null/x", 2)])
def test_a_launch_that_does_not_start_gives_its_numbers_back(option: str, status: int) -> None:
    with running(algorithm="elastic") as client:
        address = client.session.addresses[0]
        with pytest.raises(SystemExit) as ended:
            main(["run", "--join", address, option, "--", "true"])
        assert (ended.value.code or 0) == status
        assert [group.number for group in joined(address).groups] == [2]


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(ServerError, match=r"no answer from tcp://127\.0\.0\.1:9 within 0\.2 s"):
        joined("tcp://127.0.0.1:9", connect_seconds=0.2)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
