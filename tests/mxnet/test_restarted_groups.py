"""Groups of MXNet's scripts that die and are started again: the example, and a first gradient of old weights."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from example_runs import EXAMPLE, lines
from worlds import environment

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(150)]

SECONDS = 140

COMES_BACK = """
import os, signal, sys, time
from pathlib import Path
import mxnet as mx

folder, reader, stores = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
back, states = folder / "back", folder / "states"
life = int(os.environ.get("HYBRIDPS_LIFE", "0"))
kv = mx.kv.create("dist_hybridps")
gossips = "gossip" in kv.type
kv.barrier()  # as after a download
model = mx.kv.create("dist_hybridps") if stores == "two stores" else kv  # as of a Trainer that names its type
weights = [mx.nd.full(10, 1000 * kv.rank), mx.nd.full(10, 1000 * kv.rank)]
for key, weight in enumerate(weights):
    model.broadcast(key, weight, out=weight)
    if life == reader:
        weight.asnumpy()  # so the values travel one by one in this life, and together in the other
updates = "async" in kv.type
if updates:
    model.set_optimizer(mx.optimizer.SGD(learning_rate=0.001, momentum=0.5, wd=0))
    if life:
        model.load_optimizer_states(str(states))  # the others have not


def step(size=1):
    gradients = [mx.nd.full(10, size), mx.nd.full(10, size)]
    for key, (weight, gradient) in enumerate(zip(weights, gradients)):
        model.pushpull(key, gradient, out=weight if updates else gradient)
        if not updates:
            weight[:] = weight - 0.001 * gradient
    mx.nd.waitall()
    time.sleep(0.01)


if life and not gossips:
    step(1e6)
for _ in range(20):
    step()
if kv.rank == 1 and not life:
    if updates:
        model.save_optimizer_states(str(states))
    os.kill(os.getpid(), signal.SIGKILL)
if life:
    back.touch()
end = time.monotonic() + 60
while not back.exists() and time.monotonic() < end:
    step()
reached = [weight.asnumpy()[0] for weight in weights]
before = time.monotonic()
if kv.rank == 1:
    time.sleep(2)
kv.barrier()
waited = time.monotonic() - before > 1
print(f"worker {kv.rank} in life {life}: waited {waited}, reached {min(reached)} to {max(reached)}", flush=True)
"""

SYNCHRONOUS = """
import os, signal
import mxnet as mx
from hybridps import resume

life = resume().life
kv = mx.kv.create("dist_hybridps_sync")
weights, ones = [mx.nd.zeros(4), mx.nd.zeros(4)], mx.nd.ones(4)
for key, weight in enumerate(weights):
    kv.broadcast(key, weight, out=weight)
    if life:
        weight.asnumpy()  # so the values travel one by one in this life, and together in the one before
kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.125, wd=0))
for step in range(20):
    for key, weight in enumerate(weights):
        kv.pushpull(key, ones, out=weight)
    if step == 10 and kv.rank == 1 and not life:
        mx.nd.waitall()
        os.kill(os.getpid(), signal.SIGKILL)
print(f"worker {kv.rank} in life {life} reached", *(weight.asnumpy()[0] for weight in weights), flush=True)
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

READS_BETWEEN = """
import os, signal
import mxnet as mx

life = int(os.environ.get("HYBRIDPS_LIFE", "0"))
kv = mx.kv.create("dist_hybridps")
weights = [mx.nd.full(10, kv.rank), mx.nd.full(10, kv.rank)]
for key, weight in enumerate(weights):
    kv.broadcast(key, weight, out=weight)
    if life:
        weight.asnumpy()
for step in range(20):
    for key in range(2):
        kv.pushpull(key, mx.nd.ones(10))
    mx.nd.waitall()
    if step == 10 and kv.rank == 1 and not life:
        os.kill(os.getpid(), signal.SIGKILL)
print(f"worker {kv.rank} in life {life} ends with {weights[1].asnumpy()[0]}", flush=True)
"""


def launch(script: Path, *words: object, options: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hybridps.cli", "run", "-n", "2", "--groups", "2", "--restarts", "1", *options]
    command += ["--", "python", str(script), *map(str, words)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=SECONDS)


@pytest.mark.parametrize(
    ("algorithm", "reader", "stores"),
    [
        ("elastic", 1, "two stores"),
        ("async", 0, "one store"),
        ("gossip", 0, "one store"),
        pytest.param("elastic", 0, "one store", marks=pytest.mark.nightly),
        pytest.param("async", 1, "two stores", marks=pytest.mark.nightly),
        pytest.param("gossip", 1, "two stores", marks=pytest.mark.nightly),
    ],
)
def test_a_group_that_comes_back_begins_where_the_others_are(
    tmp_path: Path, algorithm: str, reader: int, stores: str
) -> None:
    """It meets nobody before it trains, as the others do not call the barriers of a script's beginning, and all at the
    end. Its initial values may come in other parts: how many keys travel together depends on when the script reads
    them. Its first gradient, computed with its own weights, does not count; with gossip, it sends no gradients.
    """
    script = tmp_path / "script.py"
    script.write_text(COMES_BACK)
    options = ("--algorithm", algorithm, "--set", "deadline_seconds=60")
    done = launch(script, tmp_path, reader, stores, options=options)
    assert done.returncode == 0, done.stderr
    assert "group 1 ended with exit status 137" in done.stderr
    told = dict(re.findall(r"worker (\d in life \d): (.*)", done.stdout))
    assert told.keys() == {"0 in life 0", "1 in life 1"}
    for said in told.values():
        reached = re.fullmatch(r"waited True, reached (\S+) to (\S+)", said)
        assert reached, told
        assert -100 < float(reached[1]) <= float(reached[2]) < -0.01, told


@pytest.mark.nightly
def test_a_single_group_comes_back_though_its_initial_values_come_in_other_parts(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(READS_BETWEEN)
    options = ("--algorithm", "elastic", "--groups", "1", "--servers", "1")
    done = launch(script, options=options)
    assert done.returncode == 0, done.stderr
    told = sorted(line.partition("worker ")[2] for line in done.stdout.splitlines() if "ends with" in line)
    assert told == ["0 in life 1 ends with 0.0", "1 in life 1 ends with 0.0"]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="named by the script"),
        pytest.param(("--algorithm", "sync"), id="named at the start", marks=pytest.mark.nightly),
    ],
)
def test_synchronous_groups_whose_servers_update_begin_anew_together(tmp_path: Path, options: tuple[str, ...]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SYNCHRONOUS)
    done = launch(script, options=options)
    assert done.returncode == 0, done.stderr
    assert "all groups are started again, 1 of 1" in done.stderr
    # By the order of lives: a group may have come to its end alone before all begin anew.
    told = sorted(line.partition("worker ")[2] for line in done.stdout.splitlines() if "reached" in line)
    assert {line[0]: line.partition("reached ")[2] for line in told} == {"0": "-5.0 -5.0", "1": "-5.0 -5.0"}
    assert "MPI_ABORT" not in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="named by the script", marks=pytest.mark.nightly),
        pytest.param(("--algorithm", "sync"), id="named at the start"),
    ],
)
def test_a_single_group_whose_servers_update_begins_in_a_new_job(tmp_path: Path, options: tuple[str, ...]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SYNCHRONOUS)
    done = launch(script, options=("--groups", "1", "--servers", "1", *options))
    assert done.returncode == 0, done.stderr
    assert sum("reached -5.0 -5.0" in line for line in done.stdout.splitlines()) == 2


def test_the_example_comes_back_and_the_last_epoch_has_a_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    script = tmp_path / "script.py"
    script.write_text(DIES)
    words = ["--data", "digits", "--network", "digits", "--epochs", "8", "--batch-size", "16"]
    words += ["--lr", "0.1", "--lr-warmup-epochs", "1", "--keep", "99"]
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
