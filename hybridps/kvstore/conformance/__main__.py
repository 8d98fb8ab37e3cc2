"""`python -m hybridps.kvstore.conformance TYPE [CHECK ...]`: status 1 if the type differs from MXNet's `local`."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import mxnet as mx
import typer
from mxnet.kvstore import KVStoreBase

from hybridps.kvstore.conformance import CHECKS, NOT_DIST_SYNC, differences

MXNETS = ("local", "device", "nccl", "dist_sync", "dist_device_sync", "dist_async")
"""The types of MXNet's own store, which takes any other name for `local`."""


def main(
    kind: Annotated[str, typer.Argument(metavar="TYPE", help="The type of KVStore, as in mx.kv.create.")],
    checks: Annotated[list[str] | None, typer.Argument(metavar="CHECK", help="Checks to run. Default: all.")] = None,
) -> None:
    """Compare a type of KVStore with MXNet's `local`, and print the differences."""
    known = sorted({*MXNETS, *KVStoreBase.kv_registry})
    if kind not in known:
        raise typer.BadParameter(f"there is no type {kind!r}: give one of {', '.join(known)}")
    for name in checks or ():
        if name not in CHECKS:
            raise typer.BadParameter(f"there is no check {name!r}: give some of {', '.join(CHECKS)}")

    def create() -> Any:
        return mx.kv.create(kind)

    if kind.startswith("dist") and kind in MXNETS:
        # A process can have only one of MXNet's own distributed stores, as the end of a store stops the servers.
        lines = differences(cache(create), checks or [name for name in CHECKS if name not in NOT_DIST_SYNC])
    else:
        lines = differences(create, checks or ())
    print("\n".join(lines or ["no difference"]), flush=True)
    raise typer.Exit(bool(lines))


if __name__ == "__main__":
    typer.run(main)
