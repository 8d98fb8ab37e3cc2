"""`python -m hybridps.kvstore.conformance TYPE [CHECK ...]`: status 1 if the type differs from MXNet's `local`."""

import sys
from functools import cache
from typing import Any

import mxnet as mx
from mxnet.kvstore import KVStoreBase

from hybridps.kvstore.conformance import CHECKS, NOT_DIST_SYNC, differences

kind, *names = sys.argv[1:]


def create() -> Any:
    return mx.kv.create(kind)


if kind.startswith("dist") and kind not in KVStoreBase.kv_registry:
    # A process can have only one of MXNet's own distributed stores, as the end of a store stops the servers.
    lines = differences(cache(create), names or [name for name in CHECKS if name not in NOT_DIST_SYNC])
else:
    lines = differences(create, names)
print("\n".join(lines or ["no difference"]), flush=True)
sys.exit(bool(lines))
