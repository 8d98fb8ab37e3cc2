"""A job and its algorithms, as processes: what is refused on all ranks, what is shared, and the barrier."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from worlds import environment, mpirun

pytestmark = pytest.mark.timeout(60)

SECONDS = 50

REFUSALS = """
from hybridps.errors import ConfigError
from hybridps.job import open_job
from hybridps.ps.clocks import BoundedStale, BulkSynchronous
from hybridps.ps.rules import SGD

with open_job() as job:
    wishes = {
        "name": ["elastc"],
        "groups": ["dist-sgd"],
        "clock": ["elastic", None, BulkSynchronous()],
        "number": ["async", SGD(rate=-1.0), BoundedStale(1)],
        "one rank": ["sync", SGD(rate=float("nan")) if job.worker == 1 else SGD(rate=1.0)],
        "differs": ["sync", SGD(rate=1.0 + job.worker)],
    }
    for what, wish in wishes.items():
        try:
            job.algorithm(*wish)
        except ConfigError as error:
            print(f"{job.worker} {what} {error.everywhere}: {error}", flush=True)
    algorithm = job.algorithm("mpi-SGD")
    print(job.worker, "goes on True:", algorithm.name, flush=True)
"""

SAID = {
    "name": "algorithm 'elastc' is unknown; did you mean 'elastic'? Known: sync, async, stale",
    "groups": "the algorithm 'dist-sgd' needs groups of one worker, and the groups of this job were made already, with "
    "2 workers: set HYBRIDPS_ALGORITHM=dist-sgd, or start it with `hybridps run --algorithm dist-sgd`",
    "clock": "the clock BulkSynchronous() has no meaning with the rule Elastic of the algorithm 'elastic': "
    "use FreeRunning",
    "number": "SGD(rate=-1.0, rescale=1.0, weight_decay=0.0, clip=0.0) cannot be used: Expected `float` >= 0.0",
    "one rank": "SGD has rate=nan: give a finite number",
    "differs": "the workers ask for different algorithms",
    "goes on": "sync",
}


def test_what_cannot_be_is_refused_on_all_ranks_and_the_job_goes_on() -> None:
    done = mpirun(3, ["-m", "mpi4py", "-c", REFUSALS], {"HYBRIDPS_GROUP_SIZES": "2,1"}, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    for what, said in SAID.items():
        for worker in range(3):
            assert f"{worker} {what} True: {said}" in done.stdout


def test_groups_of_one_worker_are_made_for_a_setting() -> None:
    script = (
        "from hybridps.job import open_job\n"
        "with open_job() as job: print(job.algorithm('dist-SGD').levels.group.size, job.session.plan.group_sizes)"
    )
    done = mpirun(2, ["-m", "mpi4py", "-c", script], {"HYBRIDPS_ALGORITHM": "dist-sgd"}, timeout=SECONDS)
    assert (done.returncode, done.stdout) == (0, "1 (1, 1)\n" * 2), done.stderr


def test_a_setting_without_effect_is_named() -> None:
    script = "from hybridps.job import open_job\nwith open_job() as job: job.algorithm('sync')"
    done = mpirun(1, ["-m", "mpi4py", "-c", script], {"HYBRIDPS_TAU": "5"}, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert "HYBRIDPS_TAU=5 (--tau) has no effect: sync sends gradients in each step" in done.stderr


def test_algorithms_of_several_groups_that_have_one_say_so() -> None:
    script = (
        "from hybridps.job import open_job\nwith open_job() as job: job.algorithm('async'), job.algorithm('elastic')"
    )
    done = mpirun(2, ["-m", "mpi4py", "-c", script], {"HYBRIDPS_GROUPS": "1"}, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("there is one group") == 2
    for name in ("async", "elastic"):
        assert f"so {name} does what sync does: set HYBRIDPS_GROUPS, or start it with" in done.stderr


DESCRIPTORS = """
import gc, os, time
from hybridps.job import open_job
from hybridps.memory import Layout

layout = Layout.of("float32", {"w": (100,)})

def train(name):
    algorithm = job.algorithm(name)
    gradients, weights = (algorithm.levels.tensor(layout.length, "float32") for _ in range(2))
    algorithm.initialise("model", layout, weights)
    algorithm.join_gradients("model", layout)
    algorithm.join_weights("model", layout, weights)
    gradients.vectors[0][:] = 1
    algorithm.finish_(algorithm.reduce_("model", gradients, 0, layout.length))
    if algorithm.has_centre:
        algorithm.average_("model", weights, 10)
    assert (gradients.vectors[0] == job.workers).all(), gradients.vectors[0]
    algorithm.barrier()
    algorithm.close()

def descriptors():
    # the least of several looks: a status file is open for a moment, twice a second
    gc.collect()
    found = []
    for _ in range(5):
        found.append(len(os.listdir("/proc/self/fd")))
        time.sleep(0.02)
    return min(found)

with open_job() as job:
    for name in ("sync", "elastic"):
        train(name)
    before = descriptors()
    for turn in range(50):
        train(("sync", "elastic")[turn % 2])
    end = time.monotonic() + 10
    while (left := descriptors() - before) > 0 and time.monotonic() < end:  # connections end in the background
        pass
    print(left, flush=True)
"""


@pytest.mark.parametrize("groups", [pytest.param("1", marks=pytest.mark.nightly), "2"])
def test_algorithms_that_are_closed_leave_no_descriptors(groups: str) -> None:
    done = mpirun(2, ["-m", "mpi4py", "-c", DESCRIPTORS], {"HYBRIDPS_GROUPS": groups}, timeout=SECONDS)
    assert (done.returncode, done.stdout) == (0, "0\n0\n"), done.stderr


BARRIER = """
import sys, time
from pathlib import Path
from hybridps.job import open_job

folder = Path(sys.argv[1])
with open_job() as job:
    algorithm = job.algorithm("sync")
    group = job.session.place.group
    for meeting in range(3):
        here = folder / f"{meeting}-{job.worker}"
        if group == 0:
            end = time.monotonic() + 20
            while not (folder / f"{meeting}-{job.workers - 1}").exists() and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(0.3)  # as one who validates: the other group is in the barrier by now
        here.touch()
        algorithm.barrier()
        met = [(folder / f"{meeting}-{worker}").exists() for worker in range(job.workers)]
        print("met", meeting, all(met), flush=True)
"""


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("-s", "1"), id="one server", marks=pytest.mark.nightly),
        pytest.param(("-s", "2"), id="two servers"),
    ],
)
def test_a_barrier_waits_for_groups_that_are_mpi_worlds_of_their_own(tmp_path: Path, options: tuple[str, ...]) -> None:
    script, folder = tmp_path / "barrier.py", tmp_path / "met"
    script.write_text(BARRIER)
    folder.mkdir()
    run = [sys.executable, "-m", "hybridps", "run", "-n", "3", "--groups", "2", *options, "--"]
    command = [*run, "python", "-m", "mpi4py", str(script), str(folder)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for meeting in range(3):
        assert done.stdout.count(f"met {meeting} True") == 3, done.stdout
