"""The updater of a store, and where it updates each key."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from hybridps.algorithms import Algorithm
from hybridps.codecs import Quantised
from hybridps.errors import HybridPSError
from hybridps.job import Job
from hybridps.kvstore.arrays import dtype_of
from hybridps.kvstore.key import Key
from hybridps.kvstore.updates.optimizers import check_needed, check_optimizer, optimizer_of, table_rule
from hybridps.kvstore.updates.own_code import update_
from hybridps.kvstore.updates.server_optimizer import foreign_rule
from hybridps.kvstore.updates.server_updates import ServerUpdates
from hybridps.kvstore.updates.states import adds_up, kept_of, split, state_of
from hybridps.kvstore.updates.states_file import set_states, states_to_bytes
from hybridps.memory import FLOATS
from hybridps.ps.model import Joining
from hybridps.ps.rules import SGD, AnyRule
from hybridps.step import Gradients, InitialValues, JobContext, Schedule

MIXED, HALF = "mixed.", "half."
"""Kinds of float16 keys: updated in float32, and in float16."""


class Updates:
    """The updates of a store's `keys`. Used by the program's thread.

    `stored` returns the present value of a key, and `like` arrays of its shape and dtype, one for each device.
    `is_asynchronous`: the servers update by each group's gradients alone.
    """

    def __init__(
        self,
        job: Job,
        algorithm: Algorithm,
        schedule: Schedule,
        initial: InitialValues,
        is_asynchronous: bool,
        keys: Mapping[str, Key],
        stored: Callable[[str], NDArray],
        like: Callable[[str], list[NDArray]],
    ) -> None:
        self.updater: Any = None
        """`updater(key, sum, stored)` updates the stored value. None: the store does not update."""
        self._place = job.session.place
        self._context = JobContext.of(job.session)
        self._algorithm = algorithm
        self._schedule = schedule
        self._initial = initial
        self._is_asynchronous = is_asynchronous
        self._scale = 1 / job.session.plan.group_sizes[self._place.group] if is_asynchronous else 1.0
        """A factor of gradients: in asynchronous SGD, a group's sum stands for one worker's gradient."""
        self._keys = keys
        self._stored = stored
        self._like = like
        self._at_servers: dict[str, ServerUpdates] = {}
        """The keys that servers update, since the last optimizer was set, by kind: see `_servers_of`."""
        self._optimizers = 0
        """The number of times that the updates began anew. It is part of the names of tables."""
        self._compression: Quantised | None = None
        self._rule: AnyRule | None = None
        """The rule by which servers update; None if they do not."""
        self._is_mixed = False
        """Whether the optimizer has `multi_precision`."""

    def set_updater(self, updater: Any, store_type: str) -> None:
        """Update the stored values by `updater` from now on, at the servers if they can. Raises HybridPSError if only
        servers could update but cannot, or if the algorithm needs another optimizer.
        """
        optimizer = optimizer_of(updater)
        rule: AnyRule | None = table_rule(optimizer)
        if self._algorithm.updates and rule is None:
            rule = foreign_rule(optimizer)
            if rule is None:
                raise HybridPSError(
                    f"{store_type} updates at the servers, which cannot have {type(optimizer or updater).__name__}: "
                    "use an optimizer of mx.optimizer itself, whose settings are numbers, or another type of store"
                )
        check_needed(self._algorithm.row.optimizer, optimizer or updater, store_type)
        self._begin_anew(updater, rule)

    def _begin_anew(self, updater: Any, rule: AnyRule | None) -> None:
        """Continue from the present weights with this updater, and with this rule at the servers."""
        optimizer = optimizer_of(updater)
        self._schedule.agree_on(f"the optimizer {type(optimizer or updater).__name__}")
        self.updater = updater
        for name, key in self._keys.items():
            if key.stored is None:
                is_mixed = key.at_servers is not None and key.at_servers is self._at_servers.get(MIXED)
                stored = self._stored(name)
                key.stored = stored.astype("float16") if is_mixed else stored.copy()
            key.at_servers = None
        self._close_servers()
        self._optimizers += 1
        self._rule = rule
        self._is_mixed = bool(getattr(optimizer, "multi_precision", False))
        self._rule = rule if self._servers_of("float32") is not None or self._algorithm.updates else None

    def compress(self, quantised: Quantised) -> None:
        """Compress the gradients that servers update by. Call this before the first of them."""
        self._compression = quantised
        self._close_servers()
        self._optimizers += 1
        self._servers_of("float32")

    def at_servers(self, name: str) -> ServerUpdates | None:
        """Return the servers' updates that include the key; None if the servers are not to update it.

        Raises HybridPSError if only the servers could update it, and cannot.
        """
        key = self._keys[name]
        if self._rule is None and not self._algorithm.updates:
            return None
        if key.at_servers is not None and not key.has_rows:
            return key.at_servers
        like = self._like(name)[0]
        is_empty = 0 in like.shape
        dtypes = FLOATS if self._algorithm.updates else SGD.dtypes
        fits = not is_empty and not key.is_sparse and dtype_of(like) in dtypes
        if self._algorithm.updates and not fits and not is_empty:
            raise HybridPSError(
                f"key {name!r} of {dtype_of(like)} cannot be updated at the servers: use dense {' or '.join(dtypes)}"
            )
        return self._servers_of(dtype_of(like)) if fits else None

    def hand_over(self, weights: Mapping[str, Sequence[NDArray]], servers: ServerUpdates) -> None:
        """Let the servers hold these keys. `weights`: arrays like them, one for each device. Waits for all workers."""
        like = weights
        if servers is self._at_servers.get(MIXED):
            like = {name: [mx.nd.empty(array.shape) for array in arrays] for name, arrays in weights.items()}
        servers.add(like, {name: self._stored(name) for name in weights})
        for name in weights:
            self._keys[name].at_servers, self._keys[name].stored = servers, None
        # In the other cases the servers have the states of a training, as well as its weights.
        rejoining = self._algorithm.tier.rejoining
        came_late = rejoining.done or (rejoining.takes_centre and servers.joined.takes_centre)
        if not (came_late or servers.joined is Joining.SNAPSHOT):
            self._put_states(weights)

    def take_back(self, name: str) -> None:
        """Have MXNet's own code update a key from now on, as its gradient is row-sparse and rules update no rows.

        Raises HybridPSError if the servers must update it, or have done so.
        """
        key = self._keys[name]
        key.has_rows = True
        self.at_servers(name)
        if key.at_servers is None:
            return
        if self._group_updates:
            self._take_states([name])
        elif key.index in self.updater.optimizer._index_update_count:
            raise HybridPSError(
                f"key {name!r} has a row-sparse gradient after dense ones, by which servers have updated it, and they "
                "update no rows: let its first gradient be row-sparse, or convert all with tostype('default')"
            )
        key.stored, key.at_servers = self._stored(name).copy(), None

    def update(self, name: str, gradient: NDArray, outs: Sequence[NDArray] = ()) -> NDArray:
        """Update a key's stored value, unless the servers did. Return its array. `outs`: where it is to be copied."""
        known = self._keys[name]
        if known.at_servers is not None:
            return gradient
        return update_(known, self.updater, gradient, outs, self._scale)

    def states(self, dump_optimizer: bool) -> bytes | None:
        """Return the optimizer's states in the form of a file; None if the leader reads them from the servers."""
        if not self._at_servers:
            return states_to_bytes(self.updater, dump_optimizer)
        if not (self._place.is_leader or self._group_updates):
            return None
        own = dict(self.updater.states)
        try:
            self._take_states(self._keys)
            return states_to_bytes(self.updater, dump_optimizer)
        finally:
            self.updater.states = own

    @property
    def are_at_servers(self) -> bool:
        """Whether servers update, the same on all workers."""
        return bool(self._at_servers)

    def set_states(self, states: bytes, name: str) -> None:
        """Continue from `states`, the contents of the file `name`. Servers take the states of the first worker.

        Raises HybridPSError, and changes nothing, if the states do not fit these keys and, at servers, this optimizer.
        """
        updater = self.updater
        kept = {name: getattr(updater, name) for name in ("optimizer", "states", "states_synced")}
        try:
            set_states(updater, states, name)
            self._check_states()
        except HybridPSError:
            vars(updater).update(kept)
            raise
        if self._group_updates:
            self._begin_anew(updater, table_rule(updater.optimizer))
            return
        names = [name for name, key in self._keys.items() if key.at_servers is not None]
        self._put_states(names, adds_up_anew=updater.optimizer is not kept["optimizer"])

    @property
    def _group_updates(self) -> bool:
        """Whether the group's workers update by rules themselves, if any do. All of them can then read the states."""
        return not self._algorithm.tier.has_servers

    def _take_states(self, names: Container[str]) -> None:
        """Give the updater the states of these keys that are at the servers."""
        updater = self.updater
        for kind, servers in self._at_servers.items():
            for name, kept in servers.pull_states().items():
                key = self._keys[name]
                if name in names and key.at_servers is servers:
                    updater.states[key.index] = state_of(updater.optimizer, key.index, kept, kind == MIXED)
                    updater.states_synced[key.index] = True

    def _check_states(self) -> None:
        """Raise HybridPSError if loaded states do not fit these keys, or their optimizer does not fit the servers'
        tables. Every worker checks this, though only the first one gives the servers states.
        """
        for kind, there in ({} if self._group_updates else self._at_servers).items():
            check_optimizer(self.updater.optimizer, there.rule, kind == HALF, self._is_mixed)
        for name, key in self._keys.items():
            servers = self.at_servers(name)
            if servers is not None and key.index in self.updater.states:
                state, like = self.updater.states[key.index], self._like(name)[0]
                is_mixed = servers is self._at_servers.get(MIXED)
                split(self.updater.optimizer, key.index, state, mx.nd.empty(like.shape) if is_mixed else like, is_mixed)

    def begin(self, weights: Mapping[str, Sequence[NDArray]], gradients: Mapping[str, Sequence[NDArray]]) -> None:
        """Begin a step. Let backward write these gradients where servers read them, if that is safe."""
        for servers in self._at_servers.values():
            servers.begin()
            servers.move_in(weights, gradients)

    def settle(self) -> None:
        """End the step under way without the keys that are missing."""
        for servers in self._at_servers.values():
            servers.settle()

    def close(self) -> None:
        """Drop the tables at the servers. May be called from any thread, once."""
        self._close_servers()
        self.updater = None

    def _close_servers(self) -> None:
        for servers in self._at_servers.values():
            servers.close()
        self._at_servers = {}

    def _put_states(self, names: Iterable[str], adds_up_anew: bool = True) -> None:
        """Give the servers the updater's states of these keys, which they hold. Only those of the first worker count.

        `adds_up_anew`: replace also the gradients that the optimizer adds up over several updates.
        """
        optimizer, states = self.updater.optimizer, self.updater.states
        if not states or (self._place.worker != 0 and not self._group_updates):
            return
        found: dict[str, dict[str, list[np.ndarray | None]]] = {}
        for name in names:
            key = self._keys[name]
            kind = next(kind for kind, servers in self._at_servers.items() if servers is key.at_servers)
            index, weights = key.index, self._at_servers[kind].slot(name)
            kept = kept_of(optimizer, index, states.get(index), weights, kind == MIXED, index in states)
            if adds_up(optimizer) and not adds_up_anew:
                kept[-2:] = None, None
            found.setdefault(kind, {})[name] = kept
        for kind, of_kind in found.items():
            self._at_servers[kind].put_states(of_kind)

    def _servers_of(self, dtype: str) -> ServerUpdates | None:
        """Return the servers' updates for keys of a dtype; None if servers do not update them.

        With `multi_precision`, float16 keys are held and updated in float32, as by MXNet's servers. Otherwise they are
        held in float16, and MXNet's own code updates them there.
        """
        kind = "" if dtype != "float16" else MIXED if self._is_mixed else HALF
        rule = self._rule
        if kind == HALF:
            rule = foreign_rule(self.updater.optimizer)
            if rule is None:
                raise HybridPSError(
                    f"servers cannot have {type(self.updater.optimizer).__name__} for keys of float16 as it is set: "
                    "give it multi_precision=True, or settings that are plain numbers"
                )
        if kind not in self._at_servers and rule is not None:
            made = self._make(rule, kind)
            if made is not None:
                self._at_servers[kind] = made
        return self._at_servers.get(kind)

    def _note_wire(self, wire: str) -> None:
        """Say that values between groups and servers are not encoded although the settings ask for it."""
        if self._context.group > 0:
            return  # the first group says it for all
        instead = "" if self._is_asynchronous else ": let the workers update (update_on_kvstore=False)"
        self._context.note(f"HYBRIDPS_WIRE={wire} has no effect here, because the servers send weights{instead}")

    def _make(self, rule: AnyRule, kind: str) -> ServerUpdates | None:
        """Return new updates at the servers by this rule; None if there can be none."""
        cannot = self._context.whole_tables or self._context.settings.racks > 1
        algorithm = None if cannot else self._algorithm.updating(rule)
        if algorithm is None:
            return None
        if self._compression is not None:
            algorithm.compress(self._compression)
        elif algorithm.tier.has_servers and not self._at_servers and self._context.settings.wire != "exact":
            self._note_wire(self._context.settings.wire)
        given = (self._schedule, algorithm, self._context, self._initial, f"updated{self._optimizers}.{kind}")
        pushes = self._context.groups if self._is_asynchronous and self._context.groups > 1 else None
        return ServerUpdates(rule, self.updater, Gradients(*given), self._scale, pushes, self._group_updates)
