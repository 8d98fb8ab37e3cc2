"""What others read of a run while it goes on: TensorBoard, Prometheus, and the line of the launcher."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import live_steps
import pytest
import worlds

pytestmark = pytest.mark.timeout(240)

SCRIPT = live_steps.__file__
SECONDS = 100


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("HYBRIDPS_", "OMP_NUM"))}


def figures(text: str) -> dict[tuple[str, str], float]:
    """The values of Prometheus metrics, by name and worker."""
    found = re.findall(r'^hybridps_(\w+)\{.*worker="(\d+)".*\} (\S+)$', text, re.MULTILINE)
    return {(name.removesuffix("_total"), worker): float(value) for name, worker, value in found}


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The scalars of a folder of TensorBoard, by their tags."""
    from tensorboardX.event_file_writer import EventFileWriter  # noqa: F401  (it is the library that wrote them)
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    found: dict[str, list[tuple[int, float]]] = {}
    for path in folder.glob("events.*"):
        data = path.read_bytes()
        while data:
            size = int.from_bytes(data[:8], "little")
            record, crc, data = data[12 : 12 + size], data[12 + size : 16 + size], data[16 + size :]
            assert int.from_bytes(crc, "little") == masked_crc32c(record)
            event = Event.FromString(record)
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def ask(url: str, true) -> dict[tuple[str, str], float]:
    """The metrics at an address, when they are `true`."""
    end = time.monotonic() + SECONDS
    while True:
        with urllib.request.urlopen(url, timeout=10) as answer:
            found = figures(answer.read().decode())
        if true(found):
            return found
        assert time.monotonic() < end, found
        time.sleep(0.1)  # the metrics change once a second


@pytest.mark.nightly
def test_tensorboard_and_prometheus_read_a_launch(tmp_path: Path) -> None:
    options = ("-n", "2", "--groups", "2", "--algorithm", "elastic", "--worker-metrics-port", "0")
    asked = [sys.executable, "-m", "hybridps", "run", *options, "--tensorboard", str(tmp_path / "scalars")]
    asked += ["--", sys.executable, SCRIPT, "0", "5", "even", str(tmp_path)]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(asked, env=environment(), **pipe) as run:
        try:
            lines = iter(run.stdout.readline, "")
            (url,) = next(found for line in lines if (found := re.findall(r"metrics of the workers at (\S+)", line)))
            found = ask(url, lambda metrics: metrics.get(("worker_exchanges", "1"), 0) > 2)
            assert found["worker_steps", "0"] > 0
            assert 0.004 < found["worker_own_seconds", "1"] <= found["worker_step_seconds", "1"] * 1.01
            assert found["worker_sent_bytes", "1"] > 0
            assert found["worker_slow_factor", "0"] == 1
            found = ask(url, lambda metrics: ("worker_loss", "1") in metrics)
            assert (found["worker_loss", "1"], found["worker_accuracy", "0"]) == (0.25, 0.5)
        finally:
            (tmp_path / "enough").touch()
            said, _ = run.communicate(timeout=SECONDS)
    assert run.returncode == 0, said
    worker, job = scalars(tmp_path / "scalars" / "worker-1"), scalars(tmp_path / "scalars" / "job")
    assert worker["model/loss"] == [(20, 0.25)]
    assert job["model/accuracy"] == [(20, 0.5)]
    assert job["pace/steps_per_second"]
    steps = [step for step, _ in worker["exchange/distance"]]
    assert steps == sorted(set(steps))
    assert {path.name.partition("-")[0] for path in (tmp_path / "scalars").iterdir()} == {"job", "worker", "server"}


@pytest.mark.nightly
def test_the_first_worker_writes_scalars_where_there_is_no_launcher(tmp_path: Path) -> None:
    asked = worlds.command(2, ["-m", "mpi4py", SCRIPT, "30", "5", "even"])
    environ = worlds.environment({"HYBRIDPS_TENSORBOARD": str(tmp_path / "scalars"), "TMPDIR": str(tmp_path)})
    done = subprocess.run(asked, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert scalars(tmp_path / "scalars" / "worker-1")["model/loss"] == [(20, 0.25)]
    assert scalars(tmp_path / "scalars" / "job")["model/loss"] == [(20, 0.25)]


def test_a_folder_that_cannot_be_written_is_one_line_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    asked = [sys.executable, "-m", "hybridps", "run", "--tensorboard", str(tmp_path / "file" / "x"), "--", "true"]
    done = subprocess.run(asked, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    (error,) = done.stderr.splitlines()
    assert error.startswith("hybridps: error: HYBRIDPS_TENSORBOARD=")


def test_a_terminal_shows_one_line_for_the_job(tmp_path: Path) -> None:
    asked = [sys.executable, "-m", "hybridps", "run", "-n", "1", "--", sys.executable, SCRIPT]
    ours, theirs = pty.openpty()
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    with subprocess.Popen([*asked, "0", "5", "even", str(tmp_path)], env=environment(), **streams) as run:
        os.close(theirs)
        line = rb"\x1b\[2Kstep \d+, [\d.]+ steps/s, epoch 1, loss 0.25, accuracy 50.0 %, 0:\d\d"
        shown, end = b"", time.monotonic() + SECONDS
        try:
            while not re.search(line, shown):
                assert select.select([ours], [], [], max(0.0, end - time.monotonic()))[0], shown
                shown += os.read(ours, 1 << 16)
        finally:
            (tmp_path / "enough").touch()
            while run.poll() is None:
                if select.select([ours], [], [], 0.1)[0]:
                    try:
                        os.read(ours, 1 << 16)
                    except OSError:
                        break
        assert run.wait(SECONDS) == 0
    os.close(ours)
