"""Who looks for NaN and Inf in gradients that servers sum: a worker before it sends them, or servers in their pass."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
import pytest
from algorithm_groups import LAYOUT, SETTINGS_GIVEN, Groups, run
from in_thread import in_thread

from hybridps.algorithms import Algorithm
from hybridps.codecs import Quantised
from hybridps.config import Settings
from hybridps.events import EventLog
from hybridps.ps.rules import SGD
from hybridps.ps.server import Server
from hybridps.step.finite import NotFiniteGradientError, is_finite
from hybridps.step.job_context import JobContext
from hybridps.step.plan import Span, Table
from hybridps.step.steps import Reducer

pytestmark = pytest.mark.timeout(60)

SIZES = [(1,), (1, 1), (2, 1), (2, 2), (3,)]
REFUSED = "worker 0: the gradient of key 'b' has NaN or Inf in step 2"
BUCKET = 256
"""Elements."""


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[Server]:
    with in_thread(Server("tcp://127.0.0.1:*", threads=2)) as running:
        Groups.server = running
        yield running


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of what workers have searched by themselves."""
    lengths: list[int] = []

    def search(values: np.ndarray) -> bool:
        lengths.append(len(values))
        return is_finite(values)

    monkeypatch.setattr("hybridps.step.finite.is_finite", search)
    return lengths


def trained(sizes, bad, folder=None, compressed=False, how="warn", **options) -> list[str]:
    """Three steps in which `bad` has what is no number: (worker, step, element). How the servers found it last."""
    given = Settings(**SETTINGS_GIVEN, bucket_bytes=4 * BUCKET, check_finite=how)

    def work(algorithm: Algorithm, worker: int) -> bool:
        if compressed:
            algorithm.compress(Quantised(2, 0.5, max(sizes)))
        tensor = algorithm.levels.tensor(LAYOUT.length, "float32")
        algorithm.join_gradients("t", LAYOUT)
        events = EventLog(folder, worker)
        reducer = Reducer(algorithm, JobContext(given, worker, len(sizes), events, lambda what: nullcontext()))
        for step in range(3):
            tensor.vectors[0][:] = 1
            for element in (element for who, when, element in bad if (who, when) == (worker, step)):
                tensor.vectors[0][element] = np.inf
            refuses = how == "refuse" and any((who, when) == (worker, step) for who, when, _ in bad)
            with pytest.raises(NotFiniteGradientError, match=REFUSED) if refuses else nullcontext():
                reducer.reduce([Span(Table("t", LAYOUT, tensor), 0, LAYOUT.length)], step, {})
            if not compressed:
                assert {*np.flatnonzero(tensor.vectors[0] == np.inf)} == {each[2] for each in bad if each[1] == step}
        events.close()
        return algorithm.tier.finds_not_finite("t", tensor)

    return run(sizes, "sync", work, has_servers=True, **options)


def warnings(capsys) -> list[str]:
    words = "the gradient of key"
    lines = [line for line in capsys.readouterr().err.splitlines() if words in line]
    for line in lines:
        assert line.startswith("hybridps: worker ")
    return [line.removeprefix("hybridps: ").partition(" has NaN or Inf in ")[::2] for line in lines]


def expected(worker: int, key: str, step: int) -> tuple[str, str]:
    return f"worker {worker}: the gradient of key {key!r}", f"step {step}; this worker does not look at later ones"


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("step", [0, 2])
def test_servers_find_it_where_they_see_each_worker_s_values(sizes, step, capsys, searched, tmp_path) -> None:
    """The first exchange of a group of several finds out whether they do. The leader reports for all its workers."""
    last = sum(sizes) - 1
    bad = [(last, step, 40), (0, step, 300), (last, 2, LAYOUT.length - 1)]
    assert all(trained(sizes, bad, tmp_path))
    wanted = {expected(last, "a", step)} | ({expected(0, "b", step)} if last else set())
    assert sorted(warnings(capsys)) == sorted(wanted)
    in_groups = sum(size for size in sizes if size > 1)
    assert searched == [BUCKET] * in_groups
    lines = [json.loads(line) for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    told = {(line["key"], line["step"], line["worker"]) for line in lines if line["event"] == "NotFinite"}
    assert told == {("a", step, last)} | ({("b", step, 0)} if last else set())
    assert len(lines) == len(told)


@pytest.mark.parametrize(
    "options", [{"nodes": 1}, {"wire": "float16"}, {"compressed": True}], ids=["nodes", "codec", "compressed"]
)
def test_workers_search_themselves_where_servers_see_something_else(options, capsys, searched) -> None:
    """Sums of a group, or values that were rounded on the way."""
    found = trained((2, 1), [(1, 1, 40), (0, 2, 300)], **options)
    assert found == [False, False, "nodes" in options]
    assert warnings(capsys) == [expected(1, "a", 1), expected(0, "b", 2)]
    assert len(searched) >= 2


def test_refuse_ends_before_anything_is_sent(capsys, searched) -> None:
    trained((1,), [(0, 2, 200)], how="refuse")
    assert searched == [BUCKET, LAYOUT.length - BUCKET] * 2 + [BUCKET]


def test_ignore_says_nothing(capsys, searched, tmp_path) -> None:
    trained((2, 1), [(1, 1, 200), (2, 1, 3)], tmp_path, how="ignore")
    assert warnings(capsys) == []
    assert not searched
    assert not any(path.read_text() for path in tmp_path.iterdir())


def test_workers_search_what_servers_refuse() -> None:
    def work(algorithm: Algorithm, worker: int) -> bool:
        weights, tensor = (algorithm.levels.tensor(LAYOUT.length, "float32") for _ in range(2))
        algorithm.join_weights("t", LAYOUT, weights)
        return algorithm.tier.finds_not_finite("t", tensor)

    assert run((1, 1), "sync", work, rule=SGD(rate=1.0)) == [False, False]
