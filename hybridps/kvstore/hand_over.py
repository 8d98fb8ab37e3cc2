"""The epochs of a training whose groups come back, and what they are given: weights, and the optimizers of Trainers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import gluon

from hybridps.algorithms import Algorithm
from hybridps.errors import ConfigError, HybridPSError
from hybridps.job import Job
from hybridps.kvstore import process
from hybridps.kvstore.calls import as_mxnet_does
from hybridps.kvstore.updates.states_file import set_states, states_to_bytes
from hybridps.packing import pack_arrays, read_arrays
from hybridps.quantities import counted
from hybridps.resuming import resume
from hybridps.step import Schedule

WHERE = "what another group hands over"
PROGRESS = "progress"
"""The epoch that begins, and the steps done."""


Holder = Any
"""What has parameters to be handed over: a `gluon.Trainer` or a `gluon.Block`."""


def epochs(
    job: Job, algorithm: Algorithm, schedule: Schedule, numbers: range, holders: Sequence[Holder]
) -> Iterator[int]:
    """Yield the numbers of the epochs to train. `HybridKVStore.epochs` documents it."""
    if not algorithm.meets_others:
        reached = min(int(resume().epoch), numbers.stop - 1)  # the others may have trained to the end
        yield from numbers[max(0, reached - numbers.start) :]
        return
    epoch = numbers.start
    while epoch < numbers.stop:
        epoch = _meet(job, algorithm, schedule, epoch, holders)
        yield epoch
        epoch += 1


@as_mxnet_does
def _meet(job: Job, algorithm: Algorithm, schedule: Schedule, epoch: int, holders: Sequence[Holder]) -> int:
    """Meet the other groups before an epoch. Return its number, which a group that was restarted learns here."""

    def take(content: bytes) -> None:
        nonlocal epoch
        epoch, job.steps = unpack(content, holders)

    if not holders:
        raise ConfigError(
            "groups that train in step hand over what their Trainers have: give them, as in kv.epochs(90, trainer)"
        )
    if algorithm.tier.rejoining.waits:
        job.session.note("this group waits until the others begin an epoch")
    process.hold().finish()
    try:
        meeting = algorithm.meet(lambda: pack(holders, epoch, job.steps), take, schedule.call)
    except SystemExit:
        job.session.note("the other groups have finished their training, so this one ends")
        raise
    if meeting.joins:
        job.session.note(f"this group trains from epoch {epoch} on, with the weights of group {meeting.giver}")
    elif meeting.newcomers:
        newcomers = counted(meeting.newcomers, "group")
        job.session.note(f"{newcomers} that had died trains again from epoch {epoch} on")
    return epoch


def pack(holders: Sequence[Holder], epoch: int, steps: int) -> bytes:
    """Return the weights of Trainers and blocks, and the Trainers' optimizers, as bytes.

    The epoch that begins and the steps done are with them. The optimizer's states that are at the servers are left out.
    """
    arrays = {PROGRESS: np.array([epoch, steps])}
    for number, holder in enumerate(holders):
        for place, parameter in enumerate(_parameters(holder)):
            if parameter._data is not None:
                arrays[f"{number} weights {place}"] = parameter._reduce().asnumpy()
        if not isinstance(holder, gluon.Trainer):
            continue
        states = states_to_bytes(_updaters(holder)[0], dump_optimizer=True)
        arrays[f"{number} optimizer"] = np.frombuffer(states, np.uint8)
        scaler = getattr(holder, "_amp_loss_scaler", None)
        if scaler is not None:
            arrays[f"{number} scaler"] = np.array([scaler._loss_scale, scaler._next_loss_scale, scaler._unskipped])
    return pack_arrays(arrays)


def unpack(content: bytes, holders: Sequence[Holder]) -> tuple[int, int]:
    """Give Trainers and blocks what was packed. Return the epoch that begins, and the steps done.

    Raises HybridPSError if they do not have the parameters of those that were packed.
    """
    arrays = read_arrays(content)
    for number, holder in enumerate(holders):
        parameters = _parameters(holder)
        came = {int(name.split()[2]): name for name in arrays if name.startswith(f"{number} weights ")}
        weights = [arrays[came[place]] if place in came else None for place in range(len(parameters))]
        is_trainer = isinstance(holder, gluon.Trainer)
        if any(place >= len(parameters) for place in came) or is_trainer != (f"{number} optimizer" in arrays):
            raise HybridPSError(
                f"{WHERE} has {len(came)} weights in place {number}, and here are {len(parameters)}: give `epochs` the "
                "same Trainers and blocks, of the same network, in all groups"
            )
        for parameter, array in zip(parameters, weights, strict=True):
            _check(parameter, array)
        for parameter, array in zip(parameters, weights, strict=True):
            if array is not None:
                _set_weight(parameter, _like(parameter, array))
        if is_trainer:
            _set_optimizer(holder, arrays[f"{number} optimizer"].tobytes())
        scaler, scale = getattr(holder, "_amp_loss_scaler", None), arrays.get(f"{number} scaler")
        if scaler is not None and scale is not None:
            scaler._loss_scale, scaler._next_loss_scale, scaler._unskipped = *map(float, scale[:2]), int(scale[2])
    epoch, steps = arrays[PROGRESS]
    return int(epoch), int(steps)


def _parameters(holder: Holder) -> Sequence[gluon.Parameter]:
    """Return the parameters of a Trainer or block, in an order that is the same in all groups."""
    return holder._params if isinstance(holder, gluon.Trainer) else [*holder.collect_params().values()]


def _check(parameter: gluon.Parameter, array: np.ndarray | None) -> None:
    """Raise HybridPSError unless the values fit the parameter. Dimensions that are not known yet are 0 or -1."""
    known = parameter.shape or ()
    shape = known if array is None else array.shape
    if known and (len(known) != len(shape) or any(n not in (0, -1, m) for n, m in zip(known, shape, strict=True))):
        raise HybridPSError(
            f"{WHERE} has {parameter.name!r} of shape {shape}, not {known}: build the same network in all groups"
        )


def _updaters(trainer: gluon.Trainer) -> list[Any]:
    """Return the updaters that a Trainer's optimizer runs in: the store's, or one for each device."""
    return [trainer._kvstore._updater] if trainer._update_on_kvstore else trainer._updaters


def _like(parameter: gluon.Parameter, array: np.ndarray) -> mx.nd.NDArray:
    values = mx.nd.array(array, dtype=array.dtype)
    if mx.util.is_np_array():
        return values.as_np_ndarray()
    return values if parameter._stype == "default" else values.tostype(parameter._stype)


def _set_weight(parameter: gluon.Parameter, values: mx.nd.NDArray) -> None:
    """Set a parameter and, if its Trainer's store has it already, the stored value."""
    trainer = parameter._trainer
    store: Any = None if trainer is None or parameter in trainer._params_to_init else trainer._kvstore
    if not hasattr(store, "set_stored"):
        parameter.set_data(values)
        parameter._finish_deferred_init()  # its shape is known now, also before a first forward pass
        return
    # `set_data` would make the Trainer create its store anew, which MXNet refuses if the store is distributed.
    store.set_stored(trainer._param2idx[parameter.name], values)
    for array in parameter._data:
        array[:] = values


def _set_optimizer(trainer: gluon.Trainer, content: bytes) -> None:
    """Continue with an optimizer and its states. The Trainer keeps its optimizer object, which the script may hold."""
    came = _updater_of(content, trainer)
    optimizer = trainer._optimizer
    vars(optimizer).update({name: each for name, each in vars(came.optimizer).items() if name != "param_dict"})
    # An optimizer counts updates for each device. Those of the group that gives may have other numbers.
    counts = optimizer._all_index_update_counts[0]
    own = {0, *(context.device_id for context in trainer._contexts)}
    optimizer._all_index_update_counts = {device: dict(counts) for device in own}
    optimizer._set_current_context(0)
    if came.states and trainer._update_on_kvstore is not False and not trainer._kv_initialized:
        trainer._init_kvstore()
        trainer._init_params()
    for updater in _updaters(trainer):
        states = _updater_of(content, trainer).states  # each device has its own
        updater.states, updater.states_synced = states, dict.fromkeys(states, False)


def _updater_of(content: bytes, trainer: gluon.Trainer) -> mx.optimizer.Updater:
    """Return an updater with an optimizer and its states."""
    updater = mx.optimizer.Updater(trainer._optimizer)
    set_states(updater, content, WHERE)
    return updater
