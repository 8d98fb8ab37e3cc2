"""Programs under `dist_sync`, with MXNet's own scheduler and servers."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from worlds import environment

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.clusters import mxnet_serving  # noqa: E402


def dist_sync(workers: int, arguments: Sequence[str], timeout: float = 60) -> list[str]:
    """Start Python with `arguments` on each worker, and wait. What each has printed.

    Raises AssertionError if a worker fails, or if they have not all ended in time.
    """
    with mxnet_serving("dist_sync", "", 1, workers) as way, tempfile.TemporaryDirectory() as folder:
        said = [Path(folder) / str(number) for number in range(workers)]
        settings = environment(way.environment | {"OMP_NUM_THREADS": "1"})
        started = [_start(arguments, settings, file) for file in said]
        until = time.monotonic() + timeout
        while (statuses := [one.poll() for one in started]) != [0] * workers:
            if any(statuses) or time.monotonic() > until:
                break
            time.sleep(0.05)
        for one in started:
            one.kill()
            one.wait()
        printed = [file.read_text() for file in said]
        assert statuses == [0] * workers, f"statuses {statuses}:\n" + "\n".join(printed)
        return printed


def _start(arguments: Sequence[str], settings: dict[str, str], file: Path) -> subprocess.Popen[bytes]:
    with file.open("wb") as printed:
        return subprocess.Popen(
            [sys.executable, *arguments], env=settings, stdout=printed, stderr=subprocess.STDOUT, cwd=file.parent
        )
