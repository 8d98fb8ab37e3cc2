"""The vectors of a worker's devices as one object: which device packs which vectors, and how ranks combine them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from hybridps.errors import LayoutError
from hybridps.mpi_groups.group import Group, allgather
from hybridps.tensor_collectives.devices.device import PIECE_BYTES, HostDevice, Vectors, Wait
from hybridps.tensor_collectives.levels import Levels
from hybridps.tensor_collectives.tensor import Tensor

if TYPE_CHECKING:
    from hybridps.tensor_collectives.devices.cuda import CudaDevice

    Device = HostDevice | CudaDevice

DIRECT_PIECE_BYTES = 32 << 20
"""The size of the pieces that are not staged. Only packing could overlap with a transfer, and long messages are
faster."""

TRANSPORTS = ("nccl", "direct", "staged")
"""In order of preference: NCCL; the group's collectives on device memory (CUDA-aware MPI); staging in host memory."""


class Packer(NamedTuple):
    """A device and the vectors that it packs into one buffer: its own, and those in memory that it can access."""

    device: Device
    vectors: Vectors


class _Facts(msgspec.Struct, forbid_unknown_fields=True):
    """What a rank tells the others about its tensor."""

    form: str
    """A description that must be equal on all ranks."""
    gpu: str
    missing: dict[str, str]
    """For each transport, why it cannot be used; empty if it can."""


class DeviceTensor:
    """The vectors of a worker's devices, for the operations of this package: arrays of CuPy or NumPy.

    A vector is one array, or a sequence of arrays (contiguous, of any shape) that count as one; see `Vectors.of`. The
    arrays are used in place. Their sums are combined in the dtype `exact`, in a buffer of the tensor's length in host
    or device memory.

    `transport`: one of `TRANSPORTS`, or 'auto' for the first one that all ranks can use; `note` says why earlier ones
    cannot be used. All ranks of `levels.group` make the tensor, with equal numbers of devices and vectors. Operations
    see the work that was queued before on CuPy's current streams, and are complete when they return.
    """

    def __init__(self, vectors: Sequence[Any], levels: Levels, transport: str = "auto") -> None:
        """Raises LayoutError if the vectors do not match each other. Raises it on all ranks if the tensors of the ranks
        differ, or if a rank cannot use `transport`.
        """
        everything = Vectors.of(vectors)
        self.group = levels.group
        self.length = everything.length
        self.dtype = everything.dtype
        self.count = len(vectors)
        self.packers = _packers(everything)
        self._first = Vectors(everything.arrays[:1], everything.starts)
        self._held = ExitStack()
        for packer in self.packers:
            self._held.callback(packer.device.close)
        form = (
            f"{self.count} vectors of {self.length} {self.dtype}, {len(self.packers)} buffers, transport {transport!r}"
        )
        self.transport, self.note = _choose(transport, form, self.packers, self.group)
        self.packed_group: Any = self.group
        """The group whose `allreduce_` and `broadcast_` accept the packed buffers."""
        if self.transport == "staged":
            self.packed = levels.tensor(self.length, everything.exact.name, len(self.packers))
            """The packed buffers, one for each packer."""
            self.note = "; ".join(filter(None, (self.note, self._pin())))
        else:
            self.packed = Tensor([self.packers[0].device.empty(self.length, everything.exact)])
            if self.transport == "nccl":
                from hybridps.tensor_collectives.devices.nccl import NcclGroup

                number = everything.arrays[0][0].device.id
                self.packed_group = NcclGroup(self.group, number, levels.deadline_seconds)
                self._held.callback(self.packed_group.free)

    def pieces(self, group: Group, start: int, stop: int | None) -> list[tuple[int, int]]:
        """Return the spans of the pieces in elements `start:stop`.

        Raises LayoutError if the elements exceed the vectors, or if the tensor was not made for `group`.
        """
        if group is not self.group:
            raise LayoutError("this tensor was made for another group: give the group of its Levels")
        start, stop = self.packed.span(start, stop)
        nbytes = PIECE_BYTES if self.transport == "staged" else DIRECT_PIECE_BYTES
        step = nbytes // self.packed.dtype.itemsize
        return [(begin, min(begin + step, stop)) for begin in range(start, stop, step)]

    def fetch(self, op: str, start: int, stop: int) -> list[Wait]:
        """Begin to set the buffers to `op` over the vectors."""
        return [
            device.pack(vectors, op, start, stop, buffer[start:stop])
            for (device, vectors), buffer in zip(self.packers, self.packed.vectors, strict=True)
        ]

    def fetch_first(self, start: int, stop: int) -> list[Wait]:
        """Begin to set the first buffer to vector 0."""
        return [self.packers[0].device.pack(self._first, "sum", start, stop, self.packed.vectors[0][start:stop])]

    def store(self, divisor: int, start: int, stop: int) -> list[Wait]:
        """Begin to set all vectors to the buffers divided by `divisor`."""
        return [
            device.unpack(buffer[start:stop], divisor, vectors, start, stop)
            for (device, vectors), buffer in zip(self.packers, self.packed.vectors, strict=True)
        ]

    def close(self) -> None:
        """Release the resources of the devices and of NCCL. The vectors are not changed."""
        self._held.close()

    def _pin(self) -> str:
        """Page-lock the packed buffers. Returns why that failed, or an empty text."""
        devices = [packer.device for packer in self.packers]
        pinner = next((device for device in devices if device.gpu), devices[0])
        buffers = self.packed.vectors
        mappings = [buffers] if self.packed.rows is not None else [(buffer,) for buffer in buffers]
        notes = [pinner.pin(mapping) for mapping in mappings]
        return next(filter(None, notes), "")


def _packers(everything: Vectors) -> tuple[Packer, ...]:
    """Assign each vector to the first device that can access it, or else to the vector's own device."""
    found: list[tuple[Device, list[tuple[Any, ...]]]] = []
    for number, arrays in enumerate(everything.arrays):
        members = next((theirs for device, theirs in found if all(map(device.reaches, arrays))), None)
        if members is None:
            device, members = _device_of(arrays[0]), []
            if not all(map(device.reaches, arrays)):
                raise LayoutError(f"vector {number} has arrays on devices that do not reach each other's memory")
            found.append((device, members))
        members.append(arrays)
    return tuple(Packer(device, Vectors(tuple(members), everything.starts)) for device, members in found)


def _device_of(array: Any) -> Device:
    if isinstance(array, np.ndarray):
        return HostDevice()
    # This import is here because CuPy takes seconds to start and is not installed everywhere.
    from hybridps.tensor_collectives.devices.cuda import CudaDevice

    return CudaDevice(array.device.id)


def _choose(wanted: str, form: str, packers: Sequence[Packer], group: Group) -> tuple[str, str]:
    """Return the transport, equal on all ranks, and why it is not an earlier one of TRANSPORTS."""
    if wanted not in ("auto", *TRANSPORTS):
        raise LayoutError(f"transport {wanted!r} is unknown: use one of auto, {', '.join(TRANSPORTS)}")
    own = _Facts(form, packers[0].device.gpu, _missing(packers, group))
    everyone: list[_Facts] = allgather(group, own, _Facts)
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
        return "staged", ""  # all vectors are in host memory, for which Levels are made
    chosen = next(name for name in TRANSPORTS if not missing[name])
    return chosen, "; ".join(f"no {name}: {missing[name]}" for name in TRANSPORTS[: TRANSPORTS.index(chosen)])


def _missing(packers: Sequence[Packer], group: Group) -> dict[str, str]:
    """Return, for each transport, why this rank cannot use it; empty if it can."""
    if len(packers) > 1:
        several = f"{len(packers)} devices that do not reach each other's memory"
        return {"nccl": several, "direct": several, "staged": ""}
    if not packers[0].device.gpu:
        return {"nccl": "the vectors are not on a GPU", "direct": "", "staged": ""}
    from hybridps.tensor_collectives.devices import nccl

    direct = f"{type(group).__name__} is not an MPI group"
    if hasattr(group, "communicator"):
        from hybridps.mpi_groups.mpi import why_no_device_memory

        direct = why_no_device_memory()
    return {"nccl": nccl.missing(), "direct": direct, "staged": ""}
