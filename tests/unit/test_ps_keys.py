"""Who may talk to a server beyond the loopback, and what the others are told, on both sides."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from contextlib import contextmanager

import msgspec
import numpy as np
import psutil
import pytest
from in_thread import in_thread

from hybridps.config import Settings, to_environment, without_secrets
from hybridps.errors import ConfigError, ServerError
from hybridps.memory import Layout
from hybridps.ps.client import Client, ask
from hybridps.ps.client.sockets import Sockets
from hybridps.ps.keys import AllowList, Credentials, Quotas, make_tenant
from hybridps.ps.model import Joining
from hybridps.ps.rules import Sum
from hybridps.ps.server import Server
from hybridps.ps.wire import Silence
from hybridps.ps.zmq_sockets import has_message

pytestmark = pytest.mark.timeout(120)

LAYOUT = Layout.of("float32", {"w": (600,)})
SETTINGS = Settings(chunk_bytes=1024, connect_seconds=5.0, deadline_seconds=20.0, lost_seconds=5.0)


@pytest.fixture
def folder(tmp_path):
    """Keys of two tenants."""
    for name in ("alice", "bob"):
        make_tenant(tmp_path / "keys", name)
    return tmp_path / "keys"


@contextmanager
def serving(folder=None, address="tcp://0.0.0.0:*", **options):
    with in_thread(Server(address, allowed=folder and AllowList.load(folder), **options)) as server:
        yield server.address.replace("0.0.0.0", "127.0.0.1")


def settings(folder=None, **changes):
    return msgspec.structs.replace(SETTINGS, keys=folder and str(folder), **changes)


def client(address, folder=None, job="job", group=0, groups=1):
    return Client([address], job=job, group=group, groups=groups, settings=settings(folder))


def exchanged(store, number):
    values = np.full(LAYOUT.length, number, np.float32)
    store.exchange("w", values, values, 0, LAYOUT.length).wait()
    return float(values[0])


def test_tenants_with_keys_are_let_in_and_never_meet(folder):
    with (
        serving(folder) as address,
        client(address, folder / "for-alice") as alice,
        client(address, folder / "for-bob") as bob,
    ):
        for store in (alice, bob):
            store.register("w", LAYOUT, None, Sum())
        assert (exchanged(alice, 1), exchanged(bob, 2), exchanged(alice, 3)) == (1, 2, 3)


def said_by(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def mixed(folder, what):
    """Credentials that are not what they should be."""
    alice, bob = Credentials.load(folder / "for-alice"), Credentials.load(folder / "for-bob")
    return {
        "none": None,
        "unknown": msgspec.structs.replace(alice, **other_pair(folder)),
        "other server": msgspec.structs.replace(alice, server=other_pair(folder)["public"]),
        "other token": msgspec.structs.replace(alice, token=bob.token),
        "other tenant": msgspec.structs.replace(alice, tenant="bob", token=bob.token),
    }[what]


def other_pair(folder):
    stranger = folder.parent / "elsewhere"
    theirs = stranger / "for-eve"
    if not theirs.exists():
        make_tenant(stranger, "eve")
    eve = Credentials.load(theirs)
    return {"public": eve.public, "secret": eve.secret}


@pytest.mark.parametrize(
    ("what", "heard", "logged"),
    [
        ("none", "without keys: it demands them; set HYBRIDPS_KEYS", "without keys"),
        ("unknown", "it knows no tenant that has them", "which is no tenant's"),
        ("other server", "or others than server.key here says", "another key of this server"),
        ("other token", "the token is not that of the key.*'alice'", "the token is not that of the key"),
        ("other tenant", "key of tenant 'alice', and says it is 'bob'", "the token is not that of the key"),
    ],
)
def test_others_are_told_in_one_line_on_both_sides(folder, caplog, what, heard, logged):
    credentials = mixed(folder, what)
    given = msgspec.structs.replace(SETTINGS, credentials=credentials and credentials.text())
    with serving(folder) as address:
        with pytest.raises(ServerError, match=heard) as refused:
            Client([address], job="job", group=0, groups=1, settings=given)
        with client(address, folder / "for-bob") as store:
            assert store.register("w", LAYOUT, None, Sum()) is Joining.NEW
    assert "\n" not in str(refused.value)
    lines = [line for line in said_by(caplog) if "refused" in line]
    assert len(lines) == 1
    assert logged in lines[0]


def test_keys_for_a_server_that_has_none(folder):
    with (
        serving(address="tcp://127.0.0.1:*") as address,
        pytest.raises(ServerError, match="with keys: it has none"),
    ):
        client(address, folder / "for-alice")


def asked(address, folder):
    return ask(address, Silence(1, 1.0), settings(folder), 5.0)


@pytest.mark.parametrize("talk", [client, asked])
def test_a_handshake_that_has_failed_before_anything_is_sent(folder, monkeypatch, talk):
    def opened(self, address, really=Sockets._open):
        really(self, address)
        assert self.monitors[-1].poll(5000)
        for _ in range(5):  # its threads and the socket agree on the end of a connection in several steps
            time.sleep(0.1)
            assert not has_message(self.sockets[-1])

    monkeypatch.setattr(Sockets, "_open", opened)
    with (
        serving(address="tcp://127.0.0.1:*") as address,
        pytest.raises(ServerError, match="with keys: it has none"),
    ):
        talk(address, folder / "for-alice")


def test_beyond_the_loopback_keys_are_demanded():
    with pytest.raises(ServerError, match="hybridps keys"):
        Server("tcp://0.0.0.0:*")


def test_keys_are_files_that_nobody_else_can_read(folder):
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    (folder / "server.key_secret").chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by others"):
        AllowList.load(folder)
    (folder / "for-bob" / "tenant.json").chmod(0o640)
    with pytest.raises(ConfigError, match="can be read by others"):
        Credentials.load(folder / "for-bob")


def test_what_is_handed_over_is_not_at_the_server(folder):
    """The server's part has the digest of the token, and no tenant's secret key."""
    alice = Credentials.load(folder / "for-alice")
    served = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file() and "for-" not in str(path))
    assert alice.public.encode() in served
    assert alice.secret.encode() not in served
    assert alice.token.encode() not in served


def test_credentials_go_as_one_word_and_are_never_shown(folder):
    alice = Credentials.load(folder / "for-alice")
    assert Credentials.of(Settings(credentials=alice.text())) == alice
    assert to_environment(Settings(credentials=alice.text())) == {"HYBRIDPS_CREDENTIALS": alice.text()}
    assert to_environment(without_secrets(Settings(credentials=alice.text()))) == {}
    assert Credentials.of(Settings()) is None
    with pytest.raises(ConfigError, match="HYBRIDPS_CREDENTIALS cannot be read"):
        Credentials.of(Settings(credentials="nonsense"))


@pytest.mark.parametrize("name", ["", "a/b", "x" * 65, "../a"])
def test_a_name_that_cannot_be_used(folder, name):
    with pytest.raises(ConfigError, match="is not a name of a tenant"):
        make_tenant(folder, name)


def test_keys_are_not_overwritten(folder):
    before = (folder / "server.key").read_text()
    with pytest.raises(ConfigError, match="'bob' already"):
        make_tenant(folder, "bob")
    make_tenant(folder, "carol", Quotas(memory_bytes=1 << 30))
    assert (folder / "server.key").read_text() == before
    tenants = {tenant.name: tenant.quotas for tenant in AllowList.load(folder).tenants.values()}
    assert tenants == {"alice": Quotas(), "bob": Quotas(), "carol": Quotas(1 << 30)}


@pytest.mark.parametrize("gone", ["server.key_secret", "tenants", "tenants/bob.json"])
def test_a_folder_that_is_not_complete(folder, gone):
    path = folder / gone
    for each in [*path.glob("*")] if path.is_dir() else [path]:
        each.unlink()
    with pytest.raises(ConfigError, match="hybridps keys"):
        AllowList.load(folder)


def test_the_commands(tmp_path):
    """Make keys, serve with them on the network, and train as a tenant; a job without them gets one line."""
    folder = tmp_path / "keys"
    made = subprocess.run(
        [sys.executable, "-m", "hybridps", "keys", str(folder), "team", "--memory", "1G", "--rate", "500M"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"HYBRIDPS_SERVER_KEYS={folder}" in made.stdout
    (tenant,) = AllowList.load(folder).tenants.values()
    assert tenant.quotas == Quotas(1 << 30, 500 << 20)
    serve = [sys.executable, "-m", "hybridps", "serve", "--bind", "tcp://0.0.0.0:*", "--keys", str(folder)]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        address = server.stdout.readline().split()[-1].replace("0.0.0.0", "127.0.0.1")
        with pytest.raises(ServerError, match="without keys"):
            client(address)
        with client(address, folder / "for-team") as store:
            store.register("w", LAYOUT, None, Sum())
            assert exchanged(store, 5) == 5
        server.terminate()
        _, errors = server.communicate(timeout=60)
    assert server.returncode == 0
    assert errors.count("\n") == 1
    assert "refused a connection (1 so far): a client came without keys" in errors


# On a network


@pytest.fixture(scope="module")
def network():
    """Words before a command that shall be there, and an address there which is not of the loopback."""
    addresses = [each for of_link in psutil.net_if_addrs().values() for each in of_link]
    found = [
        each.address for each in addresses if each.family is socket.AF_INET and not each.address.startswith("127.")
    ]
    if found:
        yield [], found[0]
        return
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("this host has the loopback alone, and a network namespace needs root and `ip`")
    name, address = f"hybridps-keys-{os.getpid()}", "10.78.0.1"
    inside = ["ip", "netns", "exec", name]
    try:
        subprocess.run(["ip", "netns", "add", name], check=True, timeout=20)
        for words in ("link set lo up", "link add link0 type dummy", "link set link0 up"):
            subprocess.run([*inside, "ip", *words.split()], check=True, timeout=20)
        subprocess.run([*inside, "ip", "address", "add", f"{address}/24", "dev", "link0"], check=True, timeout=20)
        yield inside, address
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False, timeout=20)


JOIN = """
import sys
from hybridps.config import load_settings
from hybridps.errors import HybridPSError
from hybridps.ps.client import Client
try:
    Client([sys.argv[1]], job="job", group=0, groups=1, settings=load_settings()).close()
except HybridPSError as error:
    sys.exit(str(error))
"""


def environment(**variables):
    return os.environ | variables


def test_a_server_on_a_network_does_not_start_without_keys(network):
    inside, address = network
    command = [*inside, sys.executable, "-m", "hybridps", "serve", "--bind", f"tcp://{address}:*"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"tcp://{address}:* can be reached from other hosts" in done.stderr
    assert "make keys with `hybridps keys`" in done.stderr


@pytest.mark.parametrize(
    ("what", "heard", "logged"),
    [
        ("none", "refused a connection without keys", "a client came without keys"),
        ("unknown", "it knows no tenant that has them", "which is no tenant's"),
        ("other token", "the token is not that of the key", "the token is not that of the key"),
    ],
)
def test_a_job_on_a_network_is_refused_in_one_line_on_both_sides(network, folder, what, heard, logged):
    inside, address = network
    credentials = mixed(folder, what)
    given = {} if credentials is None else {"HYBRIDPS_CREDENTIALS": credentials.text()}
    serve = [*inside, sys.executable, "-m", "hybridps", "serve", "--bind", f"tcp://{address}:*", "--keys", str(folder)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(serve, env=environment(), **options) as server:
        there = server.stdout.readline().split()[-1]
        assert there.startswith(f"tcp://{address}:")
        join = [*inside, sys.executable, "-c", JOIN, there]
        done = subprocess.run(join, env=environment(**given), capture_output=True, text=True, timeout=60, check=False)
        server.terminate()
        _, errors = server.communicate(timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert heard in done.stderr
    assert (server.returncode, errors.count("\n")) == (0, 1)
    assert logged in errors
    secrets = [secret for mine in (credentials,) if mine for secret in (mine.token, mine.secret)]
    assert not any(secret in done.stderr + errors for secret in secrets)
