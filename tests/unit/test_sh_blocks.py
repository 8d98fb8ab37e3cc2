"""The `sh` blocks of the documentation are not run, as they need hosts, data or time; what they name exists."""

from __future__ import annotations

import re
import shlex
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "reference"))
import generate  # noqa: E402

PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINES = [
    (page, line)
    for page in PAGES
    for block in BLOCK.findall(page.read_text())
    for line in block.replace("\\\n", " ").splitlines()
    if line.strip()
]
COMMANDS = dict(generate.commands(generate.app))


def check(words: list[str], folder: Path) -> None:
    """Fail for a command, option, script, target or extra that does not exist. What is not of this project may be."""
    while words and (re.match(r"[A-Z_]+=", words[0]) or words[0] in ("sudo", "$(command -v hybridps)")):
        words = ["hybridps", *words[1:]] if words[0].startswith("$") else words[1:]
    program, *rest = words
    if program == "hybridps":
        check_hybridps(rest, folder)
    elif program == "make":
        for target in rest:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
    elif program == "python" and rest[:1] == ["-m"] and rest[1].startswith("benchmarks."):
        module = ROOT / rest[1].replace(".", "/")
        check_script(module / "__main__.py" if module.is_dir() else module.with_suffix(".py"), rest[2:])
    elif program == "python" and rest[0].endswith(".py"):
        found = [path for path in (folder / rest[0], ROOT / rest[0]) if path.exists()]
        assert found or rest[0] == "train.py", f"{rest[0]} does not exist"
        if found:
            check_script(found[0], rest[1:])
    elif program == "pip":
        settings = ConfigParser()
        settings.read(ROOT / "setup.cfg")
        for extras in re.findall(r"(?:hybridps|\.)\[([\w,]+)\]", " ".join(rest)):
            assert set(extras.split(",")) <= set(settings["options.extras_require"])


def check_hybridps(words: list[str], folder: Path) -> None:
    length = 2 if words[0] == "oracle" else 1
    name, words = " ".join(["hybridps", *words[:length]]), words[length:]
    options = {word.strip(",") for option in generate.options_of(COMMANDS[name]) for word in option.shown.split()}
    own = words[: words.index("--")] if "--" in words else words
    for word in own:
        assert not word.startswith("-") or word in options, f"{name} has no {word}"
    if "--" in words:
        check(words[words.index("--") + 1 :], folder)


def check_script(script: Path, words: list[str]) -> None:
    """Options are those of argparse, or parameters of a function for typer, in a file of the script's folder."""
    assert script.exists()
    source = "".join(path.read_text() for path in script.parent.glob("*.py"))
    for word in words:
        if word.startswith("--"):
            parameter = word.removeprefix("--").replace("-", "_")
            assert f'"{word}"' in source or re.search(rf"\b{parameter}: ", source), f"{script.name} has no {word}"


@pytest.mark.parametrize(("page", "line"), LINES, ids=[f"{page.name}-{line[:60]}" for page, line in LINES])
def test_what_a_line_names_is_there(page: Path, line: str) -> None:
    for part in line.split("&&"):
        check(shlex.split(part, comments=True), page.parent)


@pytest.mark.parametrize(
    "line",
    [
        "hybridps run --grups 2 -- python train.py",
        "hybridps run -- python examples/no_such.py",
        "hybridps fly",
        "make fly",
        "python -m benchmarks.step --fly",
        "pip install 'hybridps[fly]'",
    ],
)
def test_what_is_not_there_is_found(line: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        check(shlex.split(line), ROOT)
