"""Importing this package registers the KVStore types of hybridps with MXNet. It starts nothing."""

from __future__ import annotations

from hybridps.mxnet_import import check_numpy

check_numpy()

from hybridps.kvstore.process import release  # noqa: E402
from hybridps.kvstore.store import HybridKVStore  # noqa: E402
from hybridps.kvstore.types import TYPES  # noqa: E402

__all__ = ["TYPES", "HybridKVStore", "release"]
