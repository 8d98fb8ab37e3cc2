"""hybridps as KVStore types of MXNet.

| type | algorithm |
|---|---|
| `dist_hybridps_sync` | mpi-SGD, dist-SGD |
| `dist_hybridps_elastic` | mpi-ESGD, dist-ESGD |
| `dist_hybridps_async` | mpi-ASGD, dist-ASGD |
| `dist_hybridps_<name>` | any other, by its short name: `easgd`, `local`, `diloco`, ... |
| `dist_hybridps` | the one that the setting `algorithm` names |

`pushpull` computes the sum over all workers, so a script divides by `batch_size * num_workers`. Where weights are
averaged, it is the group's sum, scaled to all workers. With `set_optimizer`, the servers run the optimizers that have a
rule; without servers, the workers of a group on one node run them, each for its part. Other optimizers are MXNet's own
code, on every worker. `dist_hybridps_async` updates with each group's mean gradient when it arrives, so a script
divides by `batch_size`, as with MXNet's `dist_async`.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any, NoReturn

from mxnet.kvstore import KVStoreBase

from hybridps.algorithms import KNOWN, short_name
from hybridps.errors import ConfigError, did_you_mean
from hybridps.kvstore.calls import as_mxnet_does
from hybridps.kvstore.store import PREFIX, HybridKVStore, mode_of

TYPES = {
    "dist_hybridps": HybridKVStore,
    **{f"{PREFIX}{name}": partial(HybridKVStore, name) for name in KNOWN},
    **{f"{PREFIX}{name}{mode_of(name)}": partial(HybridKVStore, name) for name in KNOWN},
}


class KVStoreTypes(dict[str, Any]):
    """MXNet's table of types. For a missing name, MXNet would make a store of its own."""

    @as_mxnet_does
    def __contains__(self, name: object) -> bool:
        known = super().__contains__(name)
        if not known and str(name).startswith("dist_hybridps"):
            self[str(name)] = _type_of_others(str(name))
            return True
        if not known and str(name).startswith("hybridps"):  # MXNet takes such a name for `local`
            self[str(name)] = partial(_refuse, str(name))
            return True
        if not known and str(name).startswith("dist") and "DMLC_NUM_WORKER" not in os.environ:
            instead = next((f"{PREFIX}{kind}" for kind in ("async", "sync") if kind in str(name)), "dist_hybridps")
            raise ConfigError(
                f"the KVStore type {name!r} would need MXNet's own scheduler and servers, which this process was not "
                f"started with: use {instead!r}, or start those (DMLC_ROLE and others)"
            )
        return known


def _type_of_others(name: str) -> Any:
    """Return the type of another package's algorithm, or of an algorithm by another name. Raises ConfigError."""
    given = name.removeprefix(PREFIX).removesuffix("_sync").removesuffix("_async")
    try:
        short_name(given)
    except ConfigError:
        _refuse(name)
    return partial(HybridKVStore, given)  # the name as given, as a `dist-` in it determines the groups


@as_mxnet_does
def _refuse(name: str) -> NoReturn:
    nearest, known = did_you_mean(name, [*TYPES]), ", ".join(TYPES)
    raise ConfigError(f"the KVStore type {name!r} is unknown{nearest} Known: {known}")


KVStoreBase.kv_registry = KVStoreTypes(KVStoreBase.kv_registry | TYPES)  # `register` would name it after the class
