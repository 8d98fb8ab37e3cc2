"""The three small examples: they learn, with any number of workers, under the launcher and under plain mpirun."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from worlds import environment, mpirun

ROOT = Path(__file__).parents[2]
SCRIPTS = {path.stem: path for path in (ROOT / "examples").glob("*_digits.py")}
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(170)]


def accuracies(output: str) -> dict[str, float]:
    """The last accuracy of each worker."""
    return {worker: float(share) for share, worker in re.findall(r"accuracy=(\S+) .*?worker=(\d+)", output)}


def test_they_are_short():
    assert set(SCRIPTS) == {"gluon_digits", "module_digits", "numpy_digits"}
    for path in [*SCRIPTS.values(), ROOT / "examples" / "digits.py"]:
        assert len(path.read_text().splitlines()) <= 30


@pytest.mark.parametrize("name", ["gluon_digits", "module_digits", "numpy_digits"])
def test_two_groups_under_the_launcher(name):
    if name != "numpy_digits":
        pytest.importorskip("mxnet")
    launched = [sys.executable, "-m", "hybridps.cli", "run", "-n", "2", "--groups", "2", "--algorithm", "elastic"]
    done = subprocess.run(
        [*launched, "--", sys.executable, str(SCRIPTS[name])],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (mean,) = re.findall(r"^hybridps: epoch 4: accuracy ([\d.]+)", done.stderr, re.MULTILINE)
    assert float(mean) > 0.8


@pytest.mark.parametrize(
    "name",
    ["gluon_digits", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("module_digits", "numpy_digits"))],
)
def test_an_odd_number_of_workers_under_mpirun(name):
    """The images are not a multiple of three batches: all workers must take the same number of steps."""
    if name != "numpy_digits":
        pytest.importorskip("mxnet")
    extra = {"HYBRIDPS_QUIET": "true", "HYBRIDPS_DEADLINE_SECONDS": "60"}
    done = mpirun(3, ["-m", "hybridps", str(SCRIPTS[name])], extra, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    found = accuracies(done.stdout)
    assert set(found) == {"0", "1", "2"}
    assert len(set(found.values())) == 1  # one group: all have the same weights
    assert found["0"] > 0.7


def test_the_images_without_scikit_learn():
    """The same shapes and values, and images that can be told apart."""
    code = "import sys; sys.modules['sklearn.datasets'] = None; from digits import load; i, l = load(); print(i.shape, "
    code += "i.min() >= 0, i.max() <= 1, sorted(set(l.tolist())) == list(range(10)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "examples", capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "(1800, 8, 8) True True True\n"
