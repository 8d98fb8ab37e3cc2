"""Traces the way of a gradient: `python -m benchmarks.trace_way [--sent]`.

Two groups of two workers, as threads of this process, train with synchronous SGD and a server over TCP. All threads are
profiled in one warm step. For each point that the gradient passes, the trace lists the files of `hybridps/` on the call
stack, the outermost first. docs/design.md lists them. With `--sent` the server reaches no memory of the groups, so
values are sent, as over a network.
"""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import hybridps

PACKAGE = Path(hybridps.__file__).parent
MPI_WORLD = 4
ELEMENTS = 1 << 21
"""Two chunks of float32, so that their rounds are handed to a worker thread."""

WARM_STEPS = 4

POINTS = {
    ("step/schedule.py", "__call__"): "arrives",
    ("tensor_collectives/reduce.py", "reduce_"): "is summed in the group",
    ("ps/client/session.py", "send"): "is sent",
    ("ps/server/transport.py", "receive"): "is received",
    ("ps/server/admission.py", "put"): "waits for its turn",
    ("ps/server/chunks/rounds.py", "contribute"): "is counted",
    ("ps/server/workers.py", "_do"): "is handed to a worker",
    ("ps/rules/rule.py", "apply_"): "is computed",
    ("ps/server/transport.py", "send"): "is answered",
    ("ps/client/operations.py", "take"): "is taken back",
    ("tensor_collectives/broadcast.py", "broadcast_"): "is given to the group",
    ("step/schedule.py", "finish"): "is released",
}
"""Functions, by file and name, with what happens to the gradient there."""


class Trace:
    """Records stacks at `POINTS` while it is `on`. Every thread that is started after `install` is profiled."""

    def __init__(self) -> None:
        self.on = False
        self.stacks: dict[str, set[tuple[str, ...]]] = {point: set() for point in POINTS.values()}
        self.files: set[str] = set()
        """The files with any function that was called."""
        self._names: dict[CodeType, str | None] = {}

    def install(self) -> None:
        """Profile this thread and those that it starts."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self.on or event != "call":
            return
        name = self._file_of(frame.f_code)
        if name is not None:
            self.files.add(name)
            point = POINTS.get((name, frame.f_code.co_name))
            if point is not None:
                self.stacks[point].add(self._stack(frame))

    def _stack(self, frame: FrameType | None) -> tuple[str, ...]:
        names: list[str] = []
        while frame is not None:
            name = self._file_of(frame.f_code)
            if name is not None and name not in names:
                names.append(name)
            frame = frame.f_back
        return tuple(reversed(names))

    def _file_of(self, code: CodeType) -> str | None:
        """Return the path within the package; None for other code."""
        if code not in self._names:
            path = Path(code.co_filename)
            self._names[code] = str(path.relative_to(PACKAGE)) if PACKAGE in path.parents else None
        return self._names[code]


def train(trace: Trace, sent: bool) -> None:
    """Train, with the trace on in the last step."""
    from hybridps.config import Settings
    from hybridps.mpi_groups import ThreadGroup
    from hybridps.ps.server import Server, requests
    from hybridps.step import roll

    roll.LOOK_SECONDS = 3600.0  # the ranks do not look at who is there in the traced step, however slow the others were
    if sent:
        requests.MOST_REGIONS = 0
    settings = Settings(groups=2, quiet=True, heartbeat_seconds=60.0, lost_seconds=600.0, deadline_seconds=60.0)
    server = Server("tcp://127.0.0.1:*", threads=1, lost_seconds=600.0)
    serving = threading.Thread(target=server.run)
    serving.start()
    try:
        ThreadGroup.run(MPI_WORLD, lambda world: work(world, server.address, settings, trace))
    finally:
        server.stop()
        serving.join()


def work(world: Any, address: str, settings: Any, trace: Trace) -> None:
    """Run one worker."""
    from hybridps.algorithms import choose_row, make_algorithm
    from hybridps.mpi_groups.plan import make_plan
    from hybridps.mpi_groups.session import Session
    from hybridps.ps.client import Client
    from hybridps.step import ArrayModel
    from hybridps.tensor_collectives import Levels
    from hybridps.tiers import ServersTier

    plan = make_plan(["worker"] * world.size, ["here"] * world.size, settings)
    place = plan.places[world.rank]
    session = Session(settings, plan, place, world, 1)
    levels = Levels(session.group.split(0), [0] * session.group.size, settings.deadline_seconds)
    store = None
    if place.is_leader:
        store = Client([address], job="trace", group=place.group, groups=plan.groups, settings=settings)
    tier = ServersTier(levels.group, store)
    row = choose_row("sync", settings, plan.groups, True, None, None)
    algorithm = make_algorithm(row, levels, tier, workers=plan.workers)
    with ArrayModel(algorithm, session, {"weight": np.zeros(ELEMENTS, "float32")}) as model:
        for step in range(WARM_STEPS + 1):
            world.barrier()
            trace.on = step == WARM_STEPS
            world.barrier()
            model.gradients["weight"][...] = world.rank
            model.reduce()
            world.barrier()
            trace.on = False
            if not (model.gradients["weight"] == sum(range(MPI_WORLD))).all():
                raise RuntimeError("the sum over the workers is wrong")
            world.barrier()
    if store is not None:
        store.close()
    levels.close()
    session.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sent", action="store_true", help="values are sent, as to a server on another host")
    arguments = parser.parse_args()
    trace = Trace()
    trace.install()
    train(trace, arguments.sent)
    sys.setprofile(None)
    way = {name for stacks in trace.stacks.values() for stack in stacks for name in stack}
    for point, stacks in trace.stacks.items():
        for stack in sorted(stacks):
            print(f"{point}: {' > '.join(stack)}")
    print(f"{len(way)} files have the gradient, {len(trace.files)} are called")


if __name__ == "__main__":
    main()
