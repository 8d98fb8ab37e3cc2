"""MXNet's optimizers in a server process: the entry point `mxnet` of `hybridps.optimizers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import mxnet as mx
import numpy as np

from hybridps.kvstore.arrays import array_over
from hybridps.kvstore.updates.states import adds_up, arrays_in, count_states, laid_over
from hybridps.ps.rules.foreign import Foreign, Plain

SHARED = {mx.optimizer.Nadam: "m_schedule", mx.optimizer.LARS: "cur_lr"}
"""By optimizer: an attribute that all parameters share and that every update changes."""

OF_WORKER = {
    *("lr", "wd", "rescale_grad", "clip_gradient", "lr_scheduler", "lr_mult", "wd_mult", "param_dict", "idx2name"),
    *("sym_info", "begin_num_update", "num_update", "_index_update_count", "_all_index_update_counts"),
    *("cumgrads", "last_lr", *SHARED.values()),
}
"""Attributes of an optimizer that a worker turns into the numbers of each update, or into states."""


def make(
    name: str, settings: Mapping[str, Plain], weights: np.ndarray, states: Sequence[np.ndarray]
) -> Callable[[Foreign, np.ndarray], None]:
    """Return the update function of an MXNet optimizer with the attributes that `foreign_rule` describes.

    See `FRAMEWORKS`. Raises ValueError for an unknown optimizer or attribute, or for states that it does not have.
    """
    optimizer = _described(name, settings)
    optimizer.multi_precision = False  # `weights` are already those that it updates
    if len(states) != count_states(optimizer):
        raise ValueError(f"it keeps {count_states(optimizer)} states, and not {len(states)}")
    if adds_up(optimizer) and weights.dtype == np.float16:
        raise ValueError("it counts gradients, which float16 cannot: give it multi_precision=True")
    updater, weight = mx.optimizer.get_updater(optimizer), array_over(weights)
    updater.states[0] = laid_over(optimizer.create_state(0, weight), iter(states))
    updater.states_synced[0] = True
    in_use = [weight, *arrays_in(updater.states[0])]
    if adds_up(optimizer):
        states[-1][:] = optimizer.init_updates
    shared = SHARED.get(type(optimizer))

    def update(rule: Foreign, gradient: np.ndarray) -> None:
        optimizer.lr, optimizer.wd = rule.rate, rule.weight_decay
        optimizer.rescale_grad, optimizer.clip_gradient = rule.rescale, rule.clip or None
        if rule.update:  # otherwise it counts by itself
            optimizer._all_index_update_counts[0] = {0: rule.update - 1}
        optimizer.idx2name = {0: rule.parameter}
        if shared is not None:
            setattr(optimizer, shared, rule.shared)
        if adds_up(optimizer):
            summed = array_over(states[-2].reshape(weights.shape))
            optimizer.cumgrads = {0: {"cum_grad": summed, "num_cums": int(states[-1][0])}}
        if rule.scale != 1:
            gradient *= gradient.dtype.type(rule.scale)
        updater(0, array_over(gradient), weight)
        if adds_up(optimizer):
            summed[:] = optimizer.cumgrads[0]["cum_grad"]
            summed.wait_to_read()
            states[-1][:] = optimizer.cumgrads[0]["num_cums"]
        for array in in_use:
            array.wait_to_read()

    return update


def _described(name: str, settings: Mapping[str, Plain]) -> Any:
    """Return an MXNet optimizer with these attributes. Raises ValueError for an unknown name or attribute."""
    kind = mx.optimizer.Optimizer.opt_registry.get(name)
    if kind is None or not kind.__module__.startswith("mxnet."):
        raise ValueError(f"MXNet has no optimizer {name!r}")
    optimizer = kind()
    unknown = settings.keys() - vars(optimizer).keys()
    if unknown:
        raise ValueError(f"it has no {', '.join(sorted(unknown))}")
    vars(optimizer).update(settings)
    return optimizer


def foreign_rule(optimizer: Any) -> Foreign | None:
    """Return the rule for one of MXNet's own optimizers, described by its name and its plain attributes.

    None for any other class, or if an attribute that `make` must set is not plain.
    """
    name = type(optimizer).__name__.lower()
    if mx.optimizer.Optimizer.opt_registry.get(name) is not type(optimizer):
        return None
    if not type(optimizer).__module__.startswith("mxnet."):
        return None
    usual = vars(type(optimizer)())
    own = {each: value for each, value in vars(optimizer).items() if each not in OF_WORKER}
    changed = {each: value for each, value in own.items() if each not in usual or value != usual[each]}
    if not all(each in usual and isinstance(value, Plain) for each, value in changed.items()):
        return None
    settings = msgspec.json.encode(changed).decode()
    states, whole_keys = count_states(optimizer), _looks_at_whole_keys(optimizer)
    return Foreign(framework="mxnet", optimizer=name, settings=settings, states=states, whole_keys=whole_keys)


def foreign_numbers(optimizer: Any, index: int | str, count: int, rate: float, pushes: int) -> dict[str, Any]:
    """Return the numbers that only `Foreign` has, for update `count` of a key with this `rate`.

    What all parameters share is advanced by `pushes` updates.
    """
    shared = 0.0
    if isinstance(optimizer, mx.optimizer.Nadam):
        shared = optimizer.m_schedule
        momentum = optimizer.beta1 * (1 - 0.5 * pow(0.96, count * optimizer.schedule_decay))
        optimizer.m_schedule = shared * momentum**pushes
    elif isinstance(optimizer, mx.optimizer.LARS):
        # The momentum follows the ratio of the last two rates, which do not include the key's own factor.
        factor = rate / optimizer.cur_lr if optimizer.cur_lr else 1.0
        shared = optimizer.last_lr * factor
    name = str(optimizer.idx2name.get(index, index))
    return {"update": count, "shared": float(shared), "parameter": name[-64:]}


def _looks_at_whole_keys(optimizer: Any) -> bool:
    """Return whether an update of one element depends on others: through norms, or through the mean of a row."""
    if isinstance(optimizer, mx.optimizer.LBSGD):
        return bool(optimizer.warmup_strategy == "lars")
    return type(optimizer).__name__ in ("LAMB", "LARS", "GroupAdaGrad")
