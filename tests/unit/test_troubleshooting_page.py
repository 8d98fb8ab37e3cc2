"""docs/troubleshooting.md: every message that it quotes is in the code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOLE = "\0"
QUOTED = re.findall(
    r"^```text\n(.*?)\n```", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE | re.DOTALL
)


@cache
def texts() -> list[str]:
    """All texts of the code, with a hole where a value goes."""
    found = []
    for path in (ROOT / "hybridps").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else HOLE for part in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def is_said(message: str) -> bool:
    """Whether a text of the code has all fixed parts of a message in their order, with a hole between any two."""
    pattern = re.compile(f".*?{HOLE}.*?".join(map(re.escape, message.split("..."))), re.DOTALL)
    return any(pattern.search(text) for text in texts())


def test_it_quotes_messages() -> None:
    assert len(QUOTED) > 40


@pytest.mark.parametrize("message", QUOTED, ids=lambda message: message[:50])
def test_what_it_quotes_is_said(message: str) -> None:
    assert is_said(message)


def test_another_message_is_not_said() -> None:
    assert not is_said("there is no mpirun beside ... or on PATH: buy one")
    assert not is_said("... workers cannot form ... tables: a group needs at least one worker")
