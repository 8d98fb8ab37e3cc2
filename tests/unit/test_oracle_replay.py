"""`hybridps oracle replay`: fitted and given links, awkward traces, bad files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hybridps.cli.app import app
from hybridps.errors import OracleError
from hybridps.oracle.machines import Line
from hybridps.oracle.ssgd.trace import fit_link, read_trace, replay

HEADING = "layer,parameters,backward_us,allreduce_us\n"


def trace(folder: Path, *rows: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(HEADING + "\n".join(rows) + "\n")
    return path


def test_by_hand(tmp_path: Path) -> None:
    """a = 10 us, b = 1 us/B. Backward ends at 5 (c), 25 (b), 26 (a); messages of 4, 8 and 4 bytes."""
    layers = read_trace(trace(tmp_path, "a,1,1,14", "b,2,20,18", "c,1,5,14"))
    link = fit_link(layers)
    assert (link.start_seconds, link.seconds_per_unit) == pytest.approx((10e-6, 1e-6))
    found = replay(layers)
    assert found.naive_ms == pytest.approx(0.026 + 0.046)
    # c 5..19, b 25..43, a 43..57
    assert found.wfbp_ms == pytest.approx(0.057)
    assert found.exposed_ms == pytest.approx(0.031)
    assert found.single_message_ms == pytest.approx(0.026 + 0.026)
    # b comes 20 after c could begin: not merged; a comes 1 after b could begin: merged, 26..48
    assert found.merged_ms == pytest.approx(0.048)
    assert found.merged_groups == 2


def test_a_given_link_is_used(tmp_path: Path) -> None:
    layers = read_trace(trace(tmp_path, "a,1,1,14", "b,2,20,18", "c,1,5,14"))
    found = replay(layers, Line(21e-6, 0.5e-6))
    assert found.merged_groups == 1
    assert found.merged_ms == found.single_message_ms == pytest.approx(0.026 + 0.021 + 0.008)
    assert found.wfbp_ms == pytest.approx(0.057)  # from the times of the trace


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (["a,1,7,3"], {"naive_ms": 0.010, "wfbp_ms": 0.010, "exposed_ms": 0.003, "merged_ms": 0.012}),
        (["a,0,7,0", "b,0,1,0"], {"naive_ms": 0.008, "exposed_ms": 0, "merged_ms": 0.008, "merged_groups": 0}),
        (["a,1,0,2", "b,1,0,3"], {"wfbp_ms": 0.005, "single_message_ms": 0.009, "merged_groups": 1}),
        (["pool,0,9,0", "a,1,1,3"], {"wfbp_ms": 0.010, "exposed_ms": 0, "merged_ms": 0.010, "merged_groups": 1}),
    ],
)
def test_awkward_traces(tmp_path: Path, rows: list[str], expected: dict[str, float]) -> None:
    """One layer; nothing to send; no backward; layers without parameters in front. a = 1 us, b = 1 us/B."""
    found = replay(read_trace(trace(tmp_path, *rows)), Line(1e-6, 1e-6))
    assert {name: getattr(found, name) for name in expected} == pytest.approx(expected)


def test_layers_that_send_nothing_are_no_points_of_the_fit(tmp_path: Path) -> None:
    layers = read_trace(trace(tmp_path, "a,1,1,14", "relu,0,1,0", "b,2,20,18"))
    assert fit_link(layers).start_seconds == pytest.approx(10e-6)


def test_equal_sizes_cannot_be_fitted(tmp_path: Path) -> None:
    layers = read_trace(trace(tmp_path, "a,1,1,14", "b,1,20,18"))
    with pytest.raises(OracleError, match="a and b cannot be fitted, give both"):
        replay(layers)
    assert replay(layers, Line(1e-6, 0)).wfbp_ms == pytest.approx(0.052)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layer,parameters\n", "line 1: the columns are 'layer,parameters', expected 'layer,parameters,backward_us"),
        ("", "line 1: the columns are ''"),
        (HEADING, "has no layers"),
        (HEADING + "a,1,2,3\n\nb,1,2\n", "line 4: 3 columns, expected 4"),
        (HEADING + "a,1,two,3\n", "line 2: backward_us is 'two', expected a number"),
        (HEADING + "a,1,2,3\na,1,2,-3\n", "line 3: allreduce_us is '-3'"),
        (HEADING + "a,1,nan,3\n", "line 2: backward_us is 'nan'"),
        (HEADING + "a,1.5,2,3\n", "line 2: parameters 1.5 is not a whole number"),
    ],
)
def test_bad_files_are_named_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(OracleError, match=message):
        read_trace(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(OracleError, match="cannot be read"):
        read_trace(tmp_path / "none.csv")


def test_the_command(tmp_path: Path) -> None:
    path = trace(tmp_path, "a,1,1,14", "b,2,20,18", "c,1,5,14")
    chrome = tmp_path / "chrome.json"
    done = CliRunner().invoke(app, ["oracle", "replay", str(path), "--chrome", str(chrome)])
    assert done.exit_code == 0, done.output
    expected = {"naive_ms", "wfbp_ms", "exposed_ms", "single_message_ms", "merged_ms", "merged_groups"}
    assert set(json.loads(done.stdout)) == expected | {"a_us", "b_us_per_byte"}
    assert len({event["pid"] for event in json.loads(chrome.read_text())["traceEvents"]}) == 4
    given = ["oracle", "replay", str(path), "--a-us", "21", "--b-us-per-byte", "0.5"]
    assert json.loads(CliRunner().invoke(app, given).stdout)["merged_groups"] == 1
    shown = CliRunner().invoke(app, [*given, "--format", "table"]).stdout
    assert "merged into 1 messages" in shown
    half = CliRunner().invoke(app, given[:-2])
    assert "belong together" in str(half.exception)
