"""Where the status files of a run lie, and what is read of them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from hybridps.cli.run.children import keeper
from hybridps.cli.top.run import page
from hybridps.cli.top.watch import watch as top
from hybridps.errors import ConfigError
from hybridps.live import LaunchStatus, Live, StatusFile, WorkerStatus, read_live
from hybridps.live.folder import LiveFolder, find_live, runs_folder
from hybridps.live.reading import Seen, check_unused, rate, silent_seconds


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def status(worker: int = 0, run: str = "a", **more) -> WorkerStatus:
    place = {"worker": worker, "workers": 2, "group": 0, "groups": 1, "group_rank": worker}
    return WorkerStatus(**{"run": run, "host": "h", "pid": 1, "started_at": 0.0} | place | more)


def written(folder: Path, *found: WorkerStatus) -> Live:
    for each in found:
        StatusFile(folder, f"worker-{each.worker}", lambda each=each: each).close()
    return read_live(folder)


def test_the_newest_run_is_found_until_it_has_ended(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run of this user is in progress"):
        find_live(None)
    first, second = LiveFolder(None), LiveFolder(str(tmp_path / "run"))
    assert find_live(None) == second.path == tmp_path / "run" / "live"
    second.close()
    assert find_live(None) == first.path
    first.close()
    assert not list(tmp_path.glob(".hybridps-*"))
    assert second.path.is_dir()  # what lies in a run folder stays


def test_top_names_the_other_runs_in_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    others = LiveFolder(str(tmp_path / "my run")), LiveFolder(None)
    newest = LiveFolder(None)
    elsewhere = newest.entry.with_name(f"00000000000000000001-other-host-{os.getpid()}")
    elsewhere.mkdir()
    written(newest.path, status(workers=1))
    top(None, once=True, tables=False)
    commands = [line for line in capsys.readouterr().out.splitlines() if line.startswith("also in")]
    assert commands == [f"also in progress: hybridps top {name}" for name in (others[1].path, f"'{tmp_path}/my run'")]
    top(str(newest.path), once=True, tables=False)
    assert "also in progress" not in capsys.readouterr().out
    for folder in (newest, *others):
        folder.close()


def test_a_narrow_terminal_shows_whole_columns(tmp_path: Path) -> None:
    took = {"step_seconds": 0.2, "own_seconds": 0.1, "program_seconds": 0.05, "steps": 123456, "host": "x" * 40}
    found = written(tmp_path, *(status(worker, **took, slow="compute", factor=12.5) for worker in (0, 1)))
    for worker, seen in found.workers.items():
        found.workers[worker] = Seen(msgspec.structs.replace(seen.status, ended=False, host="elsewhere"), 0.0)
    for width in (80, 100, 250):
        console = Console(width=width, file=io.StringIO())
        console.print(page(found, found, width))
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        rows = [line for line in lines if "slow: takes 12.5 times as long (compute)" in line]
        assert len(rows) == 2, lines
        assert not any("…" in line for line in lines)
        words = next(line for line in lines if line.startswith("WORKER")).split()
        assert ("HOST" in words, "WAITING" in words) == (width == 250, True)


def test_a_run_folder_is_found_by_what_was_written_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no folder `live`"):
        find_live(str(tmp_path))
    made = LiveFolder(str(tmp_path / "run"))
    written(made.path, status())
    made.close()
    assert find_live(str(tmp_path / "run")) == find_live(str(made.path)) == made.path


def test_what_a_killed_run_has_left_is_removed_and_that_of_other_hosts_is_not(tmp_path: Path) -> None:
    ended = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(ended, 0)
    made = LiveFolder(None)
    left, elsewhere = (
        made.entry.with_name(f"00000000000000000001-{name}") for name in (f"{_host()}-{ended}", f"other-host-{ended}")
    )
    left.mkdir()
    elsewhere.mkdir()
    LiveFolder(None).close()
    assert not left.exists()
    assert elsewhere.exists()


@pytest.mark.parametrize("run", [None, "run"])
def test_the_keeper_of_a_killed_launcher_removes_its_entry(run: str | None, tmp_path: Path) -> None:
    made = LiveFolder(run and str(tmp_path / run))
    other = LiveFolder(None)
    keep(made.entry)
    assert not os.path.lexists(made.entry)
    assert made.path.exists() == (run is not None), "what lies in a run folder stays"
    assert other.entry.exists()
    keep(other.entry)
    assert not other.entry.parent.exists()


def keep(entry: Path) -> None:
    """What a keeper does that was told of an entry by a launcher which was killed."""
    told = f"{keeper.FOLDER}{entry}\n{keeper.EMPTY}{entry.parent}\n"
    subprocess.run([sys.executable, keeper.__file__, "_NOT_IN_ANY="], input=told, text=True, check=True, timeout=20)


def _host() -> str:
    return os.uname().nodename


def test_a_folder_that_others_can_write_to_is_refused() -> None:
    runs_folder().chmod(0o777)
    with pytest.raises(PermissionError, match="is not a folder of this user alone"):
        LiveFolder(None)


def test_a_new_run_removes_what_an_earlier_one_has_written(tmp_path: Path) -> None:
    first = LiveFolder(str(tmp_path / "run"))
    written(first.path, status())
    assert [*read_live(LiveFolder(str(tmp_path / "run")).path).workers] == []


def test_a_run_folder_has_one_launch_at_a_time(tmp_path: Path) -> None:
    check_unused(None)
    check_unused(str(tmp_path))
    other = subprocess.Popen(["sleep", "60"])
    place = {"run": "a", "host": _host(), "pid": other.pid, "started_at": 0.0}
    status = LaunchStatus(**place, command=[], workers=1, groups=[], servers=[])
    (tmp_path / "live").mkdir()
    file = StatusFile(tmp_path / "live", "launcher", lambda: status)
    written = tmp_path / "live" / "launcher.json"
    try:
        with pytest.raises(ConfigError, match=rf"belongs to a launch in progress \(process {other.pid}\)"):
            check_unused(str(tmp_path))
        file.close()
        check_unused(str(tmp_path))  # it has ended
        running = written.read_bytes().replace(b'"ended":true', b'"ended":false')
        written.write_bytes(running.replace(_host().encode(), b"elsewhere"))
        check_unused(str(tmp_path))  # nobody here knows whether a process of another host runs
        written.write_bytes(running)
        with pytest.raises(ConfigError, match="another folder"):
            check_unused(str(tmp_path))
        os.utime(written, (0, 0))
        check_unused(str(tmp_path))  # a killed launcher, whose number another process has now
        written.touch()
    finally:
        other.kill()
        other.wait()
    check_unused(str(tmp_path))


def test_only_the_newest_run_and_only_whole_files_are_read(tmp_path: Path) -> None:
    found = written(tmp_path, status(0, "old", started_at=1.0), status(1, "new", started_at=2.0))
    assert [*found.workers] == [1]
    assert found.workers[1].status.ended
    assert found.is_over
    (tmp_path / "worker-2.json").write_bytes(b'{"run": "new", "work')
    (tmp_path / "worker-3.json").write_bytes(b" " * (1 << 20))
    assert [*read_live(tmp_path).workers] == [1]


def test_rates_are_of_one_life_of_a_process() -> None:
    then, now = status(steps=10, seconds=1.0), status(steps=30, seconds=3.0)
    assert rate(then, now, "steps") == 10.0
    assert rate(None, now, "steps") is None
    assert rate(then, status(steps=30, seconds=3.0, started_at=5.0), "steps") is None
    assert rate(now, now, "steps") is None


def test_a_process_is_silent_when_its_file_is_old(tmp_path: Path) -> None:
    live = StatusFile(tmp_path, "worker-0", status)
    assert silent_seconds(read_live(tmp_path).workers[0], 1) == 0.0
    live.close()
    assert silent_seconds(Seen(status(), 60.0), 1) == 60.0
    assert silent_seconds(Seen(status(ended=True), 60.0), 1) == 0.0


def test_a_command_that_is_not_utf_8_is_shown_with_escapes(tmp_path: Path) -> None:
    def launcher() -> LaunchStatus:
        place = {"run": "a", "host": "h", "pid": 1, "started_at": 0.0, "workers": 1, "groups": [], "servers": []}
        return LaunchStatus(command=[os.fsdecode(b"caf\xe9.py")], **place)

    StatusFile(tmp_path, "launcher", launcher).close()
    assert msgspec.json.decode((tmp_path / "launcher.json").read_bytes())["command"] == ["caf\\xe9.py"]


def test_a_status_that_cannot_be_written_is_said_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    StatusFile(tmp_path / "file", "worker-0", status).close()
    assert capfd.readouterr().err.count("cannot be written (Not a directory)") == 1
    StatusFile(tmp_path / "gone", "worker-0", status).close()  # as at the end of a short run
    assert not capfd.readouterr().err
