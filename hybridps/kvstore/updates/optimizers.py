"""MXNet's optimizers as rules of the servers, with the numbers of each update."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mxnet as mx
from msgspec.structs import replace

from hybridps.errors import HybridPSError
from hybridps.kvstore.updates.server_optimizer import foreign_numbers, foreign_rule
from hybridps.ps.rules import SGD, Adam, AnyRule, Foreign, Momentum, Nesterov

LARGEST = 1e30
"""The largest number in a rule."""


def optimizer_of(updater: Any) -> Any:
    """Return the optimizer of MXNet's own updater; None for any other updating function."""
    return updater.optimizer if type(updater) is mx.optimizer.Updater else None


def rate_of_next_update(optimizer: Any) -> float:
    """Return the learning rate with which an optimizer will update next. MXNet counts the update before it asks."""
    if optimizer.lr_scheduler is None:
        return float(optimizer.lr)
    return float(optimizer.lr_scheduler(optimizer.num_update + 1))


def table_rule(optimizer: Any) -> AnyRule | None:
    """Return the rule with which a table is registered, which changes nothing; None if the servers have none.

    The numbers come with each update. A subclass of an MXNet optimizer may do anything, so it has no rule.
    """
    if type(optimizer) is mx.optimizer.Adam:
        return Adam(rate=0.0)
    if type(optimizer) not in (mx.optimizer.SGD, mx.optimizer.NAG) or not 0 <= optimizer.momentum <= 1:
        return None
    if not optimizer.momentum:
        return SGD(rate=0.0)
    return Nesterov(rate=0.0) if type(optimizer) is mx.optimizer.NAG else Momentum(rate=0.0)


class _OpenScale(float):
    """A `rescale_grad` that Gluon's Trainer may replace.

    If the store updates, the Trainer refuses to replace it, because MXNet's servers would not learn of the change.
    Those of hybridps do.
    """

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = float.__hash__


def open_scale(optimizer: Any) -> None:
    """Let the next step of a Trainer divide gradients by another number, as the number of workers has changed."""
    if optimizer is not None:
        optimizer.rescale_grad = _OpenScale(optimizer.rescale_grad)


def share_counts(optimizer: Any, device: int) -> None:
    """Count the updates on a device with those on all others. MXNet counts them for each device.

    A store updates a key once in a step, on the device where its value is, and that may change.
    """
    counts = getattr(optimizer, "_all_index_update_counts", None)
    if counts is not None:
        counts[device] = counts.setdefault(0, {})


def check_needed(needed: str, optimizer: Any, store_type: str) -> None:
    """Raise HybridPSError unless the optimizer is the one that the algorithm needs: `needed` as in `Row.optimizer`."""
    is_nesterov = isinstance(optimizer, mx.optimizer.NAG) and optimizer.momentum > 0
    if needed == "nesterov" and not is_nesterov:
        raise HybridPSError(
            f"{store_type} needs Nesterov's momentum, and this is {type(optimizer).__name__}: use "
            "mx.optimizer.NAG(momentum=...), or the algorithm elastic, which takes any optimizer"
        )


def check_optimizer(optimizer: Any, rule: AnyRule, is_half: bool, is_mixed: bool) -> None:
    """Raise HybridPSError if a loaded optimizer is not the one that `rule` was made for.

    `is_half`: for float16 keys that are updated in float16. `is_mixed`: whether the optimizer of `rule` had
    `multi_precision`.
    """
    loaded = (None if is_half else table_rule(optimizer)) or foreign_rule(optimizer)
    has_mixed = bool(getattr(optimizer, "multi_precision", False))
    differs = type(loaded) is not type(rule) or (isinstance(rule, Foreign) and loaded != rule)
    if differs or has_mixed != is_mixed:
        raise HybridPSError(
            f"the file has the states of {type(optimizer).__name__} (multi_precision={has_mixed}), and the servers "
            f"update by {rule} (multi_precision={is_mixed}): set that optimizer first"
        )


@contextmanager
def same_random_numbers(optimizer: Any, index: int | str) -> Iterator[None]:
    """Make an MXNet optimizer that draws random numbers draw the same on all workers. Waits for one number."""
    if not isinstance(optimizer, mx.optimizer.SGLD):
        yield
        return
    own = int(mx.nd.random.randint(0, 2**31 - 1).asscalar())
    mx.random.seed(zlib.crc32(f"{index} {optimizer._index_update_count.get(index, 0)}".encode()))
    yield
    mx.random.seed(own)


def rule_of_update(
    table_rule: AnyRule,
    optimizer: Any,
    index: int | str,
    scale: float,
    pushes: int | None,
    any_numbers: bool = False,
) -> AnyRule:
    """Count an update of the key that the optimizer knows as `index`, and return the table's rule with its numbers.

    `scale`: a factor of gradients besides `rescale_grad`. `pushes`: about how often the servers update each key while
    this worker pushes it once; None: all workers' gradients make one update. `any_numbers`: the group updates by
    itself. Raises HybridPSError for a number that servers refuse.
    """
    optimizer._set_current_context(0)
    rate = None
    if isinstance(optimizer, mx.optimizer.LBSGD):
        rate = optimizer._get_lrs([index])[0]  # the only optimizer that takes the rate before it counts the update
    optimizer._update_count(index)
    count = int(optimizer._index_update_count[index])
    if pushes is not None:
        # The updates at the servers count, as with MXNet's own servers.
        first = optimizer.begin_num_update
        count = first + (count - first) * pushes
        optimizer.num_update = max(optimizer.num_update, count)
    numbers: dict[str, Any] = {
        "rate": float(optimizer._get_lrs([index])[0] if rate is None else rate),
        "rescale": float(optimizer.rescale_grad) * scale,
        "weight_decay": float(optimizer._get_wds([index])[0]),
        "clip": max(0.0, float(optimizer.clip_gradient or 0.0)),
    }
    for name, number in numbers.items():
        if not (any_numbers or (-LARGEST if name == "rescale" else 0) <= number <= LARGEST):
            raise HybridPSError(
                f"key {index!r} cannot be updated at the servers with {name} {number}: give a number of 0 or more, or "
                "let the workers update (update_on_kvstore=False)"
            )
    if isinstance(table_rule, Foreign):
        numbers |= foreign_numbers(optimizer, index, count, numbers["rate"], pushes or 1)
        numbers |= {"rescale": float(optimizer.rescale_grad), "scale": scale}
    elif isinstance(table_rule, Adam):
        moments = {"beta1": optimizer.beta1, "beta2": optimizer.beta2, "epsilon": optimizer.epsilon}
        numbers |= {name: float(number) for name, number in moments.items()}
        numbers["update"] = count
    elif isinstance(table_rule, Momentum):
        numbers["momentum"] = float(optimizer.momentum)
    elif isinstance(table_rule, SGD) and optimizer.momentum:
        raise HybridPSError(
            f"the optimizer has momentum={optimizer.momentum} now, and began with none: set it before set_optimizer"
        )
    return replace(table_rule, **numbers)  # type: ignore[type-var, return-value]
