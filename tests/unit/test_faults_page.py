"""docs/faults.md: every test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = sorted(set(re.findall(r"`(\w+/\w+\.py)::(\w+)`", (ROOT / "docs" / "faults.md").read_text())))


def test_it_names_tests() -> None:
    assert len(NAMED) > 50


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_what_it_names_is_there(file: str, test: str) -> None:
    assert f"def {test}(" in (ROOT / "tests" / file).read_text()
