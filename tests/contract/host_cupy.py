"""As much of CuPy as `devices/cuda.py` uses, without a GPU: a stream is a thread, memory is NumPy's.

It has the order that CUDA has, and no more: what is given to a stream runs later, beside the caller and other streams,
and only events and `synchronize` make one wait for another. Kernels are those of `pack.cu`, compiled for the processor.
"""

from __future__ import annotations

import ctypes
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from hybridps.tensor_collectives.devices.cuda_kernels import TYPES, kernel_names

LAG_SECONDS = 2e-4
"""Between a launch and its work, so that whoever does not wait sees old values."""


class CUDARuntimeError(RuntimeError):
    status = 0


class Array:
    """An array in the memory of the GPU: only `set`, `get` and kernels reach its values."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory = memory
        self.dtype, self.shape, self.strides = memory.dtype, memory.shape, memory.strides
        self.size, self.nbytes, self.flags = memory.size, memory.nbytes, memory.flags
        self.data = SimpleNamespace(ptr=memory.ctypes.data)
        self.device = Device(0)

    def reshape(self, *shape: int) -> Array:
        return Array(self.memory.reshape(*shape))

    def view(self, dtype: np.dtype) -> Array:
        return Array(self.memory.view(dtype))

    def __getitem__(self, index: Any) -> Array:
        return Array(self.memory[index])

    def set(self, values: np.ndarray) -> None:
        current_stream().run(np.copyto, self.memory, values.copy())

    def get(self) -> np.ndarray:
        return np.array(current_stream().run(self.memory.copy).result(20))


class Device:
    pci_bus_id = "0000:00:00.0"

    def __init__(self, number: int) -> None:
        self.id = number

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class Event:
    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self.reached: Future[None] = Future()

    def synchronize(self) -> None:
        self.reached.result(20)


class Stream:
    ptr = 0  # the current stream, in `memcpyAsync`

    def __init__(self, non_blocking: bool = False) -> None:
        self.thread = ThreadPoolExecutor(1)

    def run(self, work: Any, *arguments: Any) -> Future[Any]:
        return self.thread.submit(lambda: (time.sleep(LAG_SECONDS), work(*arguments))[1])

    def record(self, event: Event) -> Event:
        event.reached = self.thread.submit(lambda: None)
        return event

    def wait_event(self, event: Event) -> None:
        self.thread.submit(event.synchronize)

    def synchronize(self) -> None:
        self.record(Event()).synchronize()

    def __enter__(self) -> Stream:
        streams().append(self)
        return self

    def __exit__(self, *error: object) -> None:
        assert streams().pop() is self


_of_thread = threading.local()


def streams() -> list[Stream]:
    """Those that this thread has entered; the first is its default."""
    if not hasattr(_of_thread, "streams"):
        _of_thread.streams = [Stream()]
    return _of_thread.streams


def current_stream() -> Stream:
    return streams()[-1]


class RawModule:
    library: ctypes.CDLL

    def __init__(self, code: str, options: tuple[str, ...], name_expressions: tuple[str, ...]) -> None:
        self.names = name_expressions

    def get_function(self, name: str) -> Any:
        assert name in self.names
        dtype, op = next((d, op) for d in TYPES for op, known in kernel_names(d).items() if known == name)
        kernel = getattr(self.library, f"{dtype}_{op}")

        def launch(grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
            arrays, starts, segments, vectors, start, stop, share, packed, *divisor = arguments
            assert (segments.dtype, vectors.dtype, start.dtype, stop.dtype, share.dtype) == (
                "i4",
                "i4",
                "i8",
                "i8",
                "i8",
            )
            assert (grid[0] - 1) * share < stop - start <= grid[0] * share
            assert all(each.dtype == packed.dtype for each in divisor)
            pointers = [ctypes.c_void_p(array.data.ptr) for array in (arrays, starts, packed)]
            sizes = [ctypes.c_int(segments), ctypes.c_int(vectors)]
            limits = [ctypes.c_longlong(each) for each in (start, stop, share)]
            last = np.ctypeslib.as_ctypes_type(packed.dtype)((divisor or [1])[0])
            current_stream().run(kernel, *pointers[:2], *sizes, *limits, pointers[2], ctypes.c_int(block[0]), last)

        return launch


class Runtime(ModuleType):
    """Page-locked memory is counted: what is locked twice, or left locked, is found."""

    CUDARuntimeError = CUDARuntimeError
    memcpyHostToDevice, memcpyDeviceToHost = 1, 2  # noqa: N815

    def __init__(self) -> None:
        super().__init__("cupy.cuda.runtime")
        self.locked: dict[int, int] = {}

    def hostRegister(self, address: int, nbytes: int, flags: int) -> None:  # noqa: N802
        overlap = any(begin < address + nbytes and address < begin + size for begin, size in self.locked.items())
        if overlap or flags != 1:
            raise CUDARuntimeError("already mapped")
        self.locked[address] = nbytes

    def hostUnregister(self, address: int) -> None:  # noqa: N802
        del self.locked[address]

    def memcpyAsync(self, target: int, source: int, nbytes: int, kind: int, stream: int) -> None:  # noqa: N802
        host = source if kind == self.memcpyHostToDevice else target
        assert any(begin <= host and host + nbytes <= begin + size for begin, size in self.locked.items())
        current_stream().run(ctypes.memmove, target, source, nbytes)


def modules(library: ctypes.CDLL) -> dict[str, ModuleType]:
    """What `import cupy` finds, by name."""
    RawModule.library = library
    cupy, cuda, nccl = ModuleType("cupy"), ModuleType("cupy.cuda"), ModuleType("cupy.cuda.nccl")
    runtime = Runtime()
    vars(nccl).update(available=False)
    vars(cuda).update(
        runtime=runtime, nccl=nccl, Device=Device, Event=Event, Stream=Stream, get_current_stream=current_stream
    )
    vars(cupy).update(
        cuda=cuda,
        ndarray=Array,
        RawModule=RawModule,
        asarray=lambda values: Array(np.array(values)),
        asnumpy=Array.get,
        empty=lambda length, dtype: Array(np.empty(length, dtype)),
    )
    return {"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.runtime": runtime, "cupy.cuda.nccl": nccl}
