"""How long a tenant's exchange takes alone, and beside tenants that flood the server. See docs/benchmarks.md.

python -m benchmarks.tenants --json tenants.json
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.results import describe_hardware, size_text
from hybridps.config import Settings
from hybridps.errors import HybridPSError
from hybridps.memory import Layout
from hybridps.processes import ServerProcess
from hybridps.ps.client import Client
from hybridps.ps.keys import make_tenant
from hybridps.ps.rules import Momentum
from hybridps.shared_memory import shared_memory

VICTIM = "victim"
FLOODS = (0, 1, 3)
UNDER_WAY = 16
"""The number of exchanges that a flooding tenant keeps under way, each of its own part of the table."""
CHUNK_BYTES = 1 << 20
START_SECONDS = 60.0

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def tenants(
    exchanges: Annotated[int, typer.Option(min=10, help="Timed exchanges in each case and turn.")] = 300,
    turns: Annotated[int, typer.Option(min=1, help="Turns over the cases; their times are combined.")] = 3,
    nbytes: Annotated[int, typer.Option("--bytes", min=1024, help="Size of the victim's table.")] = 4 << 20,
    flood_bytes: Annotated[int, typer.Option(min=1024, help="Size of a flooding tenant's table.")] = 16 << 20,
    json_path: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the results here.")] = None,
) -> None:
    """Time the exchanges of one tenant alone, beside one that floods the server with exchanges, and beside three."""
    try:
        seconds: dict[int, list[float]] = {floods: [] for floods in FLOODS}
        with tempfile.TemporaryDirectory() as keys, serving(Path(keys)) as address:
            for _ in range(turns):
                for floods, taken in seconds.items():
                    taken += measure(address, Path(keys), floods, exchanges, nbytes, flood_bytes)
    except HybridPSError as error:
        print(f"benchmarks.tenants: {error}", file=sys.stderr)
        raise typer.Exit(error.status) from None
    results = [summarise(floods, taken, seconds[0]) for floods, taken in seconds.items()]
    shared = {"bytes": nbytes, "flood_bytes": flood_bytes, "under_way": UNDER_WAY, "hardware": describe_hardware()}
    print(f"an exchange of {size_text(nbytes)} in shared memory, milliseconds (times as long as alone)")
    for result in results:
        cells = (f"{name} {1e3 * result[name]:.3g} ({result['ratios'][name]:.2f}x)" for name in result["ratios"])
        print(f"beside {result['floods']}: {', '.join(cells)}")
    if json_path is not None:
        json_path.write_text(json.dumps([result | shared for result in results], indent=1))


def summarise(floods: int, seconds: list[float], alone: list[float]) -> dict[str, Any]:
    """Return the median and the 99th percentile, and their ratios to those of the tenant alone."""
    places = {"median": 50, "p99": 99}
    found = {name: float(np.percentile(seconds, place)) for name, place in places.items()}
    ratios = {name: found[name] / float(np.percentile(alone, place)) for name, place in places.items()}
    return {"floods": floods, **found, "ratios": ratios}


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Run a server with keys of all tenants."""
    for name in (VICTIM, *map(str, range(max(FLOODS)))):
        make_tenant(folder, name)
    with ServerProcess(Settings(server_keys=str(folder), lost_seconds=2.0)) as server:
        yield server.address


def measure(address: str, folder: Path, floods: int, exchanges: int, nbytes: int, flood_bytes: int) -> list[float]:
    """Return the seconds of each exchange of the victim."""
    with ExitStack() as stack:
        for number in range(floods):
            stack.enter_context(flooding(address, folder, number, flood_bytes))
        store = stack.enter_context(_client(address, folder, VICTIM))
        layout, values = _table(store, nbytes)
        taken = []
        for _ in range(exchanges):
            begin = time.perf_counter()
            store.exchange("w", values, values, 0, layout.length).wait()
            taken.append(time.perf_counter() - begin)
    return taken


@contextmanager
def flooding(address: str, folder: Path, number: int, nbytes: int) -> Iterator[None]:
    """Run a process of another tenant that exchanges over the network as fast as it can."""
    processes = multiprocessing.get_context("spawn")
    begun = processes.Event()
    process = processes.Process(target=_flood, args=(address, folder, str(number), nbytes, begun), daemon=True)
    process.start()
    try:
        if not begun.wait(START_SECONDS):
            raise HybridPSError(f"a flooding tenant did not begin within {START_SECONDS:g} s")
        yield
    finally:
        process.kill()
        process.join()


def _flood(address: str, folder: Path, name: str, nbytes: int, begun: Any) -> None:
    with _client(address, folder, name) as store:
        layout, _ = _table(store, nbytes)
        values = np.zeros(layout.length, np.float32)
        step = max(CHUNK_BYTES // 4, layout.length // UNDER_WAY)
        spans = [(start, min(start + step, layout.length)) for start in range(0, layout.length, step)]
        under_way = [store.exchange("w", values, values, *span) for span in spans]
        begun.set()
        for number in itertools.cycle(range(len(spans))):
            under_way[number].wait()
            under_way[number] = store.exchange("w", values, values, *spans[number])


def _client(address: str, folder: Path, name: str) -> Client:
    settings = Settings(keys=str(folder / f"for-{name}"), chunk_bytes=CHUNK_BYTES, lost_seconds=2.0)
    return Client([address], job="job", group=0, groups=1, settings=settings)


def _table(store: Client, nbytes: int) -> tuple[Layout, np.ndarray]:
    layout = Layout.of("float32", {"w": (nbytes // 4,)})
    values = shared_memory(layout.nbytes).view(np.float32)
    values[:] = 0
    store.register("w", layout, None, Momentum(rate=0.1))
    return layout, values


if __name__ == "__main__":
    app()
