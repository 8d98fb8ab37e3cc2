from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from hybridps.errors import ConfigError
from hybridps.events import Closed, Event, EventLog, Launched, Noted, check_run_folder, kinds


def test_lines_are_complete_at_once(tmp_path) -> None:
    log = EventLog(tmp_path / "run", 3)
    log.emit(Noted("hello"))
    lines = (tmp_path / "run" / "hybridps-3.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    assert first.pop("seconds") >= 0
    assert first == {"event": "Noted", "message": "hello", "rank": 3}
    log.emit(Closed(1, 2, 3))
    log.close()
    assert len((tmp_path / "run" / "hybridps-3.jsonl").read_text().splitlines()) == 2


def test_bytes_that_are_no_utf_8_are_escaped(tmp_path) -> None:
    command = ["python", os.fsdecode(b"caf\xe9.py"), "\u00e9"]
    log = EventLog(tmp_path, "launcher")
    log.emit(Launched(1, 1, 0, command))
    log.close()
    line = json.loads((tmp_path / "hybridps-launcher.jsonl").read_text())
    assert line["command"] == ["python", "caf\\xe9.py", "\u00e9"]


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = EventLog(None, 0)
    log.emit(Noted("hello"))
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_reported_once_and_ends_nothing(tmp_path, capfd):
    (tmp_path / "hybridps-3.jsonl").symlink_to("/dev/full")
    log = EventLog(tmp_path, 3)
    for _ in range(3):
        log.emit(Noted("hello"))
    log.close()
    said = "hybridps: events of worker 3 can no longer be written: No space left on device\n"
    assert capfd.readouterr() == ("", said)


IN_A_SMALL_FILE = """
import resource, sys
from hybridps.mpi_groups.session import open_session

with open_session() as session:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    for number in range(100):
        session.note(f"{number} " + "x" * 100)
print("trained")
"""


def test_a_job_goes_on_when_its_events_cannot_be_written(tmp_path):
    done = run_code(IN_A_SMALL_FILE, HYBRIDPS_RUN_FOLDER=str(tmp_path), HYBRIDPS_QUIET="true")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr == "hybridps: events of worker 0 can no longer be written: File too large\n"
    *whole, last = (tmp_path / "hybridps-0.jsonl").read_text().split("\n")
    assert [json.loads(line)["message"].split()[0] for line in whole if "Noted" in line] == list(
        map(str, range(len(whole) - 1))
    )
    assert len("\n".join(whole)) + 1 + len(last) == 4096


def test_a_run_folder_is_made_and_tried(tmp_path):
    check_run_folder(None)
    check_run_folder(str(tmp_path / "new" / "run"))
    assert list((tmp_path / "new" / "run").iterdir()) == []


def test_a_session_refuses_a_run_folder_that_cannot_be_written():
    with pytest.raises(ConfigError, match="the run folder '/dev/null/run' cannot be written: Not a directory"):
        check_run_folder("/dev/null/run")
    code = "from hybridps.mpi_groups.session import open_session; open_session()"
    done = run_code(code, HYBRIDPS_RUN_FOLDER="/dev/null/run")
    assert "ConfigError: the run folder '/dev/null/run' cannot be written: Not a directory" in done.stderr


def run_code(code, **variables):
    environ = os.environ | variables
    return subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60)


def test_no_event_has_a_field_that_its_line_uses_itself() -> None:
    """The line has the rank, and the seconds since the log began."""
    every = [kind for kind in vars(kinds).values() if isinstance(kind, type) and issubclass(kind, Event)]
    assert len(every) > 15
    assert not [kind for kind in every if {"event", "rank", "seconds"} & set(kind.__struct_fields__)]
