"""Limited links: who may make them, and that nothing of them is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hybridps.links import INTERFACE, LinksError, _program, bits_per_second, limited_links, missing

SECONDS = 20

HOLDS = """
import subprocess, sys, time
from hybridps.links import limited_links
with limited_links(2, "100mbit") as links:
    inside = subprocess.Popen([*links.inside(links.addresses[1]), "sleep", "100"], start_new_session=True)
    print(links.prefix, inside.pid, links.folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module", autouse=True)
def _links_can_be_made() -> None:
    if reason := missing():
        pytest.skip(reason)


def namespaces() -> list[str]:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()


def wait_for(condition) -> bool:
    end = time.monotonic() + SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def test_each_node_is_limited_both_ways_and_reaches_the_others() -> None:
    with limited_links(2, "100mbit") as links:
        for where, interface in ((links.namespace(links.addresses[0]), INTERFACE), (links.switch, "port1")):
            told = subprocess.run(
                [_program("tc"), "-n", where, "qdisc", "show", "dev", interface], capture_output=True, text=True
            )
            assert "tbf" in told.stdout
            assert "rate 100Mbit" in told.stdout
        before = links.nbytes()
        ping = [*links.inside(links.addresses[0]), sys.executable, "-c", SENDS, links.addresses[1]]
        with subprocess.Popen(
            [*links.inside(links.addresses[1]), sys.executable, "-c", LISTENS], stdout=subprocess.PIPE, text=True
        ) as listener:
            assert listener.stdout.readline() == "ready\n"
            subprocess.run(ping, check=True, timeout=SECONDS)
            assert listener.stdout.readline() == "1000000\n"
        assert 1_000_000 < links.nbytes() - before < 1_500_000
        names = set(links.namespaces)
    assert not names & set(namespaces())


LISTENS = """
import socket
with socket.create_server(("0.0.0.0", 7777)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    count = 0
    while data := connection.recv(1 << 16):
        count += len(data)
    print(count, flush=True)
"""
SENDS = """
import socket, sys
with socket.create_connection((sys.argv[1], 7777)) as connection:
    connection.sendall(bytes(1_000_000))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, None])
def test_nothing_is_left_behind(number: int | None) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        prefix, inside, folder = owner.stdout.readline().split()
        Path(folder, "file").touch()
        assert sum(name.startswith(prefix) for name in namespaces()) == 4
        assert os.path.exists(f"/proc/{inside}")
        if number is None:
            owner.stdin.close()
        else:
            owner.send_signal(number)
        assert wait_for(lambda: not any(name.startswith(f"{prefix}-") for name in namespaces()))
        assert wait_for(lambda: not os.path.exists(f"/proc/{inside}") or _is_zombie(inside))
        assert wait_for(lambda: not os.path.exists(folder))


def test_the_keeper_runs_nothing_of_the_working_folder(tmp_path: Path) -> None:
    for name in ("json.py", "msgspec.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    code = "import os, sys\nfrom hybridps.links import limited_links\n"
    code += f"os.chdir({str(tmp_path)!r})\nwith limited_links(1, '1gbit'): print('made')\n"
    path = f"{os.environ.get('PYTHONPATH', '')}{os.pathsep}"  # its last part is empty: the working folder
    environ = os.environ | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=SECONDS)
    assert done.stdout == "made\n", done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_keeper_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(LinksError, match="could not be started"), limited_links(1, "1gbit"):
        pass


def test_a_keeper_that_is_killed_leaves_nothing() -> None:
    with limited_links(1, "1gbit") as links:
        for keeper in _keepers(links.prefix):
            os.kill(keeper, signal.SIGKILL)
    assert not [name for name in namespaces() if name.startswith(f"{links.prefix}-")]
    os.rmdir(links.folder)


def _keepers(prefix: str) -> list[int]:
    found = subprocess.run(
        ["ps", "-eww", "-o", "pid,args"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    keepers = [int(line.split()[0]) for line in found if f"keep('{prefix}')" in line]
    assert len(keepers) == 1
    return keepers


def test_processes_that_start_others_are_killed_too() -> None:
    """Each starts the next one, in a session of its own, and ends."""
    again = "import os, sys\nos.fork() and os._exit(0)\nos.setsid()\nos.execv(sys.executable, sys.orig_argv)\n"
    with limited_links(1, "1gbit") as links:
        name = links.namespaces[-1]
        subprocess.run([*links.inside(links.addresses[0]), sys.executable, "-c", again], check=True, timeout=SECONDS)
    assert name not in namespaces()
    left = subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    assert "sys.orig_argv" not in left


def _is_zombie(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_what_was_left_behind_without_a_keeper_goes_with_the_next_use() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = f"hybridps-{gone.pid}-10.77.0.2"
    subprocess.run(["ip", "netns", "add", left], check=True)
    assert missing() == ""
    assert left not in namespaces()


def refusal(rate: str = "1gbit", first: str = "", **how) -> str:
    code = f"import os\nfrom hybridps.links import limited_links, LinksError\n{first}\n"
    code += f"try:\n    limited_links(1, {rate!r}).__enter__()\n"
    code += "except LinksError as error:\n    print(error)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, **how)
    return done.stdout + done.stderr


def test_without_the_privilege_or_the_programs_the_reason_is_said() -> None:
    assert "network namespaces, which only root can make" in refusal(first="os.setuid(65534)")
    assert "limited links need unshare, which is not here" in refusal(env=os.environ | {"PATH": "/nowhere"})
    assert "'fast' is not a rate: write 1gbit" in refusal("fast")


def test_rates() -> None:
    assert bits_per_second("2.5gbit") == 2.5e9
    for wrong in ("0mbit", "10", "10mb", "-1mbit"):
        with pytest.raises(ValueError, match="is not a rate"):
            bits_per_second(wrong)
    with pytest.raises(LinksError, match="300 nodes do not fit"), limited_links(300, "1gbit"):
        pass
