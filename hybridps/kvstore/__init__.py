"""Importing this package registers the KVStore types of hybridps with MXNet. It starts nothing."""

from __future__ import annotations

import numpy as np

from hybridps.errors import ConfigError

if tuple(int(part) for part in np.__version__.split(".")[:2]) >= (1, 24):
    # MXNet reads numpy.bool when it is imported. NumPy 1.24 removed that name, and NumPy 2 gave it another meaning.
    raise ConfigError(
        f"MXNet 1.9.1 cannot run with NumPy {np.__version__}: pip install 'hybridps[mxnet]' brings NumPy 1.23"
    )

from hybridps.kvstore.process import release  # noqa: E402
from hybridps.kvstore.store import HybridKVStore  # noqa: E402
from hybridps.kvstore.types import TYPES  # noqa: E402

__all__ = ["TYPES", "HybridKVStore", "release"]
