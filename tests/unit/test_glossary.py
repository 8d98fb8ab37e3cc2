"""Names of public classes, and of public functions of the core rooms, use the words of docs/glossary.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import hybridps

PACKAGE = Path(hybridps.__file__).parent
GLOSSARY = PACKAGE.parent / "docs" / "glossary.md"
CORE = {"algorithms", "mpi_groups", "ps", "step", "tensor_collectives", "tiers"}
"""Rooms whose public functions are looked at too."""

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
NAMES = re.compile(r"HybridPS|MXNet|KVStore|MPI|mpirun", re.IGNORECASE)
"""Written as one word, and understood."""


def first_cells() -> list[str]:
    """The words that the tables define, a cell each."""
    rows = re.findall(r"^\| (.*?) \|", GLOSSARY.read_text(), re.MULTILINE)
    return [row.lower() for row in rows if row != "word"]


def known() -> set[str]:
    """Every word that the tables define, and the plain ones."""
    plain = GLOSSARY.read_text().split("## Plain words")[1]
    return {singular(word) for word in re.findall(r"[a-z]+", " ".join([*first_cells(), plain.lower()]))}


def singular(word: str) -> str:
    return re.sub("(?<=ss)es$|(?<![su])s$", "", word)


def words_of(name: str) -> set[str]:
    return {singular(word.lower()) for word in WORD.findall(NAMES.sub("_", name)) if len(word) > 1}


def public_names() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0]
        for node in ast.parse(path.read_text()).body:
            is_function = isinstance(node, ast.FunctionDef) and room in CORE
            if (isinstance(node, ast.ClassDef) or is_function) and not node.name.startswith("_"):
                yield str(path.relative_to(PACKAGE)), node.name


def test_public_names_use_the_words_of_the_glossary() -> None:
    words = known()
    lacking = {
        f"{path}: {name}": missing for path, name in public_names() if (missing := sorted(words_of(name) - words))
    }
    assert not lacking, f"define these words in docs/glossary.md, or use another name: {lacking}"


def test_a_word_is_defined_once_in_a_section() -> None:
    for section in GLOSSARY.read_text().split("\n## ")[1:]:
        cells = [row for row in re.findall(r"^\| (.*?) \|", section, re.MULTILINE) if row != "word"]
        assert len(cells) == len(set(cells)), f"a word is defined twice in: {section.splitlines()[0]}"


@pytest.mark.parametrize(
    ("name", "words"),
    [("ChunkMap", {"chunk", "map"}), ("MXNetStores", {"store"}), ("MpiESGD", {"esgd"}), ("add_up_", {"add", "up"})],
)
def test_words_of_a_name(name: str, words: set[str]) -> None:
    assert words_of(name) == words
