"""CONTRIBUTING.md: every question is answered by one file, and what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
QUESTIONS = TEXT.split("## Where would I change it?")[1].split("\n## ")[0]
ANSWERS = re.findall(r"^\| (.*?) \| (.*?) \|$", QUESTIONS, re.MULTILINE)[1:]
ROOMS = {
    "Add an algorithm": "algorithms",
    "Add a trigger": "triggers",
    "Add a rule": "ps/rules",
    "Add a collective": "tensor_collectives",
}
"""Where file names without a folder are, by section."""


def test_there_are_many_questions() -> None:
    assert len(ANSWERS) > 15


@pytest.mark.parametrize(("question", "answer"), ANSWERS)
def test_a_question_is_answered_by_one_file(question: str, answer: str) -> None:
    (name,) = re.findall("`(.*?)`", answer)
    assert (ROOT / name).is_file()


@pytest.mark.parametrize("section", TEXT.split("\n## ")[2:], ids=lambda text: text.splitlines()[0])
def test_what_a_recipe_names_is_there(section: str) -> None:
    room = ROOT / "hybridps" / ROOMS.get(section.splitlines()[0], "")
    folders = (ROOT, ROOT / "hybridps", room, room.parent)
    found = [(folder, name) for name in re.findall(r"`([\w/]+\.(?:py|md))`", section) for folder in folders]
    names = {name for _, name in found}
    assert names == {name for folder, name in found if (folder / name).is_file()}
    code = "".join(path.read_text() for folder in ("hybridps", "tests") for path in (ROOT / folder).rglob("*.py"))
    words = re.findall(r"`(?:levels|tensor)?\.?(\w+)`", section)
    assert not [word for word in words if word not in code]
