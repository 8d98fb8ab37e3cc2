"""Runs a script, and records which MXNet stores it makes: `python -m hybridps.cli.compare.witness train.py ...`."""

from __future__ import annotations

import importlib
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hybridps.config import load_settings
from hybridps.events import Configured, EventLog
from hybridps.report import read_rank

_FILE = "store"


def main(words: Sequence[str]) -> None:
    """Run a script, or `-m` and a module, as Python would."""
    sys.argv[:] = words[1:] if words[0] == "-m" else words
    _watch_stores()
    if words[0] == "-m":
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


def stores_made(folder: Path) -> set[str]:
    """Return what the workers of a run made, in words such as `the store dist_sync`, as their witnesses recorded it."""
    made = (read_rank(path).last(Configured) for path in folder.glob(f"hybridps-{_FILE}-*.jsonl"))
    return {str(event.settings.get("made")) for event in made if event}


def _watch_stores() -> None:
    """Make `mxnet.kvstore.create` write the type of each distributed store to the run folder."""
    settings = load_settings()
    log = EventLog(settings.run_folder, f"{_FILE}-{settings.group_index}")
    log.emit(Configured(time.time(), {"made": "no distributed store"}))
    stores: Any = importlib.import_module("mxnet.kvstore")  # MXNet alone, without the stores of hybridps
    create: Callable[..., Any] = stores.create

    def watched(*arguments: Any, **options: Any) -> Any:
        store = create(*arguments, **options)
        if "dist" in store.type:
            log.emit(Configured(time.time(), {"made": f"the store {store.type}"}))
        return store

    stores.create = watched


if __name__ == "__main__":
    main(sys.argv[1:])
