"""What `hybridps compare` plans, counts and shows, from values made here."""

from __future__ import annotations

import io
import json
import shlex
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from hybridps.cli.compare import pictures
from hybridps.cli.compare.checks import check, context_of
from hybridps.cli.compare.compare import print_table, write
from hybridps.cli.compare.contenders import Contender, expected_settings, parse_contenders
from hybridps.cli.compare.outcomes import Outcome, outcome_of, reached_at, spread, stated_accuracy, table
from hybridps.cli.compare.page import lines_of
from hybridps.cli.compare.plan import Comparison, NativeJob, Trial, fingerprint, trial_command, trials_of
from hybridps.cli.compare.trials import Result, _misused, kept_result
from hybridps.errors import ConfigError
from hybridps.events import Configured, EventLog, Noted
from hybridps.links import LAUNCHER, Links
from hybridps.report import Point, read_run

COMMAND = ("python", "train.py", "--seed={seed}", "--store", "{kvstore}", "{other}")
GIVEN = Comparison(contenders=("sync",), seeds=2, workers=3, groups=2, command=COMMAND, settings=("tau=4",))


def command_of(comparison: Comparison, name: str, links: Links | None = None) -> list[str]:
    trials = trials_of(comparison, parse_contenders(name), Path("/out"))
    return trial_command(comparison, trials[-1], links)


def test_triggers_keep_their_options() -> None:
    found = parse_contenders("sync, gossip+change:0.05,silence=100 ,elastic+every:4,sync+float16,mxnet:dist_sync")
    assert found == (
        Contender("sync", "sync"),
        Contender("gossip+change:0.05,silence=100", "gossip", "change:0.05,silence=100"),
        Contender("elastic+every:4", "elastic", "every:4"),
        Contender("sync+float16", "sync", None, "float16"),
        Contender("mxnet:dist_sync", "mxnet:dist_sync"),
    )
    assert [each.kvstore for each in found] == ["dist_hybridps"] * 4 + ["dist_sync"]


@pytest.mark.parametrize("text", ["", " , ", "+always", "sync+", "+float16", "sync,elastic,sync"])
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
    assert " --trigger change:0.05,silence=9 --set tau=4 " in words
    assert " -x COMPARE_SEED=1 -x COMPARE_KVSTORE=dist_hybridps " in words
    assert words.endswith("-- python train.py --seed=1 --store dist_hybridps '{other}'")


def test_a_contender_may_round_what_it_sends() -> None:
    words = shlex.join(command_of(GIVEN, "sync+every:2+bfloat16"))
    assert " --algorithm sync --trigger every:2 --set wire=bfloat16 --set tau=4 " in words
    assert expected_settings(parse_contenders("sync+bfloat16")[0])["wire"] == "bfloat16"
    assert "wire" not in expected_settings(parse_contenders("sync")[0])


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("elastic+float16", (), "'elastic\\+float16': elastic sends weights between groups, which are never rounded"),
        ("sync+float16", ("wire=bfloat16",), "--set wire=bfloat16 contradicts the contender 'sync\\+float16'"),
        ("async+float16", (), "'async\\+float16': async sends weights between groups, which are never rounded"),
        (
            "sync+float16",
            ("backend=mxnet",),
            "'sync\\+float16': the backend mxnet rounds nothing: leave \\+float16 out",
        ),
        ("mxnet:dist_sync+float16", (), "'mxnet:dist_sync\\+float16' is not a store of MXNet's own"),
    ],
)
def test_rounding_that_has_no_effect_is_refused(name: str, settings: tuple[str, ...], reason: str) -> None:
    given = msgspec.structs.replace(GIVEN, settings=settings, command=("true",))
    with pytest.raises(ConfigError, match=reason):
        check(given, parse_contenders(name))


def test_one_group_sends_nothing_that_could_be_rounded() -> None:
    given = msgspec.structs.replace(GIVEN, groups=1, command=("true",))
    with pytest.raises(ConfigError, match=r"'sync\+float16' rounds what groups send, and there is one group"):
        check(given, parse_contenders("sync+float16"))


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
    assert job.command[1:] == [
        "-m",
        "hybridps.cli.compare.witness",
        "train.py",
        "--seed=1",
        "--store",
        "dist_sync",
        "{other}",
    ]
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
    assert (fingerprint(msgspec.structs.replace(GIVEN, **change), trial, {}) == fingerprint(GIVEN, trial, {})) is same
    assert fingerprint(GIVEN, trial, {"version": "1"}) != fingerprint(GIVEN, trial, {"version": "2"})


@pytest.mark.parametrize(
    ("files", "is_ours"),
    [
        ({}, True),
        ({"result.json": ""}, True),
        ({"result.json": "", "output.log": "x"}, True),
        ({"result.json": "{}", "hybridps-launcher.jsonl": ""}, True),
        ({"result.json": '{"accuracy": 1}'}, False),
        ({"result.json": "", "thesis.tex": "x"}, False),
        ({"thesis.tex": "x"}, False),
    ],
)
def test_files_of_others_are_never_removed(files: dict[str, str], is_ours: bool, tmp_path: Path) -> None:
    trial = trials_of(GIVEN, parse_contenders("sync"), tmp_path)[0]
    trial.folder.mkdir(parents=True)
    for name, text in files.items():
        (trial.folder / name).write_text(text)
    with nullcontext() if is_ours else pytest.raises(ConfigError, match="has files that are not from a run"):
        assert kept_result(trial, "") is None


def test_a_run_depends_on_folder_variables_and_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = msgspec.structs.replace(GIVEN, exports=("GIVEN=1", "PASSED_ON"))
    monkeypatch.chdir(tmp_path)
    seen = [context_of(given)]
    Path("train.py").write_text("first")
    seen.append(context_of(given))
    Path("train.py").write_text("second")
    seen.append(context_of(given))
    for name in ("PASSED_ON", "HYBRIDPS_ALPHA"):
        monkeypatch.setenv(name, "0.5")
        seen.append(context_of(given))
    (tmp_path / "below").mkdir()
    monkeypatch.chdir("below")
    seen.append(context_of(given))
    assert all(context != other for context in seen for other in seen if other is not context)
    monkeypatch.setenv("ANY_OTHER", "1")
    assert context_of(given) == seen[-1]


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
    """That of the unluckiest seed; runs that failed, or reported nothing, do not count."""
    assert stated_accuracy(OUTCOMES) == 0.4
    assert stated_accuracy([*OUTCOMES[:3], outcome("fast", 2, [0.1], "failed"), outcome("mute", 0, [])]) == 0.9
    assert stated_accuracy(OUTCOMES[-1:]) is None


def test_an_accuracy_of_zero_is_one() -> None:
    zero = [outcome("bad", 0, [0.5, 0.0])]
    assert stated_accuracy([*zero, outcome("worse", 0, [0.0])]) == 0.0
    assert table(zero, 0.5)[0].accuracy.mean == 0.0


def test_a_run_that_cannot_be_read_has_failed(tmp_path: Path) -> None:
    trial = Trial(Contender("sync", "sync"), 0, tmp_path)
    found = outcome_of(trial, Result("finished", "", 0, 1.0, "mark"))
    assert (found.outcome, "is it the folder of a run" in found.reason) == ("failed", True)


@pytest.mark.parametrize("note", ["HYBRIDPS_WIRE=float16 has no effect here, because ...", "something else"])
def test_a_run_that_rounds_nothing_has_failed(note: str, tmp_path: Path) -> None:
    log = EventLog(tmp_path, "0")
    log.emit(Configured(0.0, {"algorithm": "sync", "wire": "float16"}))
    log.emit(Noted(note))
    log.close()
    trial = Trial(parse_contenders("sync+float16")[0], 0, tmp_path)
    assert _misused(trial, read_run(tmp_path)) == (note if "WIRE" in note else "")


def test_a_trigger_that_never_fires_saves_all_exchanges() -> None:
    figures = {"steps": 9, "bytes_across_groups": 0, "exchanges": 0, "exchanges_saved": 18}
    titles, line = lines_of(table([outcome("elastic", 0, [0.5], figures=figures)], 0.5), 0.5)
    words = dict(zip(titles, line, strict=True))
    assert (words["exchanges"], words["saved"], words["across groups"]) == ("0", "100.0 %", "0 B")


def test_a_table_that_is_too_wide_has_a_row_for_each_figure() -> None:
    lines = lines_of(table(OUTCOMES, 0.9), 0.9)
    for width, first in ((300, ["contender", "accuracy"]), (80, ["contender", "fast"])):
        console = Console(width=width, file=io.StringIO())
        print_table(lines, console)
        shown = console.file.getvalue()
        assert "…" not in shown
        assert max(map(len, shown.splitlines())) <= width
        for text in ("fast", "slow", "none", "90.0 %", "reached it)"):
            assert text in shown
        assert [word.strip() for word in shown.splitlines()[1].split("┃")][1:3] == first


def test_curves_end_where_a_seed_ends() -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots()
    seeds = [outcome("a", 0, [0.1, 0.2]), outcome("a", 1, [0.2, 0.3, 0.4]), outcome("a", 2, [None])]
    pictures._accuracy(axes, {"a": seeds}, "seconds", "seconds", None)
    assert list(axes.lines[0].get_ydata()) == pytest.approx([15, 25])


def test_many_contenders_look_different() -> None:
    looks = [tuple(pictures._look(number).values()) for number in range(25)]
    assert len(set(looks)) == 25


def test_measured_bytes_and_payload_are_not_in_one_bar() -> None:
    figures = {"steps": 9, "bytes_across_groups": 10**6, "exchanges": 1, "exchanges_saved": 1, "bytes_saved": 10**6}
    rows = table([outcome("a", 0, [0.5], figures=figures)], 0.5)
    for has_headers, labels in ((False, 2), (True, 1)):
        axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
        pictures._traffic(axes, rows, has_headers)
        assert len(axes.get_legend_handles_labels()[1]) == labels


def test_the_page_and_the_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    write(msgspec.structs.replace(GIVEN, link="100mbit", to_accuracy=0.9), OUTCOMES, tmp_path)
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
    assert lines[2][lines[0].index("seconds to 90.0 %")] == "4.0 s (1 of 2 reached it)"


def test_nobody_reported_anything(tmp_path: Path) -> None:
    write(GIVEN, OUTCOMES[-1:], tmp_path)
    page = (tmp_path / "compare.html").read_text()
    assert "data:image/png" not in page
    assert "To an accuracy" not in page
    assert "seconds to" not in page
    assert json.loads((tmp_path / "compare.json").read_text())["accuracy"] is None
