"""A process that is started again with its kept memory. `hybridps serve --restarts` is tested in test_cli_serve."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable

import psutil
import pytest

from hybridps.cli.serve import alone
from hybridps.cli.serve.options import ServeOptions
from hybridps.config import Settings
from hybridps.errors import ConfigError, ServerError
from hybridps.ps.server.kept import KeptMemory, supervise

pytestmark = pytest.mark.timeout(30)


def die(how: str) -> int:
    """End this process as a word says."""
    if how.startswith("signal"):
        os.kill(os.getpid(), int(how.removeprefix("signal ")))
    if how == "error":
        raise ConfigError("a value cannot be used")
    if how == "bug":
        raise RuntimeError("a bug")
    return int(how)


@pytest.mark.parametrize(
    ("lives", "restarts", "status", "said"),
    [
        (["0"], 2, 0, []),
        (["2"], 2, 2, []),
        (["error"], 2, 2, []),
        (
            ["signal 9", "0"],
            2,
            0,
            ["the server was killed by signal 9; restarted, 1 of 2; its tables are kept"],
        ),
        (
            ["1", "signal 15"],
            1,
            143,
            [
                "the server ended with exit status 1; restarted, 1 of 1; its tables are kept",
                "the server was killed by signal 15; no restarts are left",
            ],
        ),
        (
            ["bug", "bug", "serves", "bug", "bug", "0"],
            9,
            0,
            [
                f"the server {how}; restarted, {number} of 9; its tables are kept"
                for number, how in enumerate(
                    [*2 * ["ended with exit status 1"], "was killed by signal 9", *2 * ["ended with exit status 1"]], 1
                )
            ],
        ),
        (
            ["bug", "bug", "signal 9", "0"],
            5,
            137,
            [
                "the server ended with exit status 1; restarted, 1 of 5; its tables are kept",
                "the server ended with exit status 1; restarted, 2 of 5; its tables are kept",
                "the server was killed by signal 9; 3 processes in a row ended before they served: not started again",
            ],
        ),
    ],
)
def test_what_follows_a_death(lives: list[str], restarts: int, status: int, said: list[str]) -> None:
    heard: list[str] = []

    def live(kept: KeptMemory) -> int:
        before = kept.keys("")
        assert before == [f"life {number}" for number in range(kept.life)]
        kept.put(f"life {kept.life}", b"")
        if lives[kept.life] == "serves":
            kept.mark_serving()
            return die("signal 9")
        return die(lives[kept.life])

    assert supervise(live, restarts, heard.append) == status
    assert heard == said


def test_nothing_of_a_supervisor_is_left() -> None:
    descriptors, children = len(os.listdir("/proc/self/fd")), psutil.Process().children()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert supervise(lambda kept: 0, 1, print) == 0
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
    assert psutil.Process().children() == children


def asked(port: int) -> alone._Asked:
    return alone._Asked(ServeOptions(bind=f"tcp://127.0.0.1:{port}"), Settings(), None)


def in_use(times: int) -> tuple[Callable[[], str], list[int]]:
    """What fails so many times, as an address does that is in use."""
    tried: list[int] = []

    def open_it() -> str:
        tried.append(len(tried))
        if len(tried) <= times:
            raise ServerError("cannot serve at tcp://127.0.0.1:9: Address already in use; use another address")
        return "open"

    return open_it, tried


def test_an_address_in_use_is_waited_for_as_long_as_asked() -> None:
    open_it, tried = in_use(3)
    assert alone._once_free(open_it, 10.0) == "open"
    assert len(tried) == 4
    open_it, tried = in_use(3)
    with pytest.raises(ServerError, match="already in use"):
        alone._once_free(open_it, 0.0)
    assert len(tried) == 1


def test_a_later_life_waits_for_the_address_of_the_first_one() -> None:
    descriptor = KeptMemory.create()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ServerError, match="in use"):
            alone._open(asked(port), KeptMemory(descriptor))
        KeptMemory(descriptor).put("serve/address", f"tcp://127.0.0.1:{port}".encode())
        freed = threading.Timer(0.2, other.close)
        freed.start()
        server, metrics = alone._open(asked(0), KeptMemory(descriptor))
    with server:
        assert server.address == f"tcp://127.0.0.1:{port}"
        assert metrics == []
    freed.join()
    os.close(descriptor)
