"""Workers that die, raise or do not fit, in real training: who ends, who goes on, and what is said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from worlds import command, environment, mpirun

from hybridps.config import started_by_mpi, world_rank

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(170)]

HERE = Path(__file__).parent
TRAIN = HERE.parents[1] / "examples" / "imagenet" / "train.py"
DIGITS = [str(TRAIN), "--data", "digits", "--network", "digits", "--batch-size", "16"]


UNREAD = """
import os
import mxnet as mx
import hybridps.kvstore

kv, out = mx.kv.create("dist_hybridps_sync"), mx.nd.zeros(3)
kv.init("w", out)
for _ in range(3):
    kv.push("w", mx.nd.ones(3))
    kv.pull("w", out=out)
assert (out.asnumpy() == 2).all()
if kv.rank == 0:
    mx.nd.random.normal(0, -1, (2, 2))
"""


ANOTHER_STORE = """
import mxnet as mx

kv, out = mx.kv.create("dist_hybridps_sync"), mx.nd.zeros(3)
kv.init("w", out)
if kv.rank == 0:
    mx.kv.create("dist_hybridps_sync")
for _ in range(3):
    kv.push("w", mx.nd.ones(3))
    kv.pull("w", out=out)
    out.wait_to_read()
"""


MASK = """
import mxnet as mx
from mxnet import autograd, gluon
import hybridps.kvstore

class Masked(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.dense = gluon.nn.Dense(2, in_units=2)
        self.mask = self.params.get_constant("mask", mx.nd.array([0, -float("inf")]))

    def hybrid_forward(self, F, x, mask):
        return self.dense(x) + F.exp(mask)

net = Masked()
net.initialize()
trainer = gluon.Trainer(net.collect_params(), "sgd", kvstore="dist_hybridps_elastic")
with autograd.record():
    loss = net(mx.nd.ones((1, 2))).sum()
loss.backward()
trainer.step(1)
mx.nd.waitall()
"""


def launcher(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hybridps", "run", *arguments]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[list[str]], psutil.Popen]]:
    """Start a command; whatever it leaves behind is killed in the end."""
    started: list[psutil.Popen] = []

    def begin(arguments: list[str], **extra: str) -> psutil.Popen:
        with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
            started.append(psutil.Popen(arguments, env=environment(extra), stdout=out, stderr=err))
        return started[-1]

    yield begin
    for process in started:
        for child in [*_family(process), process]:
            if child.is_running():
                child.kill()
        process.wait()


def _family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def ranks(process: psutil.Process, group: int | None = None) -> dict[int, psutil.Process]:
    """The ranks below a process, of one group where given, by their rank in their MPI world."""
    found = {}
    for child in _family(process):
        try:
            told = child.environ()
        except psutil.Error:
            continue
        if started_by_mpi(told) and group in (None, int(told.get("HYBRIDPS_GROUP_INDEX", 0))):
            found[world_rank(told)] = child
    return found


def wait_for(condition: Callable[[], object], seconds: float) -> float:
    """Seconds until the condition held. Looks again and again: there is no event to wait for across processes."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "it did not come"
        time.sleep(0.05)
    return time.monotonic() - began


def epochs(folder: Path, worker: int) -> int:
    path = folder / f"train-{worker}.jsonl"
    return path.read_text().count('"event": "epoch"') if path.exists() else 0


def ended(folder: Path, worker: int) -> bool:
    return '"event": "end"' in (folder / f"train-{worker}.jsonl").read_text()


@pytest.mark.parametrize(("algorithm", "victim"), [pytest.param("elastic", 1, marks=pytest.mark.nightly), ("sync", 0)])
def test_a_killed_rank_ends_its_group_alone(start, tmp_path, algorithm: str, victim: int) -> None:
    run = tmp_path / "run"
    job = start(
        launcher("--group-sizes", "1,2", "--algorithm", algorithm, "--run", str(run), "--set", "lost_seconds=3")
        + ["--", "python", *DIGITS, "--epochs", "12"]
    )
    wait_for(lambda: epochs(run, 0) >= 2 and epochs(run, 1) >= 2, 90)
    everyone = [job, *_family(job)]
    ranks(job, group=1)[victim].send_signal(signal.SIGKILL)
    assert wait_for(lambda: not ranks(job, group=1), 10) < 10
    assert job.wait(120) == 128 + signal.SIGKILL
    said = (tmp_path / "err").read_text()
    assert said.count("group 1 ended") == 1, said
    assert "killed by signal 9" in said
    assert "prterun" not in said
    assert ended(run, 0)
    assert not ended(run, 1)
    assert not [process for process in everyone if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["finished"], summary["lost"]) == ([0], [1, 2])


def test_a_killed_rank_ends_a_single_world(start, tmp_path) -> None:
    run = tmp_path / "run"
    job = start(
        command(2, ["-m", "hybridps", *DIGITS, "--epochs", "500", "--run", str(run)]),
        HYBRIDPS_GROUPS="2",
        HYBRIDPS_ALGORITHM="elastic",
    )
    wait_for(lambda: epochs(run, 0) >= 1, 90)
    everyone = [job, *_family(job)]
    ranks(job)[1].send_signal(signal.SIGKILL)
    assert job.wait(10) != 0
    wait_for(lambda: not any(process.is_running() for process in everyone), 10)


@pytest.mark.nightly
@pytest.mark.parametrize("fails_on", [0, 3])
def test_an_exception_ends_its_group_with_one_traceback(tmp_path, fails_on: int) -> None:
    arguments = launcher("-n", "4", "--groups", "2", "--algorithm", "elastic", "--set", "tau=2", "--", "python")
    done = subprocess.run(
        [*arguments, str(HERE / "raises.py")],
        env=environment({"FAILS_ON": str(fails_on)}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("Traceback") == 1, done.stderr
    assert done.stderr.count("ValueError: this worker fails") == 1
    assert "runpy" not in done.stderr
    assert done.stderr.count("ended with exit status 1") == 1
    group = fails_on // 2
    for worker in range(4):
        assert (f"worker {worker} is done" in done.stdout) == (worker // 2 != group)


def test_an_exception_ends_a_single_world() -> None:
    done = mpirun(2, ["-m", "hybridps", str(HERE / "raises.py")], {"FAILS_ON": "1"}, timeout=60)
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1, done.stderr
    assert "is done" not in done.stdout


@pytest.mark.nightly
def test_mpi4py_as_the_runner_does_as_well(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import hybridps.kvstore\n" + (HERE / "raises.py").read_text())
    done = mpirun(2, ["-m", "mpi4py", str(script)], {"FAILS_ON": "1"}, timeout=60)
    assert done.returncode != 0
    assert done.stderr.count("Traceback") == 1, done.stderr


@pytest.mark.parametrize(
    ("runner", "groups"),
    [
        pytest.param([], "1", id="python-1"),
        pytest.param(["-m", "hybridps"], "2", id="runner-2"),
        pytest.param([], "2", id="python-2", marks=pytest.mark.nightly),
        pytest.param(["-m", "hybridps"], "1", id="runner-1", marks=pytest.mark.nightly),
    ],
)
def test_an_error_that_no_script_reads_is_said_and_ends_nothing(tmp_path, runner: list[str], groups: str) -> None:
    """As under `local`, the status is 0."""
    script = tmp_path / "train.py"
    script.write_text(UNREAD)
    done = mpirun(2, [*runner, str(script)], {"HYBRIDPS_GROUPS": groups, "HYBRIDPS_QUIET": "1"}, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("hybridps: an operation of MXNet failed")]
    assert len(said) == 1, done.stderr
    assert "failed on worker 0, and the script has not read its result: MXNetError: Check failed" in said[0]
    assert said[0].endswith("scale parameter in gaussian has to be positive")


def test_a_killed_server_ends_the_groups(start, tmp_path) -> None:
    run = tmp_path / "run"
    job = start(
        launcher("-n", "2", "--groups", "2", "--algorithm", "elastic", "--run", str(run), "--set", "lost_seconds=3")
        + ["--set", "tau=2", "--", "python", *DIGITS, "--epochs", "500"]
    )
    wait_for(lambda: epochs(run, 0) >= 1, 90)
    server = next(child for child in _family(job) if "serve" in child.cmdline())
    os.kill(server.pid, signal.SIGKILL)
    assert job.wait(30) == 1
    said = (tmp_path / "err").read_text()
    assert said.count("hybridps: error:") == 2, said
    assert said.count("server 0 ended") == 1
    assert "Traceback" not in said


def test_wrong_group_sizes_are_refused_before_anything_starts() -> None:
    done = subprocess.run(
        launcher("-n", "5", "--group-sizes", "3,3", "--", "python", str(HERE / "raises.py")),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "hybridps: error: 5 workers cannot form groups of 3 + 3 = 6 workers\n"


def test_an_infinite_constant_that_groups_would_average_is_named() -> None:
    done = subprocess.run(
        [*launcher("-n", "2", "--groups", "2"), "--", "python", "-c", MASK],
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode != 0
    assert "refused: element 33 is -inf; the loss may diverge (NaN or Inf in key '2')" in done.stderr, done.stderr


def test_a_store_that_one_worker_alone_makes_is_named(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ANOTHER_STORE)
    done = mpirun(
        2, ["-m", "hybridps", str(script)], {"HYBRIDPS_DEADLINE_SECONDS": "5", "HYBRIDPS_LOST_SECONDS": "2"}, timeout=60
    )
    assert done.returncode == 1
    assert "rank 0 waited 5 s for agreement of all ranks" in done.stderr
    assert "The waiting rank has made a store or algorithm, which all workers must make" in done.stderr
