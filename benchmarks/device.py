"""Collectives on a GPU: pack-and-sum against the device's copy bandwidth, and allreduce against copies by hand.

mpirun -n 2 python -m mpi4py -m benchmarks.device --json device.json
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.results import size_text
from hybridps.errors import LayoutError
from hybridps.mpi_groups import Group
from hybridps.tensor_collectives import Levels, allreduce_, devices

REPEATS = 20
"""The number of kernels and copies that are started together: starting one takes about as long as it runs."""

Contenders = dict[str, Callable[[], Any]]


def device(
    nbytes: Annotated[int, typer.Option("--bytes", min=4, help="Size of a vector.")] = 102_400_000,
    vectors: Annotated[int, typer.Option(min=1, help="Vectors of each rank; pack-and-sum is measured up to 8.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the result is their median.")] = 15,
    json_path: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the results here.")] = None,
) -> None:
    """Measure on the GPU of each rank, alternating, and print medians. Rank r uses GPU r modulo the number of GPUs."""
    try:
        import cupy

        gpus = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # whatever CuPy raises without a driver or toolkit
        print(f"benchmarks.device: no GPU can be used: {str(error).splitlines()[0]}", file=sys.stderr)
        raise typer.Exit(1) from None
    from mpi4py import MPI

    from hybridps.mpi_groups.mpi import MPIGroup

    group = MPIGroup(MPI.COMM_WORLD.Dup(), 600)
    with cupy.cuda.Device(group.rank % gpus) as gpu:
        results = [pack_and_sum(cupy, group, nbytes, count, rounds) for count in sorted({1, 2, 4, 8, vectors})]
        results.append(allreduce(cupy, group, nbytes, vectors, rounds))
        name = cupy.cuda.runtime.getDeviceProperties(gpu.id)["name"].decode()
    if group.rank == 0:
        for result in results:
            print(line(result))
        if json_path:
            about = {"gpu": name, "ranks": group.size, "rounds": rounds, "cupy": cupy.__version__}
            json_path.write_text(json.dumps([result | about for result in results], indent=1) + "\n")


def pack_and_sum(cupy: Any, group: Group, nbytes: int, count: int, rounds: int) -> dict[str, Any]:
    """Measure the kernel, which reads `count` vectors and writes one, and a copy, which reads and writes one vector.

    Each runs `REPEATS` times without a pause.
    """
    vectors = [cupy.ones(nbytes // 4, np.float32) for _ in range(count)]
    levels = Levels(group, list(range(group.size)))
    tensor = devices.DeviceTensor(vectors, levels, "staged")
    lane, target = tensor.packers[0], cupy.zeros(nbytes // 4, np.float32)

    def pack() -> None:
        for wait in [lane.device.pack(lane.vectors, "sum", 0, tensor.length, target) for _ in range(REPEATS)]:
            wait()

    def copy() -> None:
        for _ in range(REPEATS):
            target[:] = vectors[0]
        cupy.cuda.get_current_stream().synchronize()

    pack()
    if not bool((target == count).all()):
        raise RuntimeError(f"the sum of {count} vectors of ones is {target[:4]} ...")
    seconds = {name: taken / REPEATS for name, taken in measure({"pack": pack, "copy": copy}, group, rounds).items()}
    tensor.close()
    levels.close()
    fraction = (count + 1) / seconds["pack"] / (2 / seconds["copy"])
    return {"case": "pack", "bytes": nbytes, "vectors": count, "seconds": seconds, "fraction_of_copy": fraction}


def allreduce(cupy: Any, group: Group, nbytes: int, count: int, rounds: int) -> dict[str, Any]:
    """Measure all usable transports, and what a user does by hand: sum, copy to the host, allreduce, copy back."""
    levels = Levels(group, [0] * group.size)
    vectors = [cupy.zeros(nbytes // 4, np.float32) for _ in range(count)]
    host = levels.tensor(nbytes // 4, "float32")
    contenders: Contenders = {}
    tensors, absent = [], {}
    for transport in ("staged", "direct", "nccl"):
        try:
            tensor = devices.DeviceTensor(vectors, levels, transport)
        except LayoutError as error:
            absent[transport] = str(error)
            continue
        tensors.append(tensor)
        contenders[transport] = lambda tensor=tensor: devices.allreduce_(tensor, group)

    def by_hand() -> None:
        total = vectors[0]
        for vector in vectors[1:]:
            total += vector
        total.get(out=host.vectors[0])
        allreduce_(host, group)
        for vector in vectors:
            vector.set(host.vectors[0])

    seconds = measure(contenders | {"by_hand": by_hand}, group, rounds)
    for tensor in tensors:
        tensor.close()
    levels.close()
    return {"case": "allreduce", "bytes": nbytes, "vectors": count, "seconds": seconds, "absent": absent}


def measure(contenders: Contenders, group: Group, rounds: int) -> dict[str, float]:
    """Return the medians of the slowest rank's seconds. The first round warms up."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + 1):
        for name, run in contenders.items():
            group.barrier()
            begin = time.perf_counter()
            run()
            slowest = np.array([time.perf_counter() - begin])
            group.allreduce_(slowest, "max")
            taken[name].append(float(slowest[0]))
    return {name: median(times[1:]) for name, times in taken.items()}


def line(result: dict[str, Any]) -> str:
    times = ", ".join(f"{name} {1e3 * seconds:.3g} ms" for name, seconds in result["seconds"].items())
    what = f"{result['case']} of {result['vectors']} x {size_text(result['bytes'])}: {times}"
    return f"{what}; {result['fraction_of_copy']:.0%} of the copy bandwidth" if "fraction_of_copy" in result else what


if __name__ == "__main__":
    typer.run(device)
