"""`python -m hybridps.kvstore.conformance TYPE [CHECK ...]`: status 1 if the type differs from MXNet's `local`."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import mxnet as mx
import typer
from mxnet.kvstore import KVStoreBase

from hybridps.kvstore.conformance import CHECKS, NOT_DIST_SYNC, differences

MXNETS = ("local", "device", "nccl")
"""The types of MXNet's own store in one process. It takes any other name for `local`, unless it begins with `dist`."""


def main(
    kind: Annotated[str, typer.Argument(metavar="TYPE", help="The type of KVStore, as in mx.kv.create.")],
    checks: Annotated[list[str] | None, typer.Argument(metavar="CHECK", help="Checks to run. Default: all.")] = None,
) -> None:
    """Compare a type of KVStore with MXNet's `local`, and print the differences."""
    kind = kind.lower()  # as MXNet does
    try:
        is_mxnets = kind not in KVStoreBase.kv_registry
    except mx.MXNetError as error:
        raise typer.BadParameter(str(error)) from None
    is_distributed = kind.startswith("dist")
    if is_mxnets and not is_distributed and kind not in MXNETS:
        known = ", ".join([*MXNETS, "dist_sync", *KVStoreBase.kv_registry])
        raise typer.BadParameter(f"there is no type {kind!r}: give one of {known}")
    for name in checks or ():
        if name not in CHECKS:
            raise typer.BadParameter(f"there is no check {name!r}: give some of {', '.join(CHECKS)}")

    def create() -> Any:
        return mx.kv.create(kind)

    if is_mxnets and is_distributed:
        # A process can have only one of MXNet's own distributed stores, as the end of a store stops the servers.
        lines = differences(cache(create), checks or [name for name in CHECKS if name not in NOT_DIST_SYNC])
    else:
        lines = differences(create, checks or ())
    print("\n".join(lines or ["no difference"]), flush=True)
    raise typer.Exit(bool(lines))


if __name__ == "__main__":
    typer.run(main)
