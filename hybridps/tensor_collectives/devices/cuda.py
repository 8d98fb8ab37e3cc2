"""A GPU as a device. Only this file and `nccl.py` import CuPy; both are loaded when a vector is a CuPy array."""

from __future__ import annotations

import socket
import weakref
from collections.abc import Sequence
from functools import cache
from itertools import cycle
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from hybridps.tensor_collectives.devices.cuda_kernels import OPTIONS, SOURCE, kernel_names
from hybridps.tensor_collectives.devices.device import PIECE_BYTES, Vectors, Wait

THREADS = 256
BYTES_PER_BLOCK = 16 << 10
"""Bytes of each vector that a block of threads works on: each thread reads 64 bytes of every vector."""

_PORTABLE = 1  # cudaHostRegisterPortable: page-locked for all GPUs
_ALREADY_ENABLED = 704  # cudaErrorPeerAccessAlreadyEnabled


@cache
def _module(dtype: str) -> cupy.RawModule:
    names = tuple(kernel_names(dtype).values())
    return cupy.RawModule(code=SOURCE.read_text(), options=OPTIONS, name_expressions=names)


class _Slot:
    """A stream, and a buffer through which its pieces pass one at a time."""

    def __init__(self) -> None:
        self.stream = cupy.cuda.Stream(non_blocking=True)
        with self.stream:
            self.buffer = cupy.empty(PIECE_BYTES, np.uint8)


class _Table:
    """The addresses of vectors, in the form that the kernels take."""

    def __init__(self, vectors: Vectors) -> None:
        segments = zip(*vectors.arrays, strict=True)
        addresses = [[array.data.ptr for array in arrays] for arrays in segments]
        self.arrays = cupy.asarray(np.array(addresses, np.uint64))
        self.starts = cupy.asarray(np.array(vectors.starts, np.int64))
        self.counts = (np.int32(len(vectors.starts) - 1), np.int32(len(vectors.arrays)))
        self.gpus = {array.device.id for vector in vectors.arrays for array in vector}
        # A copy of small host memory can end after its call, and any stream may use the table.
        cupy.cuda.get_current_stream().synchronize()


class CudaDevice:
    """GPU `number` as a device, with the memory of the GPUs that it can access. `HostDevice` documents the methods.

    Two pieces are in transfer in each direction. Work starts after everything that the caller has queued on CuPy's
    current streams.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.gpu = f"{socket.gethostname()} {cupy.cuda.Device(number).pci_bus_id}"
        self._gpus = {number}
        self._pinned: list[weakref.finalize] = []
        self._tables: weakref.WeakKeyDictionary[Vectors, _Table] = weakref.WeakKeyDictionary()
        with cupy.cuda.Device(number):
            self._outward = cycle([_Slot(), _Slot()])
            self._inward = cycle([_Slot(), _Slot()])

    def reaches(self, array: Any) -> bool:
        return isinstance(array, cupy.ndarray) and (array.device.id in self._gpus or self._enable(array.device.id))

    def empty(self, length: int, dtype: np.dtype) -> cupy.ndarray:
        with cupy.cuda.Device(self.number):
            return cupy.empty(length, dtype)

    def pin(self, buffers: Sequence[np.ndarray]) -> str:
        begin = buffers[0].ctypes.data
        nbytes = buffers[-1].ctypes.data + buffers[-1].nbytes - begin
        if nbytes == 0:
            return ""
        try:
            with cupy.cuda.Device(self.number):
                runtime.hostRegister(begin, nbytes, _PORTABLE)
        except runtime.CUDARuntimeError as error:
            return f"{nbytes} bytes of host memory cannot be page-locked, copies are slower: {error}"
        # The finalizer keeps the memory alive until it is released.
        self._pinned.append(weakref.finalize(self, _unpin, begin, tuple(buffers)))
        return ""

    def pack(self, vectors: Vectors, op: str, start: int, stop: int, packed: Any) -> Wait:
        slot = next(self._outward)
        table = self._enter(vectors, slot)
        with cupy.cuda.Device(self.number), slot.stream:
            on_host = isinstance(packed, np.ndarray)
            target = slot.buffer[: packed.nbytes].view(packed.dtype) if on_host else packed
            _launch(vectors, op, table, start, stop, target)
            if on_host:
                to_host = runtime.memcpyDeviceToHost
                runtime.memcpyAsync(packed.ctypes.data, target.data.ptr, packed.nbytes, to_host, slot.stream.ptr)
            return _done(slot)

    def unpack(self, packed: Any, divisor: int, vectors: Vectors, start: int, stop: int) -> Wait:
        slot = next(self._inward)
        table = self._enter(vectors, slot)
        with cupy.cuda.Device(self.number), slot.stream:
            source = packed
            if isinstance(packed, np.ndarray):
                source = slot.buffer[: packed.nbytes].view(packed.dtype)
                to_device = runtime.memcpyHostToDevice
                runtime.memcpyAsync(source.data.ptr, packed.ctypes.data, packed.nbytes, to_device, slot.stream.ptr)
            _launch(vectors, "unpack", table, start, stop, source, vectors.exact.type(divisor))
            return _done(slot)

    def close(self) -> None:
        for release in self._pinned:
            release()
        self._pinned.clear()

    def _enter(self, vectors: Vectors, slot: _Slot) -> _Table:
        """Return the table of the vectors, and make the slot's stream wait for the caller's streams."""
        table = self._tables.get(vectors)
        if table is None:
            with cupy.cuda.Device(self.number):
                table = self._tables[vectors] = _Table(vectors)
        for gpu in table.gpus:
            with cupy.cuda.Device(gpu):
                slot.stream.wait_event(cupy.cuda.get_current_stream().record(cupy.cuda.Event(disable_timing=True)))
        return table

    def _enable(self, other: int) -> bool:
        """Enable access to the memory of GPU `other`. Returns whether that is possible."""
        if not runtime.deviceCanAccessPeer(self.number, other):
            return False
        try:
            with cupy.cuda.Device(self.number):
                runtime.deviceEnablePeerAccess(other)
        except runtime.CUDARuntimeError as error:
            if error.status != _ALREADY_ENABLED:
                return False
        self._gpus.add(other)
        return True


def _launch(vectors: Vectors, name: str, table: _Table, start: int, stop: int, *rest: Any) -> None:
    """Run a kernel on the current stream. A block works on BYTES_PER_BLOCK of each vector."""
    share = BYTES_PER_BLOCK // vectors.dtype.itemsize
    kernel = _module(vectors.dtype.name).get_function(kernel_names(vectors.dtype.name)[name])
    limits = (np.int64(start), np.int64(stop), np.int64(share))
    kernel((-(-(stop - start) // share),), (THREADS,), (table.arrays, table.starts, *table.counts, *limits, *rest))


def _done(slot: _Slot) -> Wait:
    """Return a function that waits, without using the core, for the work queued on the slot so far."""
    return slot.stream.record(cupy.cuda.Event(block=True, disable_timing=True)).synchronize


def _unpin(address: int, buffers: tuple[np.ndarray, ...]) -> None:
    runtime.hostUnregister(address)
