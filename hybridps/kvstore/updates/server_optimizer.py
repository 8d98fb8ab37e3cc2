"""MXNet's optimizers in a server process: the entry point `mxnet` of `hybridps.optimizers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import mxnet as mx
import numpy as np

from hybridps.kvstore.arrays import array_over
from hybridps.ps.rules.foreign import Foreign, Plain

OF_WORKER = {
    *("lr", "wd", "rescale_grad", "clip_gradient", "lr_scheduler", "lr_mult", "wd_mult", "param_dict", "idx2name"),
    *("sym_info", "begin_num_update", "num_update", "_index_update_count", "_all_index_update_counts"),
}
"""Attributes of an optimizer that a worker turns into the numbers of each update."""


LOOK_AT_NAMES = {"lars", "lbsgd"}
"""Optimizers that treat parameters by their names, which a server does not know."""


def make(name: str, settings: Mapping[str, Plain]) -> Callable[[Foreign, np.ndarray, np.ndarray], None]:
    """An optimizer of MXNet, with attributes as `foreign_rule` describes them. See `FRAMEWORKS`."""
    kind = mx.optimizer.Optimizer.opt_registry.get(name)
    if kind is None or not kind.__module__.startswith("mxnet."):
        raise ValueError(f"MXNet has no optimizer {name!r}")
    optimizer = kind()
    unknown = settings.keys() - vars(optimizer).keys()
    if unknown:
        raise ValueError(f"it has no {', '.join(sorted(unknown))}")
    vars(optimizer).update(settings)
    updater = mx.optimizer.get_updater(optimizer)

    def update(rule: Foreign, gradient: np.ndarray, weights: np.ndarray) -> None:
        optimizer.lr, optimizer.wd = rule.rate, rule.weight_decay
        optimizer.rescale_grad, optimizer.clip_gradient = rule.rescale, rule.clip or None
        weight = array_over(weights)
        updater(0, array_over(gradient), weight)
        weight.wait_to_read()

    return update


def foreign_rule(optimizer: Any) -> Foreign | None:
    """The rule for an optimizer of MXNet itself, which is described by its name and its plain attributes.

    None for another class, or if some attribute that `make` would not give it is not plain.
    """
    name = type(optimizer).__name__.lower()
    if name in LOOK_AT_NAMES:
        return None
    if mx.optimizer.Optimizer.opt_registry.get(name) is not type(optimizer):
        return None
    if not type(optimizer).__module__.startswith("mxnet."):
        return None
    usual = vars(type(optimizer)())
    own = {each: value for each, value in vars(optimizer).items() if each not in OF_WORKER}
    changed = {each: value for each, value in own.items() if each not in usual or value != usual[each]}
    if not all(each in usual and isinstance(value, Plain) for each, value in changed.items()):
        return None
    return Foreign(framework="mxnet", optimizer=name, settings=msgspec.json.encode(changed).decode())
