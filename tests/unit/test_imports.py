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
BASE = {"errors", "addresses", "config", "memory", "shared_memory", "codecs", "events", "processes"}
BASE |= {"packing", "progress", "quantities", "resuming", "links", "live", "tracing", "files"}
PURE_PS = {"ps.store", "ps.model", "ps.clocks", "ps.chunk_map", "ps.rules"}
"""The parameter service without sockets and threads."""

CORE = BASE | {"mpi_groups", "tensor_collectives"}
MAY_IMPORT: dict[str, set[str]] = {
    "__init__": {"progress", "resuming", "tracing.loading"},
    "errors": set(),
    "addresses": {"errors"},
    "compiled": {"memory"},
    "config": BASE,
    "memory": {"errors"},
    "shared_memory": {"errors", "memory"},
    "codecs": BASE | {"compiled"},
    "events": BASE,
    "processes": BASE,
    "quantities": set(),
    "files": set(),
    "packing": BASE,
    "progress": BASE,
    "resuming": BASE,
    "links": BASE,
    "tracing": BASE,
    "live": BASE,
    "watch": BASE,
    "mpi_groups": BASE,
    "tensor_collectives": CORE | {"compiled"},
    "ps": BASE | {"compiled"},
    "ps.client": BASE | {"compiled", "ps"},
    "ps.server": BASE | {"compiled", "ps"},
    "triggers": {"errors", "memory", "compiled"},
    "gossip": BASE | {"mpi_groups", "ps.rules", "ps.keys", "ps.server.door", "ps.server.transport"},
    "tiers": CORE | PURE_PS | {"ps.client", "triggers", "gossip"},
    "algorithms": CORE | PURE_PS - {"ps.store"} | {"tiers", "triggers", "gossip"},
    "step": CORE | {"algorithms", "compiled"},
    "job": CORE | {"watch", "ps", "tiers", "gossip", "algorithms"},
    "tune": BASE | {"tensor_collectives", "job"},
    "kvstore": CORE | {"compiled", "mxnet_import", "ps", "algorithms", "job", "step"},
    "report": BASE,
    "oracle": BASE,
    "oracle.networks": BASE,
    "oracle.machines": BASE | {"oracle.networks"},
    "oracle.paradl": BASE | {"oracle.networks", "oracle.machines"},
    "oracle.ssgd": BASE | {"oracle.networks", "oracle.machines"},
    "oracle.hybrid": BASE | {"oracle.machines", "oracle.paradl", "oracle.ssgd"},
    "oracle.output": BASE | {"oracle"},
    "calibrate": BASE | {"tensor_collectives", "algorithms", "job", "kvstore", "report", "oracle"},
    "cli": CORE | {"watch", "ps", "algorithms", "job", "kvstore", "report", "oracle", "calibrate"},
    "mxnet_import": {"errors", "kvstore"},
    "__main__": BASE | {"mxnet_import", "mpi_groups", "cli"},
}
"""For each room, or file beside the rooms, the names that it may import besides its own."""

NOT_FROM = {"ps.server": {"ps.client"}, "ps.client": {"ps.server"}}
RACK_ROLE = {"ps/server/upstream.py", "ps/server/tables/rack.py"}
"""The server of a rack is a client of its parents."""

OWNERS = {
    "mpi4py": {"mpi_groups"},
    "zmq": {"ps", "gossip"},
    "mxnet": {"kvstore", "calibrate"},
    "cupy": {"tensor_collectives"},
}
BASE_MAY_USE = {"numpy", "msgspec"}
COMPILERS = {"numba", "llvmlite"}


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    """Dotted name of a file within the package; a room's face has the room's name."""
    relative = path.relative_to(PACKAGE)
    parts = relative.parts[:-1] if relative.name == "__init__.py" and len(relative.parts) > 1 else relative.parts
    return ".".join(parts).removesuffix(".py")


def room_of(name: str) -> str | None:
    """The room that has a rule and that a dotted name is in; the innermost one."""
    rooms = [room for room in MAY_IMPORT if within(name, {room})]
    return max(rooms, key=len, default=None)


def within(name: str, rooms: set[str]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def is_allowed(room: str, name: str) -> bool:
    """Whether a file of a room may import a dotted name of the package."""
    if room_of(name) in (None, room):
        return True
    return within(name, MAY_IMPORT[room]) and not within(name, NOT_FROM.get(room, set()))


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    relative = str(path.relative_to(PACKAGE))
    room = room_of(module_of(path))
    assert room is not None, f"{relative} is in no room of MAY_IMPORT: give its room a rule"
    for name in imported(path):
        root, _, rest = name.partition(".")
        is_rack = relative in RACK_ROLE and within(rest, {"ps.client"})
        if root == "hybridps" and rest and not is_rack:
            assert is_allowed(room, rest), f"{relative}: {room} may not import {name}"
        for owned, owners in OWNERS.items():
            assert root != owned or room.split(".")[0] in owners, f"{name} belongs to {owners}"
        if room in BASE and root not in sys.stdlib_module_names:
            known = BASE_MAY_USE | (COMPILERS if room == "codecs" else set())
            assert root in known | {"hybridps"}, f"the base may not import {name}"


@pytest.mark.parametrize(
    ("room", "name", "allowed"),
    [
        ("ps.server", "ps.client.client.Client", False),
        ("ps.client", "ps.server.Server", False),
        ("ps", "ps.server.server.Server", False),
        ("ps", "ps.client.Client", False),
        ("ps.server", "ps.wire", True),
        ("oracle.paradl", "calibrate.mxnet_networks", False),
        ("oracle.networks", "oracle.machines.Link", False),
        ("tensor_collectives", "ps.model", False),
        ("ps", "tensor_collectives.Levels", False),
        ("step", "ps.client.Client", False),
        ("step", "kvstore.store", False),
        ("algorithms", "ps.client.Client", False),
        ("triggers", "ps.rules.Sum", False),
        ("triggers", "mpi_groups.group.Group", False),
        ("algorithms", "ps.rules.Sum", True),
        ("tiers", "ps.client.Client", True),
        ("tiers", "ps.server.Server", False),
        ("report", "cli.summary", False),
        ("gossip", "ps.server.loop", False),
        ("gossip", "tensor_collectives.Tensor", False),
    ],
)
def test_the_map_forbids_what_it_should(room: str, name: str, allowed: bool) -> None:
    assert is_allowed(room, name) == allowed


def test_every_room_has_a_face() -> None:
    """Its docstring says what the room is for and what a caller uses."""
    for folder in {path.parent for path in files()}:
        face = folder / "__init__.py"
        assert face.exists(), f"{folder} has no __init__.py"
        assert ast.get_docstring(ast.parse(face.read_text())), f"{face} has no docstring"


LIGHT = [
    "",
    "gossip",
    "mpi_groups",
    "tensor_collectives",
    "step",
    "report",
    "cli",
    "cli.oracle",
    "cli.run",
    "oracle.output",
]


@pytest.mark.parametrize("room", [room for room in LIGHT if (PACKAGE / room.replace(".", "/")).exists()])
def test_importing_starts_nothing(room: str) -> None:
    code = (
        f"import sys, threading, hybridps{room and '.'}{room}\n"
        "heavy = {'mpi4py.MPI', 'mxnet', 'zmq', 'cupy', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_workers_do_not_load_the_server() -> None:
    """It would take a tenth of the time in which a worker starts."""
    code = (
        "import sys, hybridps.job; assert not [name for name in sys.modules if name.startswith('hybridps.ps.server')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_oracle_needs_neither_mpi_nor_mxnet() -> None:
    code = (
        "import sys\n"
        "for name in ('mpi4py', 'mxnet', 'zmq'): sys.modules[name] = None\n"
        "from hybridps.cli import main\n"
        "main('oracle predict --network vgg16 --machine abci --strategy data --pes 64 --batch 2048'.split())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "data" in done.stdout


def test_settings_are_read_in_one_place() -> None:
    reading = re.compile(r"""getenv|environ\.get\(\s*f?["']HYBRIDPS|environ\[f?["']HYBRIDPS[^]]*\](?!\s*=)""")
    readers = {str(path.relative_to(PACKAGE)) for path in files() if reading.search(path.read_text())}
    assert readers <= {"config/reading.py"}
