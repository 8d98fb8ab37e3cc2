"""The pages of docs/reference: whatever a user can set, run or read has a text, and a unit where it is a quantity."""

from __future__ import annotations

import doctest
import inspect
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from hybridps.algorithms import KNOWN
from hybridps.config import PREFIX, Settings
from hybridps.events import Closed, Communicated, Configured, Event, EventLog, Exchanged, Planned
from hybridps.ps.server.metrics import METRICS
from hybridps.report import make_report
from hybridps.watch.metrics import METRICS as OF_WORKERS
from hybridps.watch.metrics import MODEL_METRICS

DOCS = Path(__file__).parents[2] / "docs"
for folder in ("reference", "pictures"):
    sys.path.insert(0, str(DOCS / folder))
import draw  # noqa: E402
import generate  # noqa: E402
import units  # noqa: E402

COMMANDS = dict(generate.commands(generate.app))
OPTIONS = [(name, option) for name, command in COMMANDS.items() for option in generate.options_of(command)]


page = cache(generate.generate)


def cells(name: str) -> dict[str, list[str]]:
    """The rows of the tables of a page, by their first cell."""
    rows = (line.strip("| ").split(" | ") for line in page(name).splitlines() if line.startswith("| `"))
    return {first.strip("`"): rest for first, *rest in rows}


@pytest.mark.parametrize("name", generate.PAGES)
def test_a_page_in_the_repository_is_that_of_the_code(name):
    assert (DOCS / "reference" / f"{name}.md").read_text() == page(name), "run `make docs` and commit the pages"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_text(name):
    assert inspect.getdoc(COMMANDS[name])
    assert f"## `{name}`\n" in page("commands")


@pytest.mark.parametrize(("command", "option"), OPTIONS, ids=[f"{name} {option.name}" for name, option in OPTIONS])
def test_an_option_has_a_text_and_a_unit(command, option):
    assert option.text
    assert not generate.is_quantity(option.hint) or units.unit(option.name)


def test_the_commands_are_those_that_help_lists():
    assert {"hybridps run", "hybridps serve", "hybridps doctor", "hybridps oracle predict"} <= set(COMMANDS)
    assert not any("sync-dst-dir" in option.shown for _, option in OPTIONS)  # it is hidden


@pytest.mark.parametrize("name", Settings.__struct_fields__)
def test_a_setting_has_a_type_a_text_and_a_unit(name):
    kind, _, unit, text = cells("settings")[f"{PREFIX}{name.upper()}"]
    assert kind
    assert len(text) > 20
    assert unit or not re.match(r"(list of )?(integer|number)", kind)


def test_a_setting_is_described_as_it_is():
    found = cells("settings")
    assert found["HYBRIDPS_SNAPSHOT_SECONDS"][:3] == ["number > 0 and <= 1000000", "`60.0`", "seconds"]
    assert found["HYBRIDPS_GOSSIP"][0] == "one of `symmetric`, `pull`"
    assert found["HYBRIDPS_GROUP_SIZES"][0] == "list of integers >= 1, with commas"


@pytest.mark.parametrize("event", Event.__subclasses__(), ids=lambda event: event.__name__)
def test_an_event_has_a_text_and_its_quantities_units(event):
    assert event.__doc__ != Event.__doc__
    text = page("events").partition(f"## {event.__name__}\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE))
    assert list(rows) == list(event.__struct_fields__)
    for name, row in rows.items():
        kind, _, unit = row.partition(" | ")
        assert unit or not kind.startswith(("integer", "number")), name


def test_every_metric_and_algorithm_is_there():
    metrics = {name.removesuffix("_total") for name in cells("metrics")}
    known = [*METRICS.values(), *OF_WORKERS.values(), MODEL_METRICS]
    assert metrics == {f"hybridps_{name}" for kinds in known for name in kinds}
    assert re.findall(r"^## `(\w+)`$", page("algorithms"), re.MULTILINE) == list(KNOWN)


def test_a_quantity_without_a_unit_is_refused():
    with pytest.raises(KeyError, match="'weight_of_moon' has no unit"):
        units.unit("weight_of_moon")


@pytest.mark.parametrize("module", [generate, units], ids=lambda module: module.__name__)
def test_examples_in_docstrings(module):
    assert doctest.testmod(module) == (0, 2 if module is generate else 1)


def test_a_report_has_the_documented_fields(tmp_path):
    """Of a run whose leader wrote what there is to write."""
    pytest.importorskip("matplotlib")
    log = EventLog(str(tmp_path), 0)
    planned = Planned("worker", 0, 1, 0, 1, 0, 0, ["tcp://127.0.0.1:5555"])
    for event in (Configured(0.0, {}), planned, Exchanged("t", 0, 0.1, 8, 0.5), Communicated(1, 0, 0, 0, 8, 8)):
        log.emit(event)
    log.emit(Closed(1, 0, 8, 8))
    log.close()
    text = (DOCS / "reference" / "files.md").read_text().partition("### summary.json")[2].partition("\n## ")[0]
    documented = {name for row in text.splitlines() if row.startswith("| `") for name in re.findall(r"`(\w+)`", row)}
    assert set(make_report(tmp_path)) <= documented


@pytest.mark.parametrize("name", draw.PICTURES)
def test_a_picture_is_what_its_source_draws(name):
    assert (DOCS / "pictures" / f"{name}.svg").read_text() == draw.PICTURES[name]()
