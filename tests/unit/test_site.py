"""`make docs`: the site is built, with no broken link, and has the pages that are made from the code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")
pytest.importorskip("material")

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


class Links(HTMLParser):
    """The ids of a page, and where it leads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids |= {found["id"]} if found.get("id") else set()
        self.targets += [found[name] for name in ("href", "src") if found.get(name)]
        self.loaded += [found[name] for name in ("href", "src") if found.get(name) and tag != "a"]


def build(root: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    # without --quiet, which would hide warnings from --strict
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, timeout=110, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.nightly  # it builds the site once more
def test_a_broken_link_is_an_error(tmp_path):
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "mkdocs.yml", "hybridps", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    with (tmp_path / "docs" / "tutorial.md").open("a") as page:
        page.write("[a](nowhere.md) [b](launching.md#nowhere)\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr
    assert "launching.md#nowhere" in done.stderr


def test_every_link_leads_to_a_page_and_a_place_on_it(site):
    pages = {path: Links(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 25
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert there.exists(), f"{path.name}: {target}"
            if parts.fragment and there in pages:
                assert unquote(parts.fragment) in pages[there].ids, f"{path.name}: {target}"


def test_it_loads_nothing_from_elsewhere(site):
    """A reader without a network sees the same, and nobody learns what they read."""
    for path in site.rglob("*.html"):
        for target in Links(path.read_text()).loaded:
            assert not urlsplit(target).netloc, target


def test_the_code_is_in_it(site):
    assert "HYBRIDPS_SNAPSHOT_SECONDS" in (site / "reference" / "settings.html").read_text()
    assert "hybridps_tenant_memory_bytes" in (site / "reference" / "metrics.html").read_text()
    api = (site / "reference" / "api.html").read_text()
    assert 'id="hybridps.job.open_job"' in api
    assert 'id="hybridps.errors.ConfigError"' in api
