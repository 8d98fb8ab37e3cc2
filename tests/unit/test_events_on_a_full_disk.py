"""Events on a disk that is full: they are dropped with one line, and nothing ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from disks import fill, small_disk

from hybridps.errors import ConfigError
from hybridps.events import EventLog, Noted, say

TRAINING = """
import sys
from hybridps.mpi_groups.session import open_session

with open_session() as session:
    for number in range(100):
        session.note(f"{number} " + "x" * 100)
print("trained")
"""


CLOSED = """
import sys
from hybridps.errors import ConfigError
from hybridps.events import say
from hybridps.mpi_groups.session import end_group

assert sys.stderr is None
say("worker 1 is slow")
end_group(ConfigError("tau=0 cannot be used"))
"""

ERROR = """
from hybridps.errors import ConfigError
from hybridps.mpi_groups.session import end_group

end_group(ConfigError("tau=0 cannot be used"))
"""


def run_session(folder, script=TRAINING, quiet=True, **more) -> subprocess.CompletedProcess:
    environ = os.environ | {"HYBRIDPS_RUN_FOLDER": str(folder), "HYBRIDPS_QUIET": str(quiet).lower()}
    return subprocess.run([sys.executable, "-c", script], env=environ, text=True, timeout=60, check=False, **more)


@pytest.mark.parametrize("kilobytes", [0, 8])
def test_a_session_goes_on_when_the_disk_is_full(tmp_path, kilobytes):
    """From the beginning, and when it fills."""
    with small_disk(tmp_path / "disk", 64) as disk:
        fill(disk)
        os.truncate(disk / "filling", os.path.getsize(disk / "filling") - 1024 * kilobytes)
        done = run_session(disk, capture_output=True)
        assert (done.returncode, done.stdout) == (0, "trained\n")
        assert done.stderr == "hybridps: events of worker 0 can no longer be written: No space left on device\n"
        *whole, _ = (disk / "hybridps-0.jsonl").read_text().split("\n")
        assert bool(whole) == bool(kilobytes)
        for line in whole:
            json.loads(line)


@pytest.mark.parametrize("quiet", [True, False])
def test_standard_error_on_the_full_disk_does_not_end_it_either(tmp_path, quiet):
    with small_disk(tmp_path / "disk", 64) as disk, (disk / "err").open("w") as err:
        fill(disk)
        done = run_session(disk, quiet=quiet, stdout=subprocess.PIPE, stderr=err)
    assert (done.returncode, done.stdout) == (0, "trained\n")


def test_a_group_ends_with_its_status_though_standard_error_is_on_the_full_disk(tmp_path):
    with small_disk(tmp_path / "disk", 64) as disk, (disk / "err").open("w") as err:
        fill(disk)
        assert run_session(disk, ERROR, stderr=err).returncode == ConfigError("").status


def test_a_group_ends_with_its_status_though_standard_error_is_closed():
    command = ["sh", "-c", '"$0" -c "$1" 2>&-', sys.executable, CLOSED]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (ConfigError("").status, "hybridps: error: tau=0 cannot be used\n")


def test_a_line_goes_to_the_stream_that_a_program_has_put_in_place(monkeypatch):
    class Tee:
        """As a notebook's stream: its descriptor is that of another one."""

        def __init__(self):
            self.written = ""

        def write(self, text):
            self.written += text

        def flush(self):
            pass

        def fileno(self):
            return sys.__stderr__.fileno()

    monkeypatch.setattr(sys, "stderr", Tee())
    say("worker 1 is slow")
    assert sys.stderr.written == "hybridps: worker 1 is slow\n"


def test_a_line_is_printed_where_standard_error_is_no_file(capsys):
    say("worker 1 is slow")
    assert capsys.readouterr().err == "hybridps: worker 1 is slow\n"


def test_half_a_line_does_not_spoil_the_next(tmp_path):
    path = tmp_path / "hybridps-3.jsonl"
    path.write_text('{"event":"Noted","mess')
    log = EventLog(tmp_path, 3)
    log.emit(Noted("hello"))
    log.close()
    half, whole = path.read_text().splitlines()
    assert (half, json.loads(whole)["message"]) == ('{"event":"Noted","mess', "hello")
    log = EventLog(tmp_path, 3)
    log.emit(Noted("again"))
    assert len(path.read_text().splitlines()) == 3
