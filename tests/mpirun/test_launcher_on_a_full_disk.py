"""`hybridps run` whose own output goes to a disk that is full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from worlds import environment

SCRIPT = """
import sys, time
from pathlib import Path

print("one", flush=True)
time.sleep(0.2)
print("two", flush=True)
Path(sys.argv[1]).write_text("trained")
"""


@pytest.mark.parametrize("full", ["stdout", "stderr", "both"])
def test_the_job_goes_on_when_what_it_prints_cannot_be_written(tmp_path: Path, full: str) -> None:
    """With one line on standard error, if that can be written."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "hybridps", "run", "-n", "1", "--", sys.executable, str(tmp_path / "script.py")]
    command.append(str(tmp_path / "result"))
    environ = environment()
    environ.pop("PYTHONUNBUFFERED", None)  # it would hide that what was not written is still there at the end
    with Path("/dev/full").open("w") as nowhere:
        out, err = (nowhere if full in (stream, "both") else subprocess.PIPE for stream in ("stdout", "stderr"))
        done = subprocess.run(command, env=environ, stdout=out, stderr=err, text=True, timeout=100, check=False)
    assert done.returncode == 0
    assert (tmp_path / "result").read_text() == "trained"
    said = "hybridps: the job's output can no longer be written: No space left on device"
    if full == "stdout":
        assert done.stderr.splitlines().count(said) == 1
    if full == "stderr":
        assert [line[-3:] for line in done.stdout.splitlines()] == ["one", "two"]
