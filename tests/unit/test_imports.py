"""Who may import whom (docs/design.md), read from the imports themselves; and that importing starts nothing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hybridps

PACKAGE = Path(hybridps.__file__).parent
BASE = {"errors", "config", "memory", "events"}
MAY_IMPORT = {
    "errors": set(),
    "config": BASE,
    "memory": BASE,
    "events": BASE,
    "mpi_groups": BASE,
    "compiled": set(),
    "tensor_collectives": BASE | {"mpi_groups", "compiled"},
    "ps": BASE | {"compiled"},
    "algorithms": BASE | {"mpi_groups", "tensor_collectives", "ps"},
    "job": BASE | {"mpi_groups", "tensor_collectives", "ps", "algorithms"},
    "tune": BASE | {"tensor_collectives", "job"},
    "kvstore": BASE | {"mpi_groups", "tensor_collectives", "ps", "algorithms", "job", "oracle"},
    "report": BASE,
    "oracle": BASE,
    "calibrate": BASE | {"tensor_collectives", "algorithms", "job", "kvstore", "report", "oracle"},
    "cli": BASE
    | {"mpi_groups", "tensor_collectives", "ps", "algorithms", "job", "kvstore", "report", "oracle", "calibrate"},
    "__main__": BASE | {"mpi_groups", "cli", "kvstore", "job"},
    "__init__": set(),
}
OWNERS = {"mpi4py": {"mpi_groups"}, "zmq": {"ps"}, "mxnet": {"kvstore", "calibrate"}, "cupy": {"tensor_collectives"}}
BASE_MAY_USE = {"numpy", "msgspec"}


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    part = part_of(path)
    for name in imported(path):
        root, *rest = name.split(".")
        if root == "hybridps" and rest:
            known = rest[0] in MAY_IMPORT
            assert not known or rest[0] == part or rest[0] in MAY_IMPORT[part], f"{part} may not import {name}"
        for owned, owners in OWNERS.items():
            assert root != owned or part in owners, f"{name} belongs to {owners}"
        if part in BASE and root not in sys.stdlib_module_names:
            assert root in BASE_MAY_USE | {"hybridps"}, f"the base may not import {name}"


def test_every_part_has_a_rule() -> None:
    assert {part_of(path) for path in files()} == set(MAY_IMPORT)


@pytest.mark.parametrize("module", ["hybridps", "hybridps.mpi_groups", "hybridps.tensor_collectives", "hybridps.cli"])
def test_importing_starts_nothing(module: str) -> None:
    code = (
        f"import sys, threading, {module}\n"
        "heavy = {'mpi4py.MPI', 'mxnet', 'zmq', 'cupy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_settings_are_read_in_one_place() -> None:
    reading = re.compile(r"""getenv|environ\.get\(\s*f?["']HYBRIDPS|environ\[f?["']HYBRIDPS[^]]*\](?!\s*=)""")
    readers = {str(path.relative_to(PACKAGE)) for path in files() if reading.search(path.read_text())}
    assert readers <= {"config.py"}
