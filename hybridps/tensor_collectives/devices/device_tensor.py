"""The vectors of a worker's devices as one object: which device packs which, and how ranks combine them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from hybridps.errors import LayoutError
from hybridps.mpi_groups.device_memory import why_no_device_memory
from hybridps.mpi_groups.group import Group
from hybridps.tensor_collectives.devices.device import Device, HostDevice, Vectors, Wait
from hybridps.tensor_collectives.devices.transport import Collectives, Direct, Staged, Transport
from hybridps.tensor_collectives.levels import Levels

TRANSPORTS = ("nccl", "direct", "staged")
"""In the order of preference: NCCL; the group's own collectives on the device's memory (CUDA-aware MPI); through the
processor's memory."""


@dataclass(frozen=True)
class Lane:
    """A device, and the vectors that it packs into one buffer: its own, and those of devices that it reaches."""

    device: Device
    vectors: Vectors
    first: Vectors
    """Vector 0 of them alone."""


class _Facts(msgspec.Struct, forbid_unknown_fields=True):
    """What a rank tells the others of its tensor."""

    form: str
    """Must be equal on all ranks."""
    gpu: str
    missing: dict[str, str]
    """For each transport why it cannot be used; empty if it can."""


class DeviceTensor:
    """The vectors of a worker's devices, for the operations of this package: arrays of CuPy, or of NumPy.

    A vector is one array or a sequence of arrays (of any shape, contiguous) that count as one; see `Vectors.of`. They
    are used in place. Combined are their sums in `exact`, which needs a buffer of the tensor's length in the
    processor's memory, or in the device's.

    `transport`: one of `TRANSPORTS`, or 'auto', the first that all ranks can use; `note` says why it is no earlier one.
    All ranks of `levels.group` make the tensor, and need equal numbers of devices and vectors. What a rank gives its
    arrays before, on CuPy's current streams, is seen; each operation has ended when it returns.
    """

    def __init__(self, vectors: Sequence[Any], levels: Levels, transport: str = "auto") -> None:
        """Raises LayoutError if the vectors do not fit together; on all ranks, if those of the ranks do not, or some
        rank cannot use `transport`.
        """
        everything = Vectors.of(vectors)
        self.group = levels.group
        self.length = everything.length
        self.dtype = everything.dtype
        self.count = len(vectors)
        self.lanes = _lanes(everything)
        self._held = ExitStack()
        for lane in self.lanes:
            self._held.callback(lane.device.close)
        form = f"{self.count} vectors of {self.length} {self.dtype}, {len(self.lanes)} buffers, transport {transport!r}"
        name, self.note = _choose(transport, form, self.lanes, self.group)
        self.transport: Transport
        if name == "staged":
            self.transport = Staged(levels, self.length, everything.exact, [lane.device for lane in self.lanes])
            self.note = "; ".join(filter(None, (self.note, self.transport.note)))
        else:
            group = self._nccl_group(levels.deadline_seconds) if name == "nccl" else self.group
            device = self.lanes[0].device
            self.transport = Direct(name, group, self.length, lambda length: device.empty(length, everything.exact))

    def check_group(self, group: Group) -> None:
        """Raises LayoutError unless the tensor was made for `group`."""
        if group is not self.group:
            raise LayoutError("this tensor was made for another group: give the group of its Levels")

    def pieces(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Elements `start:stop` in the pieces of the transport."""
        step = max(1, self.transport.piece_bytes // self.lanes[0].vectors.exact.itemsize)
        return [(begin, min(begin + step, stop)) for begin in range(start, stop, step)]

    def fetch(self, op: str, start: int, stop: int) -> Wait:
        """Start: the buffers become `op` over the vectors."""
        return _all(
            lane.device.pack(lane.vectors, op, start, stop, buffer[start:stop])
            for lane, buffer in zip(self.lanes, self.transport.buffers, strict=True)
        )

    def fetch_first(self, start: int, stop: int) -> Wait:
        """Start: the first buffer becomes vector 0."""
        lane = self.lanes[0]
        return lane.device.pack(lane.first, "sum", start, stop, self.transport.buffers[0][start:stop])

    def store(self, divisor: int, start: int, stop: int) -> Wait:
        """Start: all vectors become what is in the buffers, over `divisor`."""
        return _all(
            lane.device.unpack(buffer[start:stop], divisor, lane.vectors, start, stop)
            for lane, buffer in zip(self.lanes, self.transport.buffers, strict=True)
        )

    def close(self) -> None:
        """Release what the devices and NCCL hold; the vectors stay as they are."""
        self._held.close()

    def _nccl_group(self, deadline_seconds: float) -> Collectives:
        from hybridps.tensor_collectives.devices.nccl import NcclGroup

        group = NcclGroup(self.group, self.lanes[0].vectors.arrays[0][0].device.id, deadline_seconds)
        self._held.callback(group.free)
        return group


def _lanes(everything: Vectors) -> tuple[Lane, ...]:
    """Each vector goes to the first device that reaches it; where none does, its own device is one more."""
    found: list[tuple[Device, list[tuple[Any, ...]]]] = []
    for number, arrays in enumerate(everything.arrays):
        members = next((theirs for device, theirs in found if all(map(device.reaches, arrays))), None)
        if members is None:
            device, members = _device_of(arrays[0]), []
            if not all(map(device.reaches, arrays)):
                raise LayoutError(f"vector {number} has arrays on devices that do not reach each other's memory")
            found.append((device, members))
        members.append(arrays)
    return tuple(
        Lane(device, Vectors(tuple(members), everything.starts), Vectors(tuple(members[:1]), everything.starts))
        for device, members in found
    )


def _device_of(array: Any) -> Device:
    if isinstance(array, np.ndarray):
        return HostDevice()
    # Only now: CuPy takes seconds to start, and is not installed everywhere.
    from hybridps.tensor_collectives.devices.cuda import CudaDevice

    return CudaDevice(array.device.id)


def _choose(wanted: str, form: str, lanes: Sequence[Lane], group: Group) -> tuple[str, str]:
    """The transport, equal on all ranks, and why it is none that comes earlier in TRANSPORTS."""
    if wanted not in ("auto", *TRANSPORTS):
        raise LayoutError(f"transport {wanted!r} is unknown: use one of auto, {', '.join(TRANSPORTS)}")
    own = _Facts(form, lanes[0].device.gpu, _missing(lanes, group))
    everyone = [msgspec.json.decode(data, type=_Facts) for data in group.allgather_bytes(msgspec.json.encode(own))]
    for rank, facts in enumerate(everyone):
        if facts.form != everyone[0].form:
            raise LayoutError(f"rank {rank} has {facts.form}, rank 0 {everyone[0].form}: they must be alike")
    missing = {
        name: next(
            (f"rank {rank}: {facts.missing[name]}" for rank, facts in enumerate(everyone) if facts.missing[name]), ""
        )
        for name in TRANSPORTS
    }
    gpus = [facts.gpu for facts in everyone]
    if not missing["nccl"] and len(set(gpus)) < len(gpus):
        missing["nccl"] = "several ranks use one GPU"
    if wanted != "auto":
        if missing[wanted]:
            raise LayoutError(f"transport {wanted!r} cannot be used: {missing[wanted]}; use 'auto'")
        return wanted, ""
    if not any(gpus):
        return "staged", ""  # the processor's memory is all there is, and Levels are made for it
    chosen = next(name for name in TRANSPORTS if not missing[name])
    return chosen, "; ".join(f"no {name}: {missing[name]}" for name in TRANSPORTS[: TRANSPORTS.index(chosen)])


def _missing(lanes: Sequence[Lane], group: Group) -> dict[str, str]:
    """For each transport why this rank cannot use it."""
    if len(lanes) > 1:
        several = f"{len(lanes)} devices that do not reach each other's memory"
        return {"nccl": several, "direct": several, "staged": ""}
    if not lanes[0].device.gpu:
        return {"nccl": "the vectors are not on a GPU", "direct": "", "staged": ""}
    from hybridps.tensor_collectives.devices import nccl

    return {"nccl": nccl.missing(), "direct": why_no_device_memory(group), "staged": ""}


def _all(waits: Iterable[Wait]) -> Wait:
    started = list(waits)

    def wait() -> None:
        for each in started:
            each()

    return wait
