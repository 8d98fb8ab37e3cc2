"""hybridps as KVStore types of MXNet.

| type | algorithm |
|---|---|
| `dist_hybridps_sync` | mpi-SGD, dist-SGD |
| `dist_hybridps_elastic` | mpi-ESGD, dist-ESGD |
| `dist_hybridps_async` | mpi-ASGD, dist-ASGD |
| `dist_hybridps_<name>` | any other, by its short name: `easgd`, `local`, `diloco`, ... |
| `dist_hybridps` | what the setting `algorithm` says |

`pushpull` gives the sum over all workers (where weights are averaged: the group's sum, scaled to all workers), so a
script divides by `batch_size * num_workers`. With `set_optimizer`, the optimizers that there is a rule for are run by
the servers, or by a group on one node without servers, each worker its part; others are MXNet's own, on every worker.
`dist_hybridps_async` updates by each group's mean gradient as it comes, so a script divides by `batch_size`, as with
MXNet's `dist_async`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from mxnet.kvstore import KVStoreBase

from hybridps.algorithms import KNOWN, short_name
from hybridps.errors import ConfigError
from hybridps.kvstore.calls import as_mxnet_does
from hybridps.kvstore.store import PREFIX, HybridKVStore, mode_of

TYPES = {
    "dist_hybridps": HybridKVStore,
    **{f"{PREFIX}{name}": partial(HybridKVStore, name) for name in KNOWN},
    **{f"{PREFIX}{name}{mode_of(name)}": partial(HybridKVStore, name) for name in KNOWN},
}


class KVStoreTypes(dict[str, Any]):
    """MXNet's table of types. Of a name that begins with dist and is not there, MXNet makes a store of its own."""

    @as_mxnet_does
    def __contains__(self, name: object) -> bool:
        known = super().__contains__(name)
        if not known and str(name).startswith("dist_hybridps"):
            self[str(name)] = _type_of_others(str(name))
            return True
        return known


def _type_of_others(name: str) -> Any:
    """Return the type of another package's algorithm, or of an algorithm by another name. Raises ConfigError."""
    given = name.removeprefix(PREFIX).removesuffix("_sync").removesuffix("_async")
    try:
        short_name(given)
    except ConfigError:
        raise ConfigError(f"the KVStore type {name!r} is unknown: use one of {', '.join(TYPES)}") from None
    return partial(HybridKVStore, given)  # `dist-` says something about groups


KVStoreBase.kv_registry = KVStoreTypes(KVStoreBase.kv_registry | TYPES)  # its `register` takes the name from the class
