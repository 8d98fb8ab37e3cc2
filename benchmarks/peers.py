"""The allreduce of other libraries, if installed: PyTorch over gloo, Horovod for MXNet over MPI, Intel MPI."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from benchmarks.cases import Case
from benchmarks.contender import Contender
from benchmarks.intel_mpi import load_intel_mpi
from benchmarks.task import Task

Build = Callable[[Case], list[Contender]]
"""Returns the contenders of a peer in a case."""

FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20
"""The defaults of DistributedDataParallel."""

# Both settings name the threshold: Horovod keeps an earlier one when it starts again in the same process. It crashes if
# the cycle time is also given.
HOROVOD_SETTINGS = {
    "horovod": {"HOROVOD_FUSION_THRESHOLD": str(128 << 20)},
    "horovod_tuned": {"HOROVOD_FUSION_THRESHOLD": str(4 << 20)},
}
"""The default of Horovod 0.28, and fusion into buffers of 4 MB, the fastest size found."""


def load_peers(task: Task, world: MPI.Comm) -> tuple[dict[str, Build], dict[str, str]]:
    """Return the peers of the task that all ranks can import, and the reasons why the others are absent."""
    builds, absent = {}, {}
    for name in sorted(task.peers):  # PyTorch before MXNet: in the other order the process crashes
        build, reason = _try(LOADERS[name], task, world)
        reasons = [text for text in world.allgather(reason) if text]
        if build is None or reasons:
            absent[name] = reasons[0]
        else:
            builds[name] = build
    return builds, absent


def _try(loader: Callable[[Task, MPI.Comm], Build], task: Task, world: MPI.Comm) -> tuple[Build | None, str]:
    try:
        return loader(task, world), ""
    except Exception as error:  # a broken installation may raise anything
        return None, f"{type(error).__name__}: {error}"


def load_gloo(task: Task, world: MPI.Comm) -> Build:
    """Return the contenders of PyTorch's process group over gloo. Raises ImportError."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = task.interface
    store = f"file://{Path(task.folder) / 'gloo'}"
    distributed.init_process_group("gloo", init_method=store, rank=world.rank, world_size=world.size)

    def build(case: Case) -> list[Contender]:
        flat = _gloo_flat(torch, case, task.vectors)
        return [flat] if len(case.tensors) == 1 else [flat, _gloo_ddp(torch, case, task.vectors)]

    return build


def _gloo_flat(torch: Any, case: Case, vectors: int) -> Contender:
    arrays = [np.zeros(case.length, np.float32) for _ in range(vectors)]
    tensors = [torch.from_numpy(array) for array in arrays]

    def reduce() -> None:
        for tensor in tensors:
            torch.distributed.all_reduce(tensor)

    return Contender("gloo_flat", [[array] for array in arrays], reduce)


def _gloo_ddp(torch: Any, case: Case, vectors: int) -> Contender:
    """Copy, reduce and copy back, as DistributedDataParallel does after the backward pass, but without its Reducer."""
    arrays = [[np.zeros(length, np.float32) for length in case.tensors] for _ in range(vectors)]
    buckets = [bucket for tensors in arrays for bucket in _buckets(torch, tensors)]

    def reduce() -> None:
        pending = []
        for flat, pairs in buckets:
            for gradient, part in pairs:
                part.copy_(gradient)
            pending.append(torch.distributed.all_reduce(flat, async_op=True))
        for work, (_, pairs) in zip(pending, buckets, strict=True):
            work.wait()
            for gradient, part in pairs:
                gradient.copy_(part)

    return Contender("gloo_ddp", arrays, reduce)


def _buckets(torch: Any, arrays: list[np.ndarray]) -> list[tuple[Any, list[tuple[Any, Any]]]]:
    """Return the flat tensor of each bucket with its pairs of a gradient and its part; last gradients first."""
    buckets = []
    for group in bucket_members([array.nbytes for array in arrays]):
        flat = torch.zeros(sum(arrays[index].size for index in group))
        parts = torch.split(flat, [arrays[index].size for index in group])
        buckets.append((flat, [(torch.from_numpy(arrays[i]), part) for i, part in zip(group, parts, strict=True)]))
    return buckets


def bucket_members(sizes: list[int]) -> list[list[int]]:
    """Return the indices of the gradients in each bucket, from the last on. A bucket is full once it has its bytes.

    >>> bucket_members([30 << 20, 1 << 20, 1 << 20])
    [[2], [1, 0]]
    """
    buckets: list[list[int]] = [[]]
    filled, limit = 0, FIRST_BUCKET_BYTES
    for index in reversed(range(len(sizes))):
        if filled >= limit:
            buckets.append([])
            filled, limit = 0, BUCKET_BYTES
        buckets[-1].append(index)
        filled += sizes[index]
    return buckets


def load_horovod(task: Task, world: MPI.Comm) -> Build:
    """Return the contenders of Horovod with its MPI operations, with its defaults and tuned. Raises ImportError."""
    import horovod.mxnet as hvd
    import mxnet

    if not hvd.mpi_built():
        raise ImportError("horovod was built without MPI (HOROVOD_WITH_MPI=1)")

    def build(case: Case) -> list[Contender]:
        return [_horovod(hvd, mxnet, case, task.vectors, name, settings) for name, settings in HOROVOD_SETTINGS.items()]

    return build


def _horovod(hvd: Any, mxnet: Any, case: Case, vectors: int, name: str, settings: Mapping[str, str]) -> Contender:
    arrays = [[np.zeros(length, np.float32) for length in case.tensors] for _ in range(vectors)]
    # a view of each array, as from_numpy makes its argument read-only
    tensors = [[mxnet.nd.from_numpy(array[:], zero_copy=True) for array in row] for row in arrays]

    def reduce() -> None:
        for number, row in enumerate(tensors):
            for index, tensor in enumerate(row):
                hvd.allreduce_(tensor, average=False, name=f"{number}.{index}", priority=-index)
        mxnet.nd.waitall()

    return Contender(name, arrays, reduce, awake=partial(_horovod_running, hvd, reduce, settings))


@contextmanager
def _horovod_running(hvd: Any, reduce: Callable[[], None], settings: Mapping[str, str]) -> Iterator[None]:
    """Run Horovod's background thread with these settings, its cache of names and its fusion buffer warm."""
    os.environ.update(settings)
    hvd.init()
    try:
        for _ in range(2):
            reduce()
        yield
    finally:
        hvd.shutdown()
        for name in settings:
            del os.environ[name]


LOADERS = {"gloo": load_gloo, "horovod": load_horovod, "intel_mpi": load_intel_mpi}
