"""What each rank of a job that gossips does: `gossiping_ranks.py ALGORITHM STEPS WHAT FOLDER`.

Groups begin alike, then each has weights of its own, so that what is conserved can be seen. A line of JSON says how it
ended. WHAT: `together`; or, of group 1 in step 20, `kill` or `freeze`; `late`: group 1 waits until FOLDER/go is there.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from hybridps.job import open_job
from hybridps.memory import Arena, Layout
from hybridps.tensor_collectives import Tensor

LAYOUT = Layout.of("float64", {"a": (37, 5), "b": (3000,)})
name, steps, what, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])


def wait_for(*files: str) -> None:
    while not all((folder / file).exists() for file in files):
        time.sleep(0.01)


def disturb(group: int, step: int) -> None:
    if step == 20 and group == 1 and what in ("kill", "freeze"):
        (folder / "pid").write_text(str(os.getpid()))
        (folder / "pid").rename(folder / "gone")
        os.kill(os.getpid(), signal.SIGKILL if what == "kill" else signal.SIGSTOP)
    if step == 20 and group != 1 and what != "together":
        (folder / f"{group} has begun").touch()
        if what in ("kill", "freeze"):
            wait_for("gone")


if what == "late" and os.environ.get("HYBRIDPS_GROUP_INDEX") == "1":
    wait_for("go")
with open_job() as job:
    place = job.session.place
    algorithm = job.algorithm(name)
    weights = Arena(LAYOUT)
    tensor = Tensor([weights.flat])
    weights.flat[:] = job.worker
    algorithm.initialise("model", LAYOUT, tensor)
    initial = weights.flat.copy()
    late = algorithm.join_weights("model", LAYOUT, tensor)
    if what != "late":
        algorithm.barrier()
    if what != "late" or place.group == 0:
        weights.flat[:] = np.random.default_rng(place.group).standard_normal(LAYOUT.length)
    began = weights.flat.copy()
    sent = 0
    for step in range(1, steps):
        if algorithm.averages(step):
            sent += algorithm.average_("model", tensor, step)
        disturb(place.group, step)
        time.sleep(0.002)
    if what == "late" and place.group == 1:
        (folder / "took over").touch()
    elif what == "late":
        (folder / "go").touch()
        while not (folder / "took over").exists():
            sent += algorithm.average_("model", tensor, steps)
            time.sleep(0.002)
    algorithm.settle_("model", tensor)
    silent = job.silent_workers(1.0) if place.is_leader else None
    shares = getattr(algorithm.tier._tables["model"], "shares", None) if place.is_leader else None
    said = {
        "group": place.group,
        "rank": place.group_rank,
        "servers": len(job.servers),
        "initial": sorted(set(initial)),
        "late": late,
        "began": began[:100].tolist(),
        "ended": weights.flat[:100].tolist(),
        "digest": hashlib.sha256(weights.flat.tobytes()).hexdigest(),
        "sent": sent,
        "share": None if shares is None else shares.own,
        "distance": algorithm.distance,
        "silent": silent,
    }
    (folder / f"said-{place.group}-{place.group_rank}.json").write_text(json.dumps(said))
    algorithm.barrier()
    algorithm.close()
