"""What the ranks of a world print of its programs: `<program> is right`."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence


def assert_right(done: subprocess.CompletedProcess[str], programs: Sequence[str], ranks: int) -> None:
    """Each rank has run each of the programs, as often as it is given, and the world has ended well."""
    found = {program: len(re.findall(rf"(?<!\w){program} is right", done.stdout)) for program in programs}
    wrong = {program: count for program, count in found.items() if count != ranks * programs.count(program)}
    said = f"{done.stdout}{done.stderr}\nthe number of ranks, of {ranks}, that said a program is right: {wrong}"
    assert not wrong, said
    assert done.returncode == 0, said
