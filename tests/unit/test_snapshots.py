"""The folder of snapshots: what is written is read again, and what is damaged or strange is passed over."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import re
import shutil
import socket

import msgspec
import numpy as np
import pytest
from disks import fill, small_disk
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshot_drafts import LENGTHS, SPEC, first_values, values, write

from hybridps.errors import ServerError
from hybridps.memory import Layout
from hybridps.ps.rules import Momentum
from hybridps.ps.server.snapshots import SnapshotFolder, only_job
from hybridps.ps.server.snapshots.due import DueTimes
from hybridps.ps.server.snapshots.files import MARKER

CENTRE = "table-0-centre.npy"


@pytest.fixture
def folder(tmp_path):
    return SnapshotFolder(str(tmp_path / "snapshots"))


def of(number):
    """What `first_values` has of that snapshot."""
    return {number, number + 0.25, number + 0.5}, [number, number + 1, number + 2]


def path(folder, number, server=0, servers=1):
    return folder.of("job", server, servers).path(number)


def test_values_states_and_steps_are_read_as_they_were_written(folder):
    assert folder.find("job", "w", SPEC) is None
    assert write(folder, 7)
    assert first_values(folder.find("job", "w", SPEC)) == of(7)
    arrays, _ = folder.find("job", "w", SPEC).read(2, LENGTHS[2])
    assert all(np.array_equal(*both) for both in zip(arrays, values(7), strict=True))


def test_numpy_reads_the_files(folder):
    write(folder, 7)
    np.testing.assert_array_equal(np.load(path(folder, 7) / CENTRE), np.full(48, 7, np.float32))
    assert json.loads((path(folder, 7) / MARKER).read_text())["tables"][0]["spec"]["rule"]["type"] == "adam"


def test_the_newest_two_are_kept_and_the_newest_is_taken(folder):
    for number in (3, 10, 9000):
        assert write(folder, number)
    assert folder.of("job", 0, 1).numbers() == [10, 9000]
    assert sorted(each.name for each in path(folder, 10).parent.iterdir()) == ["snapshot-10", "snapshot-9000"]
    assert folder.find("job", "w", SPEC).number == 9000


def test_one_of_an_earlier_time_than_the_last_is_not_written(folder, caplog):
    write(folder, 9)
    assert not write(folder, 8)
    assert not write(folder, 9)
    assert folder.of("job", 0, 1).numbers() == [9]
    assert "one of this time or later is there" in caplog.text


def test_the_newest_that_all_servers_have_is_taken_and_kept(folder):
    first, second = (msgspec.structs.replace(SPEC, server=server, servers=2) for server in range(2))
    for number in (3, 4):
        write(folder, number, [("w", first)])
    assert folder.find("job", "w", first).number == 4  # the other one may have a disk of its own
    write(folder, 3, [("w", second)])
    assert folder.find("job", "w", first).number == 3
    for number in (5, 6):
        write(folder, number, [("w", first)])
    assert folder.of("job", 0, 2).numbers() == [3, 5, 6]
    assert folder.find("job", "w", second, 3).number == 3
    with pytest.raises(ServerError, match=r"server 1 of 2 has no values of snapshot 6 of table 'w'.*remove snapshot-6"):
        folder.find("job", "w", second, 6)


def test_one_that_another_server_is_still_writing_is_kept(folder):
    first, second = (msgspec.structs.replace(SPEC, server=server, servers=2) for server in range(2))
    folder.of("job", 1, 2).begin(3)
    for number in (3, 4, 5, 6):
        write(folder, number, [("w", first)])
    assert folder.of("job", 0, 2).numbers() == [3, 5, 6]
    write(folder, 3, [("w", second)])
    assert folder.find("job", "w", first).number == 3


@settings(deadline=None)
@given(st.tuples(*[st.lists(st.floats(0.0, 9.0), min_size=1, max_size=4)] * 2), st.floats(0.5, 2.0))
def test_servers_of_which_one_is_slower_take_some_together(takes, seconds):
    """However long each snapshot takes; a server that looks late takes the one that was due."""
    taken = []
    for times in takes:
        now, due, numbers = 1e9, DueTimes(seconds, 1e9), set()
        for long in itertools.islice(itertools.cycle(times), 100):
            while (number := due.begin(now)) is None:
                now += seconds / 8
            numbers.add(number)
            now += long * seconds
            due.end(now)
        taken.append({number for number in numbers if number < 1000 * (1e9 + 100 * seconds)})
    together = sorted(taken[0] & taken[1])
    gaps = np.diff([1e12, *together, 1000 * (1e9 + 100 * seconds)]) / 1000 / seconds
    assert gaps.max() <= 34, gaps


def test_another_spec_is_not_taken_and_said_once(folder, caplog):
    write(folder, 7)
    other = msgspec.structs.replace(SPEC, layout=Layout.of("float32", {"w": (41,)}))
    assert [folder.find("job", "w", other) for _ in range(2)] == [None, None]
    assert folder.find("job", "w", msgspec.structs.replace(SPEC, rule=Momentum(rate=0.1))) is None
    assert [record.getMessage().endswith("it is not used") for record in caplog.records] == [True]
    assert folder.find("job", "v", SPEC) is None
    assert folder.find("other", "w", SPEC) is None


def test_tables_that_no_group_has_come_to_go_on_in_later_snapshots(folder):
    write(folder, 7, [("w", SPEC), ("v", SPEC)])
    write(folder, 8)
    write(folder, 9)
    for name, number in (("w", 9), ("v", 7)):
        found = folder.find("job", name, SPEC)
        assert (found.number, first_values(found)) == (number, of(number))
        assert folder.find("job", name, SPEC, number).number == number
    write(folder, 10, known={"w", "v"})  # it was dropped
    assert folder.find("job", "v", SPEC) is None


def test_tables_go_on_from_the_snapshot_that_all_servers_have(folder):
    """One that a server alone has completed is of no use: the job started from the one before."""
    both = [[(name, msgspec.structs.replace(SPEC, server=server, servers=2)) for name in "wv"] for server in (0, 1)]
    for number, servers in ((3, (0, 1)), (4, (0,))):
        for server in servers:
            write(folder, number, both[server])
    for tables in both:
        write(folder, 5, tables[:1])
    found = folder.find("job", "v", both[0][1][1])
    assert found.number == 3
    for it in (found, folder.find("job", "v", both[1][1][1], 3)):
        np.testing.assert_array_equal(it.read(0, LENGTHS[0])[0], values(3))


def test_values_of_different_snapshots_are_not_mixed(folder):
    """A table that the newest one does not have is not taken from an older one."""
    write(folder, 7, [("w", SPEC), ("v", SPEC)])
    write(folder, 8, known={"w", "v"})
    assert folder.find("job", "v", SPEC) is None


def cut_off(at):
    (at / CENTRE).write_bytes((at / CENTRE).read_bytes()[:-1])


def replaced_by(make):
    def damage(at):
        (at / CENTRE).unlink()
        make(at / CENTRE)

    return damage


def listen(at):
    with socket.socket(socket.AF_UNIX) as it:
        it.bind(os.path.relpath(at))


def in_marker(old, new):
    def damage(at):
        text = (at / MARKER).read_text()
        assert old in text
        (at / MARKER).write_text(text.replace(old, new))

    return damage


DAMAGES = {
    "shorter": cut_off,
    "missing": lambda at: (at / CENTRE).unlink(),
    "a link": replaced_by(lambda it: it.symlink_to("/dev/zero")),
    "a link to a file": replaced_by(lambda it: it.symlink_to("table-0-state-1.npy")),
    "a pipe": replaced_by(os.mkfifo),
    "a folder": replaced_by(lambda it: it.mkdir()),
    "a socket": replaced_by(listen),
    "a pickle": replaced_by(lambda it: it.write_bytes(pickle.dumps([1]))),
    "objects": replaced_by(lambda it: np.save(it, np.array([{}] * 48, object))),
    "two dimensions": replaced_by(lambda it: np.save(it, np.zeros((6, 8), np.float32))),
    "another dtype": replaced_by(lambda it: np.save(it, np.zeros(48, np.int32))),
    "an empty file": replaced_by(lambda it: it.touch()),
    "an empty marker": lambda at: (at / MARKER).write_text(""),
    "a marker of anything": lambda at: (at / MARKER).write_bytes(b"\xff" * 100),
    "a deep marker": lambda at: (at / MARKER).write_text("[" * 100_000),
    "a half of the marker": lambda at: (at / MARKER).write_text((at / MARKER).read_text()[:-40]),
    "another format": in_marker('"format":1', '"format":2'),
    "another number": in_marker('"number":8', '"number":9'),
    "more than it says": in_marker('"format":1', '"format":1,"more":1'),
    "fewer steps": in_marker('"steps":[8,9,10]', '"steps":[8,9]'),
    "negative steps": in_marker('"steps":[8,9,10]', '"steps":[8,-9,10]'),
    "no chunk bytes": in_marker('"chunk_bytes":64', '"chunk_bytes":0'),
    "odd chunk bytes": in_marker('"chunk_bytes":64', '"chunk_bytes":63'),
    "a huge layout": in_marker('"shape":[40]', '"shape":[4611686018427387904,4611686018427387904]'),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_snapshot_is_passed_over_for_the_one_before(folder, caplog, damage, monkeypatch):
    write(folder, 7)
    write(folder, 8)
    monkeypatch.chdir(path(folder, 8))
    damage(path(folder, 8))
    assert folder.find("job", "w", SPEC).number == 7
    (line,) = [record.getMessage() for record in caplog.records if "passed over" in record.getMessage()]
    assert re.match(rf"{path(folder, 8)} (is no complete snapshot|has the number)", line)
    with pytest.raises(ServerError, match="no values of snapshot 8"):
        folder.find("job", "w", SPEC, 8)


def test_values_that_were_changed_are_refused_with_what_to_do(folder):
    write(folder, 7)
    with (path(folder, 7) / CENTRE).open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\0")
    found = folder.find("job", "w", SPEC)
    assert found.read(0, LENGTHS[0])[1] == 7
    with pytest.raises(ServerError, match=r"chunk 2 are not those that were written\. Remove that folder"):
        found.read(2, LENGTHS[2])
    (path(folder, 7) / "table-0-state-1.npy").unlink()
    with pytest.raises(ServerError, match="No such file"):
        found.read(0, LENGTHS[0])


def test_strange_names_in_the_folder_are_left_alone(folder):
    write(folder, 7)
    place = path(folder, 7).parent
    for name in ("snapshot-x", "snapshot-", "snapshot-007", "snapshot-9999999999999999999999", "notes"):
        (place / name).mkdir()
        (place / name / MARKER).touch()
    (place / "snapshot-8").touch()
    assert folder.of("job", 0, 1).numbers() == [7]
    for number in (8, 9, 10, 11):
        if number > 8:
            write(folder, number)
    assert (place / "notes").is_dir()
    assert (place / "snapshot-8").is_file()


def test_what_was_left_unfinished_is_removed(folder):
    write(folder, 7)
    place = path(folder, 7).parent
    (place / ".partial-8").mkdir()
    (place / ".partial-8" / CENTRE).touch()
    shutil.copytree(place / "snapshot-7", place / ".old-6")
    assert folder.find("job", "w", SPEC).number == 7
    assert write(folder, 9)
    assert sorted(os.listdir(place)) == ["snapshot-7", "snapshot-9"]


def test_a_full_disk_leaves_the_last_snapshot_and_one_line(tmp_path, caplog):
    with small_disk(tmp_path / "disk", 512) as disk:
        folder = SnapshotFolder(str(disk))
        assert write(folder, 7)
        filling = fill(disk)
        for number in (8, 9):
            assert not write(folder, number)
        assert sorted(os.listdir(path(folder, 7).parent)) == ["snapshot-7"]
        assert first_values(folder.find("job", "w", SPEC)) == of(7)
        assert "cannot be written to" in caplog.text
        assert "No space left on device; training goes on, and the last complete snapshot stays" in caplog.text
        filling.unlink()
        assert write(folder, 10)


def test_names_of_jobs_stay_in_the_folder(folder, tmp_path):
    for job in ("..", ".", "alice/..", "a.b-c_D"):
        write(folder, 7, job=job)
    names = {"job-..", "job-.", "job-alice+..", "job-a.b-c_D"}
    assert {each.name for each in (tmp_path / "snapshots").iterdir()} == names
    assert os.listdir(tmp_path) == ["snapshots"]


def test_the_only_job_of_a_folder_is_known(folder, tmp_path):
    where = str(tmp_path / "snapshots")
    assert only_job(where) is None
    assert only_job(str(tmp_path / "none")) is None
    write(folder, 7, job="run/mine")
    assert only_job(where) == "mine"
    (tmp_path / "snapshots" / "job-empty").mkdir()
    assert only_job(where) == "mine"
    write(folder, 7, job="other")
    assert only_job(where) is None


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ServerError, match=r"file/snapshots cannot be used: Not a directory"):
        SnapshotFolder(str(tmp_path / "file" / "snapshots"))
