"""An algorithm of another package, found by its entry point and run by its name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from algorithm_groups import LAYOUT, Groups, run
from in_thread import in_thread

from hybridps.algorithms import Algorithm, choose_row, resolve, short_name
from hybridps.config import Settings
from hybridps.errors import ConfigError
from hybridps.memory import Arena
from hybridps.ps.rules import SGD
from hybridps.ps.server import Server
from hybridps.tensor_collectives import Tensor

pytestmark = pytest.mark.timeout(60)

DOCS = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
ITS_CODE = DOCS.split("```python\n")[1].split("```")[0]
MORE_CODE = '''

from hybridps.algorithms import AverageWeights, Definition


class Doubled(AverageWeights):
    """Counts twice what it sends."""

    def average_(self, table, weights, step):
        return 2 * super().average_(table, weights, step)


DOUBLED = Definition(half_way, kind=Doubled, rules=(Elastic,))
NOTHING = 3
'''


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The package of docs/algorithms.md, as an installer leaves it."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "my_package.py").write_text(ITS_CODE + MORE_CODE)
    metadata = folder / "my_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    names = {"half-way": "half_way", "doubled": "DOUBLED", "nothing": "NOTHING", "missing": "missing"}
    lines = "".join(f"{name} = my_package:{value}\n" for name, value in names.items())
    (metadata / "entry_points.txt").write_text(f"[hybridps.algorithms]\n{lines}")
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))
    sys.modules.pop("my_package", None)


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[Server]:
    """One server for all jobs of this module."""
    with in_thread(Server("tcp://127.0.0.1:*", threads=2)) as running:
        Groups.server = running
        yield running


def half_a_way(algorithm: Algorithm, worker: int) -> tuple[str, float, int]:
    weights = Tensor([Arena(LAYOUT).flat])
    algorithm.join_weights("t", LAYOUT, weights)
    weights.vectors[0][:] = 8
    sent = algorithm.average_("t", weights, 3)
    assert len(set(weights.vectors[0])) == 1
    return algorithm.name, float(weights.vectors[0][0]), sent


def test_it_runs_by_its_name() -> None:
    assert resolve(Settings(algorithm="Half-Way")).algorithm == short_name("half-way") == "half-way"
    assert run((2,), "half-way", half_a_way, trigger="every:3") == [("half-way", 4.0, LAYOUT.nbytes)] * 2


def test_it_may_bring_a_class_of_its_own() -> None:
    assert run((1,), "doubled", half_a_way, tau=3) == [("doubled", 4.0, 2 * LAYOUT.nbytes)]


def test_its_rows_are_checked_as_ours_are() -> None:
    with pytest.raises(ConfigError, match="rule SGD has no meaning with the algorithm 'doubled': use one of Elastic"):
        choose_row("doubled", Settings(), 2, True, SGD(rate=0.1), None)
    assert choose_row("half-way", Settings(), 2, True, None, None).rule.alpha == np.float64(0.5)


@pytest.mark.parametrize(
    ("name", "said"),
    [("nothing", "neither a Definition nor a function"), ("missing", "cannot be loaded"), ("halfway", "'half-way'")],
)
def test_what_cannot_be_used_is_said_by_name(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        choose_row(short_name(name), Settings(), 2, True, None, None)
