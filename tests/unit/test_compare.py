"""What `hybridps compare` plans, counts and shows, from values made here."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import msgspec
import pytest

from hybridps.cli.compare.compare import write
from hybridps.cli.compare.contenders import Contender, parse_contenders
from hybridps.cli.compare.outcomes import Outcome, reached_at, spread, stated_accuracy, table
from hybridps.cli.compare.plan import Comparison, NativeJob, fingerprint, trial_command, trials_of
from hybridps.errors import ConfigError
from hybridps.links import LAUNCHER, Links
from hybridps.report import Point

COMMAND = ("python", "train.py", "--seed={seed}", "--store", "{kvstore}", "{other}")
GIVEN = Comparison(contenders=("sync",), seeds=2, workers=3, groups=2, command=COMMAND, settings=("tau=4",))


def command_of(comparison: Comparison, name: str, links: Links | None = None) -> list[str]:
    trials = trials_of(comparison, parse_contenders(name), Path("/out"))
    return trial_command(comparison, trials[-1], links)


def test_triggers_keep_their_options() -> None:
    found = parse_contenders("sync, gossip+change:0.05,silence=100 ,elastic+every:4,mxnet:dist_sync")
    assert found == (
        Contender("sync", "sync"),
        Contender("gossip+change:0.05,silence=100", "gossip", "change:0.05,silence=100"),
        Contender("elastic+every:4", "elastic", "every:4"),
        Contender("mxnet:dist_sync", "mxnet:dist_sync"),
    )
    assert [each.kvstore for each in found] == ["dist_hybridps"] * 3 + ["dist_sync"]


@pytest.mark.parametrize("text", ["", " , ", "+always", "sync+", "sync,elastic,sync"])
def test_lists_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_contenders(text)


def test_all_contenders_come_before_the_next_seed() -> None:
    trials = trials_of(GIVEN, parse_contenders("sync,elastic"), Path("/out"))
    assert [trial.title for trial in trials] == ["sync, seed 0", "elastic, seed 0", "sync, seed 1", "elastic, seed 1"]
    assert len({trial.folder for trial in trials}) == 4


def test_a_run_is_an_ordinary_launch() -> None:
    words = shlex.join(command_of(GIVEN, "elastic+change:0.05,silence=9"))
    assert " run -n 3 --run /out/elastic+change-0.05-silence-9/seed-1 --groups 2 --algorithm elastic " in words
    assert " --set trigger=change:0.05,silence=9 --set tau=4 " in words
    assert " -x COMPARE_SEED=1 -x COMPARE_KVSTORE=dist_hybridps " in words
    assert words.endswith("-- python train.py --seed=1 --store dist_hybridps '{other}'")


def test_each_group_is_on_a_node_of_its_own() -> None:
    links = Links("p", 2, "1gbit")
    words = command_of(GIVEN, "sync", links)
    assert words[: len(links.launcher)] == links.launcher
    assert words[words.index("--hosts") + 1] == "10.77.0.2:2,10.77.0.3:1"


def test_workers_of_mxnet_are_on_the_nodes_of_the_groups() -> None:
    links = Links("p", 2, "1gbit")
    words = command_of(msgspec.structs.replace(GIVEN, exports=("A=b=c",)), "mxnet:dist_sync", links)
    job = msgspec.json.decode(words[-1], type=NativeJob)
    assert (job.host, job.groups, job.servers) == (LAUNCHER, [0, 0, 1], 1)
    assert job.addresses == ["10.77.0.2", "10.77.0.2", "10.77.0.3"]
    assert job.inside[2] == links.inside("10.77.0.3")
    assert job.command[1:] == ["train.py", "--seed=1", "--store", "dist_sync", "{other}"]
    assert job.environment == {"A": "b=c", "COMPARE_SEED": "1", "COMPARE_KVSTORE": "dist_sync"}


def test_dist_names_make_their_own_groups() -> None:
    assert "--groups" not in command_of(GIVEN, "dist-sgd")


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"contenders": ("other", "sync"), "seeds": 5, "to_accuracy": 0.5}, True),
        ({"workers": 4}, False),
        ({"link": "1gbit"}, False),
        ({"settings": ()}, False),
        ({"command": ("python", "other.py")}, False),
        ({"budget_seconds": 3.0}, False),
    ],
)
def test_a_kept_run_must_be_the_same(change: dict, same: bool) -> None:
    trial = trials_of(GIVEN, parse_contenders("sync"), Path("/out"))[1]
    assert (fingerprint(msgspec.structs.replace(GIVEN, **change), trial) == fingerprint(GIVEN, trial)) is same


def outcome(contender: str, seed: int, accuracies: list[float | None], outcome: str = "finished", **more) -> Outcome:
    """An epoch takes `1 + seed` seconds and a megabyte."""
    points = [
        Point(epoch, epoch * (1 + seed), epoch * 1e6, accuracy, None, 1.0, 0.0)
        for epoch, accuracy in enumerate(accuracies, 1)
    ]
    known = {"seconds": 9.0, "reason": "", "figures": {"steps": 9, "bytes_across_groups": len(points) * 10**6}}
    return Outcome(contender=contender, seed=seed, outcome=outcome, points=points, **known | more)


OUTCOMES = [
    outcome("fast", 0, [0.5, 0.9, 0.95]),
    outcome("fast", 1, [0.6, 0.85, 0.91]),
    outcome("slow", 0, [0.2, None, 0.7, 0.9]),
    outcome("slow", 1, [0.1, 0.2, 0.3, 0.4], distances=[[(1.0, 0.5), (2.0, 0.25)]]),
    outcome("none", 0, [], "failed", reason="exit status 3: <boom>"),
]


def test_time_and_bytes_to_an_accuracy() -> None:
    fast, slow, none = table(OUTCOMES, 0.9)
    assert (fast.reached, slow.reached, none.reached) == (2, 1, 0)
    assert (fast.seconds_to.least, fast.seconds_to.mean, fast.seconds_to.most) == (2, 4, 6)
    assert fast.bytes_to.mean == 2.5e6
    assert (slow.seconds_to.mean, slow.seconds_to.count) == (4, 1)
    assert (slow.accuracy.mean, slow.best.most) == (pytest.approx(0.65), 0.9)
    assert (none.trials, none.failed, none.accuracy) == (1, 1, None)
    assert reached_at(OUTCOMES[3], 0.9) is None
    assert spread([None, None]) is None


def test_the_stated_accuracy_is_one_that_all_reach() -> None:
    assert stated_accuracy(OUTCOMES) == 0.9
    assert stated_accuracy(OUTCOMES[-1:]) is None


def test_the_page_and_the_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    write(msgspec.structs.replace(GIVEN, link="100mbit"), OUTCOMES, tmp_path)
    page = (tmp_path / "compare.html").read_text()
    assert "<boom>" not in page
    assert "exit status 3: &lt;boom&gt;" in page
    assert page.count("data:image/png") == len(list(tmp_path.glob("*.png"))) == 6
    assert "each group behind a link of 100mbit" in page
    content = json.loads((tmp_path / "compare.json").read_text())
    assert content["accuracy"] == 0.9
    assert content["trials"][0]["points"][1]["accuracy"] == 0.9
    assert content["table"][0]["seconds_to"] == {"mean": 4.0, "least": 2.0, "most": 6.0, "count": 2}
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:2] == ["contender", "accuracy"]
    assert lines[2][lines[0].index("seconds to 90.0 %")] == "4.0 s (1 of 2)"


def test_nobody_reported_anything(tmp_path: Path) -> None:
    write(GIVEN, OUTCOMES[-1:], tmp_path)
    assert "data:image/png" not in (tmp_path / "compare.html").read_text()
    assert json.loads((tmp_path / "compare.json").read_text())["accuracy"] is None
