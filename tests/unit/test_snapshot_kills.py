"""Snapshots on a disk, after a kill of the server at any point of their writing."""

from __future__ import annotations

import mmap
import os
import shutil

import pytest
from dying import Killer, is_killed
from snapshot_drafts import SPEC, first_values, write

from hybridps.ps.server.snapshots import SnapshotFolder
from hybridps.ps.server.snapshots import files as under_test

NUMBERS = (1, 2, 3, 4)
TABLES = (("w", SPEC), ("v", SPEC))


def live(folder, done, kill_at):
    """Write snapshots, but be killed at the n-th line within the files under test, or in `shutil`."""
    place = os.path.dirname(under_test.__file__)
    killer = Killer(kill_at, lambda path: os.path.dirname(path) == place or os.path.basename(path) == "shutil.py")
    for number in NUMBERS:
        with killer.counting():
            assert write(folder, number, TABLES if number == 1 else TABLES[:1])
        done[0] = number


def check_after_a_kill(folder, done):
    """There is the last snapshot that was completed, or the one after it, whole; and the next one can be written."""
    place = folder.of("job", 0, 1)
    last = max(place.numbers(), default=0)
    assert last in (done, done + 1)
    for number in place.numbers():
        assert place.contents(number).number == number
    for name, number in (("w", last), ("v", 1)) if last else ():
        found = folder.find("job", name, SPEC)
        assert first_values(found) == ({number, number + 0.25, number + 0.5}, [number, number + 1, number + 2])
    assert write(folder, 5, TABLES[:1])
    assert sorted(os.listdir(place.folder)) == sorted(f"snapshot-{number}" for number in place.numbers())
    assert place.numbers() == ([last, 5] if last else [5])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("every", [61, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_kill_at_any_line_leaves_complete_snapshots(every, tmp_path):
    for kill_at in range(0, 1 << 30, every):
        path = tmp_path / str(kill_at)
        with mmap.mmap(-1, mmap.PAGESIZE) as done:
            if not is_killed(lambda: live(SnapshotFolder(str(path)), done, kill_at)):  # noqa: B023
                assert done[0] == NUMBERS[-1]
                break
            check_after_a_kill(SnapshotFolder(str(path)), done[0])
        shutil.rmtree(path)
    assert kill_at > 500
