"""Collectives of device tensors on threads: with the processor as the device, and on a GPU where there is one."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Iterator

import host_cupy
import numpy as np
import pytest
from device_contract import CHECKS, HOST, Kind, cuda_kind
from host_kernels import compile_kernels

from hybridps.errors import LayoutError
from hybridps.mpi_groups import SoloGroup, ThreadGroup
from hybridps.tensor_collectives import Levels, devices
from hybridps.tensor_collectives.devices import device_tensor
from hybridps.tensor_collectives.devices.device import HostDevice

pytestmark = pytest.mark.slow


def each_check(*nightly: str) -> pytest.MarkDecorator:
    """Those that are named take long, and are much like others."""
    params = [pytest.param(check, marks=pytest.mark.nightly if check.__name__ in nightly else ()) for check in CHECKS]
    return pytest.mark.parametrize("check", params, ids=lambda check: check.__name__)


class TestHost:
    @each_check()
    @pytest.mark.parametrize(
        ("size", "transport"),
        [
            *((1, "auto"), (2, "direct"), (3, "auto")),
            pytest.param(4, "direct", marks=pytest.mark.nightly),
            pytest.param(5, "auto", marks=pytest.mark.nightly),
        ],
    )
    def test_threads(self, check, size: int, transport: str) -> None:
        ThreadGroup.run(size, lambda group: check(group, HOST, transport))

    @each_check("check_large")
    def test_in_many_pieces(self, check, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(device_tensor, "PIECE_BYTES", 4096)
        monkeypatch.setattr(device_tensor, "DIRECT_PIECE_BYTES", 4096)
        ThreadGroup.run(3, lambda group: check(group, HOST, "staged"))
        ThreadGroup.run(3, lambda group: check(group, HOST, "direct"))


@pytest.fixture(scope="module")
def host_kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_kernels(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def cuda_on_host(host_kernels: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kind]:
    """`CudaDevice` as it is, over a CuPy without a GPU."""
    found = host_cupy.modules(host_kernels)
    for name, module in found.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("cuda", "nccl"):
        monkeypatch.delitem(sys.modules, f"hybridps.tensor_collectives.devices.{name}", raising=False)
        monkeypatch.delattr(devices, name, raising=False)
    cupy = found["cupy"]
    yield Kind(cupy.asarray, lambda array, wanted: array.set(wanted), cupy.asnumpy)
    for name in ("cuda", "nccl"):  # they know this CuPy only
        sys.modules.pop(f"hybridps.tensor_collectives.devices.{name}", None)
        vars(devices).pop(name, None)
    assert found["cupy.cuda.runtime"].locked == {}


class TestCudaOnHost:
    @each_check()
    @pytest.mark.parametrize("size", [3])
    def test_threads(self, check, cuda_on_host: Kind, size: int) -> None:
        ThreadGroup.run(size, lambda group: check(group, cuda_on_host, "auto"))

    @each_check("check_reduce_scatter_and_allgather", "check_large")
    def test_in_many_pieces(self, check, cuda_on_host: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(device_tensor, "PIECE_BYTES", 4096)
        ThreadGroup.run(2, lambda group: check(group, cuda_on_host, "staged"))


@each_check()
class TestCuda:
    """All ranks are threads that share one GPU."""

    @pytest.mark.parametrize("size", [1, 2, 3, 4])
    def test_threads(self, check, size: int) -> None:
        cuda = cuda_kind()
        ThreadGroup.run(size, lambda group: check(group, cuda, "staged"))

    def test_in_many_pieces(self, check, monkeypatch: pytest.MonkeyPatch) -> None:
        cuda = cuda_kind()
        monkeypatch.setattr(device_tensor, "PIECE_BYTES", 1024)
        ThreadGroup.run(3, lambda group: check(group, cuda, "staged"))

    def test_nccl_alone(self, check) -> None:
        cuda = cuda_kind()
        from hybridps.tensor_collectives.devices import nccl

        if nccl.missing():
            pytest.skip(nccl.missing())
        check(SoloGroup(), cuda, "nccl")


def test_vectors_on_several_gpus() -> None:
    kinds = [cuda_kind(number) for number in range(2)]
    arrays = [kind.array(np.full(1009, number + 1, np.float32)) for number, kind in enumerate(kinds)]
    if arrays[0].device == arrays[1].device:
        pytest.skip("there is one GPU only")
    tensor = devices.DeviceTensor(arrays, Levels(SoloGroup(), [0]), "staged")
    devices.allreduce_(tensor, tensor.group)
    assert all((kind.numpy(array) == 3).all() for kind, array in zip(kinds, arrays, strict=True))


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
def test_devices_that_do_not_reach_each_other(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each packs its own vectors into a buffer of its own; the buffers are combined with those of other ranks."""

    def only_its_own(self: HostDevice, array: np.ndarray) -> bool:
        return array.ctypes.data == vars(self).setdefault("home", array.ctypes.data)

    monkeypatch.setattr(HostDevice, "reaches", only_its_own)

    def work(group: ThreadGroup) -> None:
        vectors = [np.full(50_003, 10 * group.rank + number, np.float32) for number in range(3)]
        tensor = devices.DeviceTensor(vectors, Levels(group, [0] * group.size))
        assert len(tensor.packers) == 3
        devices.allreduce_(tensor, group, op)
        everything = [10 * rank + number for rank in range(group.size) for number in range(3)]
        expected = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}[op](everything)
        assert all((vector == np.float32(expected)).all() for vector in vectors)
        vectors[0][:] = group.rank
        devices.broadcast_(tensor, group, 1)
        assert all((vector == 1).all() for vector in vectors)

    ThreadGroup.run(2, work)


def test_pieces_move_while_others_are_combined(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each collective, the next piece arrives from the device, and the one before the last goes back to it."""
    monkeypatch.setattr(device_tensor, "DIRECT_PIECE_BYTES", 400)
    vector = np.ones(500, np.float32)
    seen = []

    class Doubling(SoloGroup):
        def allreduce_(self, array: np.ndarray, op: str = "sum") -> None:
            number = len(seen)
            fetched = number == 4 or becomes(tensor.packed.vectors[0], 100 * number + 199, 1)
            stored = number < 2 or becomes(vector, 100 * number - 101, 2)
            seen.append((fetched, stored))
            array *= 2

    tensor = devices.DeviceTensor([vector], Levels(Doubling(), [0]), "direct")
    tensor.packed.vectors[0][:] = 0
    devices.allreduce_(tensor, tensor.group)
    assert seen == [(True, True)] * 5
    assert (vector == 2).all()


def becomes(array: np.ndarray, index: int, value: float) -> bool:
    """Whether another thread makes it so, within 20 seconds."""
    end = time.monotonic() + 20
    while array[index] != value and time.monotonic() < end:
        time.sleep(1e-4)
    return bool(array[index] == value)


def test_ranks_that_do_not_fit_together() -> None:
    def work(group: ThreadGroup) -> None:
        levels = Levels(group, [0] * group.size)
        devices.DeviceTensor([np.zeros(4, np.float32)] * (1 + group.rank), levels)

    with pytest.raises(LayoutError, match="rank 1 has 2 vectors of 4 float32, .* rank 0 1 vectors"):
        ThreadGroup.run(2, work)


def test_a_transport_that_cannot_be_says_why() -> None:
    with pytest.raises(LayoutError, match="'nccl' cannot be used: rank 0: the vectors are not on a GPU"):
        devices.DeviceTensor([np.zeros(4)], Levels(SoloGroup(), [0]), "nccl")


def test_without_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from hybridps.tensor_collectives.node import node

    def refuse(nbytes: int) -> np.ndarray:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node, "create_shared", refuse)

    def work(group: ThreadGroup) -> np.ndarray:
        vector = np.full(2_000_003, group.rank + 1, np.float32)
        tensor = devices.DeviceTensor([vector], Levels(group, [0] * group.size))
        devices.allreduce_(tensor, group)
        return vector

    for vector in ThreadGroup.run(3, work):
        assert (vector == 6).all()


def test_what_goes_wrong_on_the_device_is_raised() -> None:
    vector = np.zeros(100, np.float32)
    vector.flags.writeable = False
    tensor = devices.DeviceTensor([vector], Levels(SoloGroup(), [0]))
    with pytest.raises(ValueError, match="read-only"):
        devices.allreduce_(tensor, tensor.group)
