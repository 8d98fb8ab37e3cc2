"""The demo while its server is killed again and again: the accuracy is that of an undisturbed run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from worlds import environment

pytest.importorskip("mxnet")
pytest.importorskip("sklearn")
pytestmark = [pytest.mark.mxnet, pytest.mark.nightly, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
(DEMO_ARGS,) = re.findall(r"^DEMO_ARGS = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
SECONDS_BETWEEN_KILLS = 2.0


def serving(launcher: psutil.Process) -> list[psutil.Process]:
    """The process of the server that serves, if there is one now: the child of its supervisor."""
    return [life for child in launcher.children() if "serve" in child.cmdline() for life in child.children()]


def train(folder: Path, kills: bool) -> tuple[dict[str, Any], int]:
    """The summary of the demo's run, and how often its server was killed."""
    words = ["run", "-n", "4", "--groups", "2", "--servers", "1", "--server-restarts", "1000", "--algorithm", "elastic"]
    command = [sys.executable, "-m", "hybridps", *words, "--run", str(folder), "--", sys.executable]
    command += [str(ROOT / "examples" / "imagenet" / "train.py"), *DEMO_ARGS.split()]
    killed: set[int] = set()
    with (folder.parent / f"{folder.name}.log").open("w+") as log:
        launcher = subprocess.Popen(command, env=environment(), stdout=log, stderr=subprocess.STDOUT)
        while launcher.poll() is None:
            time.sleep(SECONDS_BETWEEN_KILLS)
            with suppress(psutil.NoSuchProcess):
                for life in serving(psutil.Process(launcher.pid)) if kills else ():
                    life.kill()
                    killed.add(life.pid)
        log.seek(0)
        said = log.read()
        assert launcher.returncode == 0, said
    assert said.count("the server is back at") >= len(killed) - 1, said  # it may have been killed after the last step
    return json.loads((folder / "summary.json").read_text()), len(killed)


def test_the_accuracy_of_the_demo(tmp_path: Path) -> None:
    alone, _ = train(tmp_path / "alone", kills=False)
    killed, kills = train(tmp_path / "killed", kills=True)
    print(f"{kills} kills:", *(f"{name} {alone[name]:.4f} {killed[name]:.4f}" for name in ("accuracy", "loss")))
    assert kills >= 5
    assert killed["steps"] == alone["steps"]
    assert killed["accuracy"] >= alone["accuracy"] - 0.02
