"""Groups of MXNet's scripts that die and are started again: the example, and a first gradient of old weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from example_runs import EXAMPLE, lines

from hybridps.config import PREFIX

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(150)]

SECONDS = 140

FIRST_GRADIENT = """
import os, signal, sys, time
from pathlib import Path
import mxnet as mx

back, life = Path(sys.argv[1], "back"), int(os.environ.get("HYBRIDPS_LIFE", "0"))
kv = mx.kv.create("dist_hybridps")
updates = "async" in kv.type
weights, ones = mx.nd.zeros(4), mx.nd.ones(4)
kv.broadcast("w", weights, out=weights)
if updates:
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.001, wd=0))


def step(gradient):
    out = weights if updates else gradient
    kv.pushpull("w", gradient, out=out)
    if not updates:
        weights[:] = weights - 0.001 * gradient
    return weights.asnumpy()[0]


reached = [step(ones.copy()) for _ in range(20)][-1]
if kv.rank == 1 and not life:
    os.kill(os.getpid(), signal.SIGKILL)
if life:
    back.touch()
elif not life:
    end = time.monotonic() + 60
    while not back.exists() and time.monotonic() < end:
        reached = step(ones.copy())
        time.sleep(0.01)
print(f"worker {kv.rank} in life {life} reached {reached:.4f}", flush=True)
"""

SYNCHRONOUS = """
import os, signal
import mxnet as mx
from hybridps import resume

kv = mx.kv.create("dist_hybridps_sync")
weights, ones = mx.nd.zeros(4), mx.nd.ones(4)
kv.broadcast("w", weights, out=weights)
kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.125, wd=0))
for step in range(20):
    kv.pushpull("w", ones, out=weights)
    if step == 10 and kv.rank == 1 and resume().life == 0:
        weights.wait_to_read()
        os.kill(os.getpid(), signal.SIGKILL)
print(f"worker {kv.rank} in life {resume().life} reached {weights.asnumpy()[0]}", flush=True)
"""

DIES = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import train

steps, train_step = 0, train.Training.train_step


def counted(*arguments):
    global steps
    steps += 1
    if steps == 100 and os.environ["HYBRIDPS_GROUP_INDEX"] == "0" and not os.environ.get("HYBRIDPS_LIFE"):
        os.kill(os.getpid(), signal.SIGKILL)
    return train_step(*arguments)


train.Training.train_step = counted
sys.exit(train.main(sys.argv[2:]))
"""


BARRIERS = """
import os, signal, sys, time
from pathlib import Path
import mxnet as mx

back, states = Path(sys.argv[1], "back"), Path(sys.argv[1], "states")
life = int(os.environ.get("HYBRIDPS_LIFE", "0"))
kv = mx.kv.create("dist_hybridps")
if sys.argv[2] != "states":
    kv.barrier()  # as after a download
weight, updates = mx.nd.zeros(4), "async" in kv.type
model = mx.kv.create("dist_hybridps") if sys.argv[2] == "stores" else kv  # as of a Trainer that names its type
model.broadcast("w", weight, out=weight)
if updates:
    model.set_optimizer(mx.optimizer.SGD(learning_rate=0.001, momentum=0.5, wd=0))
    if states.exists() and sys.argv[2] == "states":
        model.load_optimizer_states(str(states))  # the others have not
for step in range(3000):
    model.pushpull("w", mx.nd.ones(4), out=weight if updates else None)
    weight.wait_to_read()
    if step == 10 and kv.rank == 1 and not life:
        if updates:
            model.save_optimizer_states(str(states))
        os.kill(os.getpid(), signal.SIGKILL)
    if life:
        back.touch()
    if step > 20 and back.exists():
        break
    time.sleep(0.01)
before = time.monotonic()
if kv.rank == 1:
    time.sleep(2)
kv.barrier()
print(f"worker {kv.rank} in life {life} waited: {time.monotonic() - before > 1}", flush=True)
"""

READS_BETWEEN = """
import os, signal, sys, time
from pathlib import Path
import mxnet as mx

back, life = Path(sys.argv[1], "back"), int(os.environ.get("HYBRIDPS_LIFE", "0"))
kv = mx.kv.create("dist_hybridps")
weights = [mx.nd.full(10, kv.rank), mx.nd.full(10, kv.rank)]
for key, weight in enumerate(weights):
    kv.broadcast(key, weight, out=weight)
    if life == int(sys.argv[2]):
        weight.asnumpy()  # so the values travel one by one in this life, and together in the other
if "async" in kv.type:
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.0, wd=0))
for step in range(3000):
    for key, weight in enumerate(weights):
        kv.pushpull(key, mx.nd.ones(10), out=weight if "async" in kv.type else None)
    mx.nd.waitall()
    if step == 10 and kv.rank == 1 and not life:
        os.kill(os.getpid(), signal.SIGKILL)
    if life:
        back.touch()
    if step > 20 and back.exists():
        break
    time.sleep(0.01)
print(f"worker {kv.rank} in life {life} ends with {weights[1].asnumpy()[0]}", flush=True)
"""


def launch(script: Path, *words: object, options: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    command = [sys.executable, "-m", "hybridps.cli", "run", "-n", "2", "--groups", "2", "--restarts", "1", *options]
    command += ["--", "python", str(script), *map(str, words)]
    return subprocess.run(command, env=kept, capture_output=True, text=True, timeout=SECONDS)


@pytest.mark.parametrize("algorithm", ["elastic", "async"])
def test_a_first_gradient_of_old_weights_does_not_count(tmp_path: Path, algorithm: str) -> None:
    """The group gets the weights of the job in its first step, for which it has computed a gradient with its own."""
    script = tmp_path / "script.py"
    script.write_text(FIRST_GRADIENT.replace("reached = [", "first = step(1e6 * ones) if life else 0\nreached = [", 1))
    done = launch(script, tmp_path, options=("--algorithm", algorithm))
    assert done.returncode == 0, done.stderr
    assert "group 1 ended with exit status 137" in done.stderr
    told = [line.partition("reached ")[2] for line in done.stdout.splitlines() if "reached" in line]
    assert len(told) == 2
    assert all(-5 < float(weight) < -0.01 for weight in told), told


@pytest.mark.parametrize(
    ("algorithm", "does"), [("elastic", "barriers"), ("async", "barriers"), ("async", "states"), ("elastic", "stores")]
)
def test_a_group_that_comes_back_meets_nobody_before_it_trains_and_all_at_the_end(
    tmp_path: Path, algorithm: str, does: str
) -> None:
    """The others are in the middle of their training, where they do not call the barriers of a script's beginning."""
    script = tmp_path / "script.py"
    script.write_text(BARRIERS)
    done = launch(script, tmp_path, does, options=("--algorithm", algorithm, "--set", "deadline_seconds=60"))
    assert done.returncode == 0, done.stderr
    told = sorted(line.partition("worker ")[2] for line in done.stdout.splitlines() if "waited" in line)
    assert told == ["0 in life 0 waited: True", "1 in life 1 waited: True"]


@pytest.mark.parametrize("reader", [0, 1])
@pytest.mark.parametrize("algorithm", ["elastic", "async", "gossip"])
def test_a_group_comes_back_though_its_initial_values_come_in_other_parts(
    tmp_path: Path, algorithm: str, reader: int
) -> None:
    """How many keys travel together depends on when the script reads them."""
    script = tmp_path / "script.py"
    script.write_text(READS_BETWEEN)
    done = launch(script, tmp_path, reader, options=("--algorithm", algorithm))
    assert done.returncode == 0, done.stderr
    told = sorted(line.partition("worker ")[2] for line in done.stdout.splitlines() if "ends with" in line)
    # Groups that gossip send only what has changed.
    assert told == ["0 in life 0 ends with 0.0", f"1 in life 1 ends with {1.0 if algorithm == 'gossip' else 0.0}"]


def test_a_single_group_comes_back_though_its_initial_values_come_in_other_parts(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(READS_BETWEEN)
    options = ("--algorithm", "elastic", "--groups", "1", "--servers", "1")
    done = launch(script, tmp_path, 1, options=options)
    assert done.returncode == 0, done.stderr
    told = sorted(line.partition("worker ")[2] for line in done.stdout.splitlines() if "ends with" in line)
    assert told == ["0 in life 1 ends with 0.0", "1 in life 1 ends with 0.0"]


@pytest.mark.parametrize("options", [(), ("--algorithm", "sync")], ids=["named by the script", "named at the start"])
def test_synchronous_groups_whose_servers_update_begin_anew_together(tmp_path: Path, options: tuple[str, ...]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SYNCHRONOUS)
    done = launch(script, options=options)
    assert done.returncode == 0, done.stderr
    assert "all groups are started again, 1 of 1" in done.stderr
    # By the order of lives: a group may have come to its end alone before all begin anew.
    told = sorted(line.partition("worker ")[2] for line in done.stdout.splitlines() if "reached" in line)
    assert {line[0]: line.partition("reached ")[2] for line in told} == {"0": "-5.0", "1": "-5.0"}
    assert "MPI_ABORT" not in done.stderr


@pytest.mark.parametrize("options", [(), ("--algorithm", "sync")], ids=["named by the script", "named at the start"])
def test_a_single_group_whose_servers_update_begins_in_a_new_job(tmp_path: Path, options: tuple[str, ...]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SYNCHRONOUS)
    done = launch(script, options=("--groups", "1", "--servers", "1", *options))
    assert done.returncode == 0, done.stderr
    assert sum("reached -5.0" in line for line in done.stdout.splitlines()) == 2


def test_the_example_comes_back_and_the_last_epoch_has_a_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    script = tmp_path / "script.py"
    script.write_text(DIES)
    words = [
        "--data",
        "digits",
        "--network",
        "digits",
        "--epochs",
        "8",
        "--batch-size",
        "16",
        "--lr",
        "0.1",
        "--lr-warmup-epochs",
        "1",
        "--keep",
        "99",
    ]
    done = launch(script, EXAMPLE, *words, options=("--algorithm", "elastic", "--run", str(tmp_path / "run")))
    assert done.returncode == 0, done.stderr
    assert "group 0 ended with exit status 137 (worker 0 killed by signal 9); started again, 1 of 1" in done.stderr
    first, again = (line["first_epoch"] for line in lines(tmp_path / "run", "run"))
    assert first == 0
    assert 2 <= again <= 7
    assert (tmp_path / "run" / "checkpoints" / "epoch-0008" / "manifest.json").exists()
    last = lines(tmp_path / "run", "epoch")[-1]
    assert last["epoch"] == 8
    assert last["centre_top1_correct"] > 0.9 * last["val_images"]


def test_the_first_worker_that_lives_has_the_duties(example) -> None:
    class Store:
        def __init__(self, rank: int, dead: set[int]) -> None:
            self.rank, self._dead = rank, dead

        def num_dead_node(self, node_id: int, timeout: float) -> int:
            return int((node_id - 9) / 2 in self._dead)

    are_mine = example.duties.are_mine
    assert are_mine(None)
    assert are_mine(Store(0, set()))
    assert [are_mine(Store(rank, {0, 1})) for rank in range(4)] == [True, True, True, False]
    assert not are_mine(Store(1, set()))


def test_a_group_that_comes_back_goes_on_where_the_others_are(example, monkeypatch) -> None:
    args = example.options.parser().parse_args(["--epochs", "5"])
    monkeypatch.delenv("HYBRIDPS_RESUME_EPOCH", raising=False)
    assert example.options.reached(args) == 0
    for told, reached in (("2.5", 2), ("4", 4), ("5", 4)):
        monkeypatch.setenv("HYBRIDPS_RESUME_EPOCH", told)
        assert example.options.reached(args) == reached
