"""Groups whose processes have ended, as a launcher tells its servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from in_thread import in_thread

from hybridps.config import Settings
from hybridps.errors import ServerError
from hybridps.memory import Layout
from hybridps.ps.client import Client, silent_groups
from hybridps.ps.rules import Elastic, Sum
from hybridps.ps.server import Server

pytestmark = pytest.mark.timeout(30)

LAYOUT = Layout.of("float32", {"w": (16,)})
SETTINGS = Settings(lost_seconds=600.0, deadline_seconds=600.0)
"""A group that is not told of waits for longer than the test may take."""


def until(condition: Callable[[], bool]) -> None:
    """Looks again and again: the server's own thread makes it true."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_others_go_on_without_a_group_that_has_ended() -> None:
    with in_thread(Server.of(SETTINGS, "tcp://127.0.0.1:*")) as server:
        clients = [
            Client([server.address], job=job, group=group, groups=2, settings=SETTINGS)
            for job in ("job", "other")
            for group in (0, 1)
        ]
        for client in clients:
            client.register("w", LAYOUT, np.zeros(16, np.float32), Sum())
        answer = np.zeros(16, np.float32)
        waiting = clients[0].exchange("w", np.ones(16, np.float32), answer, 0, 16)
        for job, group in (("nobody", 1), ("job", 7), ("job", 1)):
            server.end_group(job, group)
        waiting.wait()
        assert answer.tolist() == [1.0] * 16
        told = "this group has ended, as its launcher says, was treated as lost, .*: register again with a new client$"
        with pytest.raises(ServerError, match=told):
            clients[1].exchange("w", answer, answer, 0, 16).wait()
        pending = [client.exchange("w", np.ones(16, np.float32), answer, 0, 16) for client in clients[2:]]
        for each in pending:
            each.wait()
        assert answer.tolist() == [2.0] * 16, "the other job still has both groups"
        for client in clients:
            client.close(lost=True) if client is clients[1] else client.close()


def test_a_group_that_has_ended_is_silent_at_once_until_it_is_back() -> None:
    with in_thread(Server.of(SETTINGS, "tcp://127.0.0.1:*")) as server:
        clients = [Client([server.address], job="job", group=group, groups=2, settings=SETTINGS) for group in (0, 1)]
        asked = [server.address], clients[1].session.number, 600.0, SETTINGS
        assert silent_groups(*asked) == ()
        server.end_group("job", 0, returns=True)
        until(lambda: silent_groups(*asked) == (0,))
        again = Client([server.address], job="job", group=0, groups=2, settings=SETTINGS)
        assert silent_groups(*asked) == ()
        for client in (again, clients[1]):
            client.close()
        clients[0].close(lost=True)


def test_an_end_that_is_told_while_the_server_closes_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    for _ in range(20):
        server, closed = Server(threads=1), threading.Event()

        def tell(server: Server = server, closed: threading.Event = closed) -> None:
            while not closed.is_set():
                server.end_group("job", 1)

        tells = threading.Thread(target=tell)
        tells.start()
        with in_thread(server):
            pass
        closed.set()
        tells.join()
    assert failures == []


def test_the_end_of_an_earlier_life_that_is_told_late_changes_nothing() -> None:
    with in_thread(Server.of(SETTINGS, "tcp://127.0.0.1:*")) as server:
        again = msgspec.structs.replace(SETTINGS, life=1)
        clients = [
            Client([server.address], job="job", group=group, groups=2, settings=settings)
            for group, settings in ((0, SETTINGS), (1, again))
        ]
        asked = [server.address], clients[0].session.number, 600.0, SETTINGS
        server.end_group("job", 1, returns=True, life=0)
        server.end_group("job", 0, returns=False, life=0)
        until(lambda: silent_groups([server.address], clients[1].session.number, 600.0, SETTINGS) == (0,))
        clients[1].register("w", LAYOUT, np.zeros(16, np.float32), Sum())
        with pytest.raises(ServerError):
            silent_groups(*asked)
        clients[1].close()
        clients[0].close(lost=True)


def expecting() -> Server:
    server = Server.of(SETTINGS, "tcp://127.0.0.1:*")
    server.expect_ends()
    return server


@pytest.mark.parametrize("when", ["before the other came", "when it has registered", "when it waits in a round"])
@pytest.mark.parametrize("group", [0, 1])
def test_nobody_waits_for_a_group_that_ended_before_it_came(group: int, when: str) -> None:
    answer = np.zeros(16, np.float32)
    with in_thread(expecting()) as server:
        if when == "before the other came":
            server.end_group("job", group)
        with Client([server.address], job="job", group=1 - group, groups=2, settings=SETTINGS) as client:
            timer = threading.Timer(0.3, server.end_group, ["job", group])
            if when != "before the other came" and group == 0:
                timer.start()  # the table waits for group 0 to initialise it
            client.register("w", LAYOUT, np.zeros(16, np.float32), Sum())
            if when == "when it has registered" and group == 1:
                server.end_group("job", group)
            if when == "when it waits in a round" and group == 1:
                timer.start()
            client.exchange("w", np.ones(16, np.float32), answer, 0, 16).wait()
            assert answer.tolist() == [1.0] * 16


def test_a_group_that_comes_when_another_one_has_finished_gets_its_centre() -> None:
    with in_thread(expecting()) as server:
        for group, initial in ((0, 1.0), (1, 5.0)):
            with Client([server.address], job="job", group=group, groups=2, settings=SETTINGS) as client:
                client.register("w", LAYOUT, np.full(16, initial, np.float32), Elastic(0.5))
                found = np.zeros(16, np.float32)
                client.pull("w", found)
                assert found.tolist() == [1.0] * 16
            server.end_group("job", group)
        until(lambda: server._loop.jobs.get("job") is None)


def test_a_job_whose_last_group_ended_before_it_came_is_forgotten() -> None:
    with in_thread(expecting()) as server:
        with Client([server.address], job="job", group=0, groups=2, settings=SETTINGS) as client:
            client.register("w", LAYOUT, np.ones(16, np.float32), Elastic(0.5))
        server.end_group("job", 0)
        server.end_group("job", 1)
        until(lambda: server._loop.jobs.get("job") is None)
