"""What `mkdocs.yml` adds to the site: pages that lie outside of docs/."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
ELSEWHERE = {
    "index.md": "README.md",
    "examples.md": "examples/README.md",
    "imagenet.md": "examples/imagenet/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
"""Pages of the site, and the files of the repository that they are."""

EXAMPLES = "examples.md"
"""The page that also shows the small examples, which links to their files lead to."""

_LINK = re.compile(r"\[([^\]]+)\]\(([^)#:\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not files of docs/."""
    for page, path in ELSEWHERE.items():
        scripts = map(shown, sorted((ROOT / "examples").glob("*.py"))) if page == EXAMPLES else ()
        files.append(File.generated(config, page, content="\n".join([(ROOT / path).read_text(), *scripts])))
    return files


def shown(script: Path) -> str:
    """A section with a script."""
    return f"## {script.name} {{#{script.stem}}}\n\n```python\n{script.read_text()}```\n"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links and pictures at the site's files. A link to a file that the site does not have becomes its text."""
    uri = page.file.src_uri
    if uri == "troubleshooting.md":
        markdown = markdown.replace("```text\n", "``` { .text .message }\n")
    source = PurePosixPath(ELSEWHERE.get(uri, f"docs/{uri}"))
    pages = {path: name for name, path in ELSEWHERE.items()}

    def led(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        path = os.path.normpath(source.parent / target)
        if path.startswith("examples/") and path.endswith(".py") and path.count("/") == 1:
            path, anchor = ELSEWHERE[EXAMPLES], f"#{Path(path).stem}"
        to = path.removeprefix("docs/") if path.startswith("docs/") else pages.get(path)
        if to is None:
            return text if (ROOT / path).exists() else link[0]  # mkdocs refuses a link that is broken
        return f"[{text}]({os.path.relpath(to, PurePosixPath(uri).parent)}{anchor})"

    return _LINK.sub(led, markdown)
