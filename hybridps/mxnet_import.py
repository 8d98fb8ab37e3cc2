"""What happens when a script imports MXNet: the KVStore types of hybridps become known.

A script that does not import MXNet does not wait seconds for it.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np

from hybridps.errors import ConfigError


def check_numpy() -> None:
    """Raise ConfigError if MXNet cannot be imported with this version of NumPy.

    MXNet reads `numpy.bool` when it is imported. NumPy 1.24 removed that name, and NumPy 2 gave it another meaning.
    """
    if tuple(int(part) for part in np.__version__.split(".")[:2]) >= (1, 24):
        raise ConfigError(
            f"MXNet 1.9.1 cannot run with NumPy {np.__version__}: pip install 'hybridps[mxnet]' brings NumPy 1.23"
        )


def register_types_with_mxnet() -> None:
    """Register the KVStore types as soon as MXNet is imported: now, or when the script does it."""
    if "mxnet" in sys.modules:
        _register_types()
    elif importlib.util.find_spec("mxnet") is not None:
        try:
            check_numpy()
        except ConfigError as error:
            print(f"hybridps: the KVStore types are not available: {error}", file=sys.stderr)
        else:
            sys.meta_path.insert(0, _AfterImport("mxnet", _register_types))


def _register_types() -> None:
    import hybridps.kvstore  # noqa: F401


class _AfterImport(MetaPathFinder):
    """Finds one module, and calls `action` when it has been imported."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        loader = spec.loader if spec is not None else None
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                with _collection_off():
                    execute(module)
                    self._action()

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


@contextmanager
def _collection_off() -> Iterator[None]:
    """Switch the garbage collector off within the context. What was imported by its end is never looked at again.

    Modules stay until the process ends. A process that imports MXNet starts and ends in a quarter less time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()
