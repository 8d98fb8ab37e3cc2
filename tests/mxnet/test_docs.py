"""The blocks of README and docs run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from worlds import environment, is_open_mpi

pytest.importorskip("mxnet")
pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("README.md"))]
NIGHTLY = {
    ("bash", "docs/compare.md"): "hybridps compare of the example; the tutorial compares a smaller one",
    ("bash", "docs/migrating.md"): "launches as those of the README",
    ("bash", "examples/README.md"): "the examples have tests of their own; the tutorial starts them too",
}
"""Blocks that the nightly tests run, and why they are not run each time."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list:
    found = [(page, text) for page in PAGES for name, text in BLOCK.findall(page.read_text()) if name == language]
    counts: dict[Path, int] = {}
    return [
        pytest.param(
            text,
            id=f"{page.relative_to(ROOT)}-{counts.setdefault(page, 0)}-{number}",
            marks=pytest.mark.nightly if (language, str(page.relative_to(ROOT))) in NIGHTLY else (),
        )
        for number, (page, text) in enumerate(found)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a user has in front of them, in a folder where files may be written."""
    for name in ("examples", "tests", "launch", "Makefile"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.mark.parametrize("text", blocks("python"))
def test_python(text: str, folder: Path) -> None:
    subprocess.run([sys.executable, "-c", text], cwd=folder, env=environment(), check=True, timeout=100)


@pytest.mark.parametrize("text", blocks("bash"))
def test_bash(text: str, folder: Path) -> None:
    """`make` would install again, and run this test: that its target is there is enough."""
    targets = re.findall(r"^make (\w+)", text, re.MULTILINE)
    for target in targets:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    rest = re.sub(r"^make .*\n", "", text, flags=re.MULTILINE)
    if not is_open_mpi():
        rest = rest.replace("mpirun --oversubscribe", "mpirun")  # the others have no such option, and do it
    path = f"{Path(sys.executable).parent}:{environment()['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", rest],
        cwd=folder,
        env=environment({"PATH": path}),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            path = (page.parent / target).resolve()
            assert path.exists(), f"{page}: {target}"
