"""Profiles of servers, and which groups are silent: what a job is told of itself, and of nobody else."""

from __future__ import annotations

import threading

import msgspec
import numpy as np
import pytest
from in_thread import in_thread

from hybridps.config import Settings
from hybridps.errors import ProtocolError, ServerError
from hybridps.memory import Layout
from hybridps.ps import wire
from hybridps.ps.client import Client, silent_groups
from hybridps.ps.keys import AllowList, Quotas, make_tenant
from hybridps.ps.model import UnknownClientError
from hybridps.ps.profile import MOST_RECORDS, PAGE_RECORDS, ROUND
from hybridps.ps.rules import Sum, warm_up
from hybridps.ps.server import Server, profiles
from hybridps.ps.server.profiles import PROFILE_BYTES

pytestmark = pytest.mark.timeout(60)

LAYOUT = Layout.of("float32", {"w": (1024,)})
CHUNKS = 4
SETTINGS = Settings(chunk_bytes=1024, connect_seconds=10.0, deadline_seconds=10.0, lost_seconds=10.0)


@pytest.fixture
def server():
    with in_thread(Server(threads=2)) as server:
        yield server


def client(server, job="job", group=0, groups=1, **changes):
    settings = msgspec.structs.replace(SETTINGS, **changes)
    return Client([server.address], job=job, group=group, groups=groups, settings=settings)


def exchange(store, table="w", times=1):
    values = np.ones(LAYOUT.length, np.float32)
    for _ in range(times):
        store.exchange(table, values, values, 0, LAYOUT.length).wait()


def kinds(records):
    return [kind.decode() for kind in records["kind"].tolist()]


def test_a_profile_has_every_message_and_every_round(server):
    with client(server) as store:
        store.register("w", LAYOUT, None, Sum())
        exchange(store)
        store.profile("run")
        exchange(store, times=3)
        store.profile("stop")
        exchange(store)
        records, missing = store.read_profile(0)
        found = kinds(records)
        assert (found.count("exchange"), found.count("round"), missing) == (3, 3 * CHUNKS, 0)
        rounds = records[records["kind"] == ROUND]
        assert sorted(rounds["chunk"].tolist()) == sorted([*range(CHUNKS)] * 3)
        assert set(rounds["table"].tolist()) == {b"w"}
        assert (records["took_ns"] >= 0).all()
        assert (records["began_ns"] > 0).all()
        messages = records[records["kind"] == b"exchange"]
        assert (messages["thread"] == 0).all()
        assert (messages["group"] == 0).all()
        assert {*rounds["thread"].tolist()} <= {0, 1, 2}
        store.profile("run")  # it goes on where it stopped
        exchange(store)
        assert kinds(store.read_profile(0)[0]).count("exchange") == 4


def test_refused_messages_and_heartbeats_are_recorded_too(server):
    with client(server, heartbeat_seconds=0.05) as store:
        store.profile("run")
        with pytest.raises(ServerError, match="no table"):
            store.session.ask("nonsense", [0], lambda request, _: wire.Drop(request, "v")).wait()
        while "heartbeat" not in (found := kinds(store.read_profile(0)[0])):
            pass
        assert "drop" in found


def test_a_job_is_told_of_itself_alone(server):
    with client(server) as mine, client(server, job="other") as other:
        for store, table in ((mine, "w"), (other, "secret")):
            store.register(table, LAYOUT, None, Sum())
        mine.profile("run")
        exchange(other, "secret", 3)
        exchange(mine)
        found, _ = mine.read_profile(0)
        assert kinds(found).count("exchange") == 1
        assert b"secret" not in found["table"].tolist()
        with pytest.raises(ServerError, match="there is no profile of this job here"):
            other.read_profile(0)
        other.profile("end")  # not that of the other job
        exchange(mine)
        assert kinds(mine.read_profile(0)[0]).count("exchange") == 2


def test_all_groups_are_in_the_profile_of_their_job(server):
    with client(server, groups=2) as first, client(server, group=1, groups=2) as second:
        joined = threading.Thread(target=second.register, args=("w", LAYOUT, None, Sum()))
        joined.start()
        first.register("w", LAYOUT, None, Sum())
        joined.join(10)
        first.profile("run")
        values = [np.ones(LAYOUT.length, np.float32) for _ in range(2)]
        under_way = [
            each.exchange("w", row, row, 0, LAYOUT.length) for each, row in zip((first, second), values, strict=True)
        ]
        for pending in under_way:
            pending.wait()
        records, _ = second.read_profile(0)
        assert sorted(records["group"][records["kind"] == b"exchange"].tolist()) == [0, 1]
        assert kinds(records).count("round") == CHUNKS


def test_what_a_profile_takes_is_bounded_and_given_back(server):
    with client(server) as store:
        store.register("w", LAYOUT, None, Sum())
        (account,) = server._loop.accounts
        before = account.budget.used_bytes
        store.profile("run")
        assert account.budget.used_bytes == before + PROFILE_BYTES
        kept = server._loop.profiles.of["job"]
        for _ in range(MOST_RECORDS):
            kept.add(b"filling", 1, 0)
        exchange(store)
        records, missing = store.read_profile(0)
        assert len(records) == MOST_RECORDS
        assert missing >= 1 + CHUNKS
        del kept
        store.profile("end")
        while account.budget.used_bytes != before:  # pages that were sent are held until they have left
            exchange(store)
        assert not server._loop.profiles.of


def test_a_profile_ends_with_its_job(server):
    with client(server) as store:
        store.profile("run")
    assert not server._loop.profiles.of


def test_a_tenant_without_room_has_no_profile():
    with in_thread(Server(memory_bytes=PROFILE_BYTES // 2)) as server, client(server) as store:
        with pytest.raises(ServerError, match="a profile needs about"):
            store.profile("run")
        store.register("w", LAYOUT, None, Sum())
        exchange(store)


def test_nothing_is_recorded_until_it_is_asked_for(server, monkeypatch):
    def never(*_):
        raise AssertionError("no profile is there to be looked at")

    monkeypatch.setattr(profiles.Profiles, "recording", never)
    monkeypatch.setattr(profiles.Profiles, "timed", never)
    with client(server) as store:
        store.register("w", LAYOUT, None, Sum())
        exchange(store, times=2)
        with pytest.raises(ServerError, match="there is no profile"):
            store.read_profile(0)


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "Profile", "request": 1, "state": "walk"},
        {"kind": "ProfilePage", "request": 1, "page": MOST_RECORDS // PAGE_RECORDS},
        {"kind": "ProfilePage", "request": 1, "page": -1},
        {"kind": "Silence", "session": 1, "seconds": -1.0},
    ],
)
def test_nonsense_is_refused(message):
    with pytest.raises(ProtocolError, match="cannot be read"):
        wire.decode_request(msgspec.msgpack.encode(message))


def test_who_is_silent():
    warm_up(Sum(), LAYOUT.dtype)
    settings = msgspec.structs.replace(SETTINGS, lost_seconds=2.0, heartbeat_seconds=0.05)
    often = {"lost_seconds": 2.0, "heartbeat_seconds": 0.05}
    with in_thread(Server.of(settings, "tcp://127.0.0.1:*")) as server:
        addresses = [server.address]
        with client(server, groups=3, **often) as first, client(server, group=1, groups=3, **often) as leaves:
            number = first.session.number
            assert silent_groups(addresses, number, 60.0, settings) == ()
            client(server, group=2, groups=3, **often).close(lost=True)
            while (found := silent_groups(addresses, number, 2.0, settings)) != (2,):
                assert found == ()
            assert silent_groups(addresses, number, 60.0, settings) == ()  # not for so long
            leaves.close()
            assert silent_groups(addresses, number, 2.0, settings) == (2,)
            with client(server, group=2, groups=3, **often):
                assert silent_groups(addresses, number, 2.0, settings) == ()
            assert silent_groups(addresses, number, 0.0, settings) in ((), (0,))  # it left in good order


def test_asking_who_is_silent_is_no_sign_of_life(server):
    with client(server) as store:
        (member,) = server._loop.members
        found = ()
        while not found:  # a heartbeat may come between
            member.seen_seconds -= 5.0
            found = silent_groups([server.address], store.session.number, 4.0, SETTINGS)
        assert found == (0,)


def test_who_asks_must_know_a_session(server):
    with client(server) as store, pytest.raises(UnknownClientError, match="not known here"):
        silent_groups([server.address], store.session.number ^ 1, 1.0, SETTINGS)


def test_tenants_with_keys(tmp_path):
    keys = tmp_path / "keys"
    alice, bob = (str(make_tenant(keys, name, Quotas())) for name in ("alice", "bob"))
    with (
        in_thread(Server(allowed=AllowList.load(keys))) as server,
        client(server, keys=alice) as mine,
        client(server, keys=bob) as other,
    ):
        addresses, number = [server.address], mine.session.number
        assert silent_groups(addresses, number, 60.0, msgspec.structs.replace(SETTINGS, keys=alice)) == ()
        with pytest.raises(ServerError, match="refused a connection without keys"):
            silent_groups(addresses, number, 60.0, SETTINGS)
        mine.profile("run")
        with pytest.raises(ServerError, match="there is no profile"):  # of a job of the same name
            other.read_profile(0)
        mine.read_profile(0)
        assert "profilepage" in kinds(mine.read_profile(0)[0])


def test_a_server_that_is_gone_is_named():
    settings = msgspec.structs.replace(SETTINGS, connect_seconds=0.2)
    with pytest.raises(ServerError, match=r"no answer from tcp://127.0.0.1:1 within 0.2 s"):
        silent_groups(["tcp://127.0.0.1:1"], 1, 1.0, settings)
