"""Ranks that train in step with NumPy and hand over their state. Words: a folder, and what happens.

- `back`: group 1 is killed in epoch 1, and comes in at a later epoch.
- `late`: the same, and while group 1 waits, group 0 begins to use tables that group 1 has not joined.
- `server`: as `back`, and the first server is killed while group 1 waits.
- `news`: as `back`, and the second server is killed after group 1 has met the others, before it learns of that.
- `all`: group 1 is killed, and so is group 0 while group 1 waits.
- `early`: group 1 is killed before it has met the others.
- `giver`: as `back`, with three groups, and group 0 is killed when it should hand over.
- `over`: group 1 is killed, and group 0 comes to its end while group 1 waits.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from hybridps import resume
from hybridps.job import open_job
from hybridps.memory import Layout
from hybridps.ps import wire
from hybridps.ps.joining import Meet

EPOCHS, STEPS = 6, 5
LAYOUT = Layout.of("float32", {"w": (100_000,), "b": (10,)})
folder, what = Path(sys.argv[1]), sys.argv[2]
life = resume().life


def await_file(name: str) -> None:
    end = time.monotonic() + 60
    while not (folder / name).exists() and time.monotonic() < end:
        time.sleep(0.05)


def kill_server(number: int) -> None:
    launcher = psutil.Process(int(os.environ["LAUNCHER_PID"]))
    servers = [each for each in launcher.children() if "serve" in each.cmdline()]
    servers[number].children()[0].kill()
    (folder / "killed").touch()


def news_of_a_meeting(request: int, number: int = 0, trains: Mapping[int, int] | None = None) -> Meet:
    """Make the message in which a group tells a server of a meeting; kill the server first if group 1 has come in."""
    if group == 0 and trains and trains.get(1) == 1 and not (folder / "killed").exists():
        kill_server(1)
    return Meet(request, number, trains or {})


if what == "news":
    wire.Meet = news_of_a_meeting  # type: ignore[assignment,misc]


class Dies(dict[str, np.ndarray]):
    """Arrays whose group is killed when it should hand them over, the first time."""

    def items(self) -> Any:
        if not (folder / "gave").exists():
            (folder / "gave").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().items()


with open_job() as job:
    algorithm = job.algorithm("sync")
    group, worker = job.session.place.group, job.worker
    gradients = algorithm.levels.tensor(LAYOUT.length, "float32")
    gradients.vectors[0][:] = worker + 10 * life
    algorithm.initialise("start", LAYOUT, gradients)
    state = {"w": gradients.vectors[0].copy(), "m": np.zeros(LAYOUT.length, "f4"), "epoch": np.zeros(1)}
    if what == "giver" and group == 0:
        state = Dies(state)
    if what == "early" and group == 1 and not life:
        os.kill(os.getpid(), signal.SIGKILL)
    tables: list[str] = []
    if group == 1 and life:
        (folder / "back").touch()
        if life > 1:
            (folder / "back again").touch()
    while state["epoch"][0] < EPOCHS:
        epoch = int(state["epoch"][0])
        came = algorithm.hand_over_(state)
        epoch = int(state["epoch"][0])
        if came:
            print(f"worker {worker} came in at epoch {epoch}", flush=True)
        for step in range(STEPS):
            if what == "late" and (epoch, step) == (2, 2) and group == 0:
                await_file("back")
                time.sleep(0.7)  # group 1 waits now
            is_late = what == "late" and (epoch, step) >= (2, 2)
            for table in ("g", "late-1", "late-2", "late-3") if is_late else ("g",):
                if table not in tables:
                    algorithm.join_gradients(table, LAYOUT)
                    tables.append(table)
                gradients.vectors[0][:] = worker + 1 + epoch / 10 + step / 100 + state["w"] / 1000
                algorithm.finish_(algorithm.reduce_(table, gradients, 0, LAYOUT.length))
                state["m"] = 0.5 * state["m"] + gradients.vectors[0]
                state["w"] -= 0.01 * state["m"]
            if group == 1 and not life and (epoch, step) == (1, 2):
                os.kill(os.getpid(), signal.SIGKILL)
        state["epoch"] += 1
        if group != 1 and not life and epoch == 2:
            await_file("back")
            time.sleep(0.7)
            if what == "server" and worker == 0:
                kill_server(0)
            if what == "all":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "over":
                break
        if what == "giver" and group == 2 and epoch == 3:
            await_file("back again")
            time.sleep(0.7)
        if group != 1 and not life and what in ("back", "giver", "late", "server", "news"):
            time.sleep(0.4)  # at the end of one of these epochs group 1 has come to the meeting
    digest = state["w"].tobytes().hex()[:64]
    print(f"worker {worker} in life {life} ends at epoch {int(state['epoch'][0])} with {digest}", flush=True)
