"""The CUDA kernels, without a GPU: compiled by NVRTC for real ones, and run by the processor, thread after thread."""

from __future__ import annotations

import ctypes
import re
from itertools import product

import numpy as np
import pytest
from host_kernels import compile_kernels

from hybridps.tensor_collectives.devices.cuda_kernels import OPTIONS, SOURCE, TYPES, kernel_names
from hybridps.tensor_collectives.tensor import EXACT

OPERATIONS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_kernels(tmp_path_factory.mktemp("kernels"))


def run(kernels: ctypes.CDLL, dtype: str, op: str, vectors, start: int, stop: int, packed, divisor: int = 1) -> None:
    """A launch with few threads and small shares, so that all loops have several rounds. `vectors[v][s]` are arrays."""
    addresses = np.array([[array.ctypes.data for array in arrays] for arrays in zip(*vectors, strict=True)], np.uint64)
    starts = np.cumsum([0] + [len(array) for array in vectors[0]])
    number = {"f": ctypes.c_float, "d": ctypes.c_double, "i": ctypes.c_int, "l": ctypes.c_longlong}[packed.dtype.char]
    sizes = [ctypes.c_int(addresses.shape[0]), ctypes.c_int(addresses.shape[1])]
    limits = [ctypes.c_longlong(each) for each in (start, stop, 100)]
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (addresses, starts, packed)]
    getattr(kernels, f"{dtype}_{op}")(*pointers[:2], *sizes, *limits, pointers[2], ctypes.c_int(4), number(divisor))


def numpy_dtype(name: str) -> np.dtype:
    if name == "bfloat16":
        pytest.importorskip("ml_dtypes")
    return np.dtype(name)


def make(dtype: np.dtype, sizes: tuple[int, ...], count: int, offset: int) -> list[list[np.ndarray]]:
    """Random vectors in arrays of `sizes`, which begin `offset` elements after a multiple of 16 bytes."""
    random = np.random.default_rng(count)
    high = 1000 if dtype.itemsize > 2 else 30
    whole = [random.integers(-high, high, sum(sizes) + 16).astype(dtype) for _ in range(count)]
    vectors = []
    for each in whole:
        parts = np.split(each[: sum(sizes)], np.cumsum(sizes)[:-1])
        vectors.append([_placed(part, offset) for part in parts])
    return vectors


def _placed(values: np.ndarray, offset: int) -> np.ndarray:
    memory = np.zeros(values.nbytes + 16 + offset * values.itemsize, np.uint8)
    first = -memory.ctypes.data % 16 + offset * values.itemsize
    array = memory[first : first + values.nbytes].view(values.dtype)
    array[:] = values
    return array


SIZES = [(1,), (1009,), (0, 5, 64, 0, 1, 333, 16, 16)]


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("dtype", TYPES)
def test_pack_equals_numpy(kernels: ctypes.CDLL, dtype: str, op: str) -> None:
    for sizes, count, offset in product(SIZES, (1, 2, 5), (0, 1)):
        vectors = make(numpy_dtype(dtype), sizes, count, offset)
        flat = [np.concatenate(arrays).astype(EXACT[dtype]) for arrays in vectors]
        length = sum(sizes)
        for start, stop in ((0, length), (length // 3, length // 2 + 1)):
            packed = np.full(stop - start + 1, 77, EXACT[dtype])
            run(kernels, dtype, op, vectors, start, stop, packed)
            np.testing.assert_array_equal(packed[:-1], OPERATIONS[op].reduce(flat)[start:stop])
            assert packed[-1] == 77


@pytest.mark.parametrize("dtype", TYPES)
def test_unpack_equals_numpy(kernels: ctypes.CDLL, dtype: str) -> None:
    kind, divisor = numpy_dtype(dtype), 1 if "int" in dtype else 3
    for sizes, count, offset in product(SIZES, (1, 3), (0, 1)):
        length = sum(sizes)
        for start, stop in ((0, length), (length // 3, length // 2 + 1)):
            vectors = make(kind, sizes, count, offset)
            before = [np.concatenate(arrays) for arrays in vectors]
            packed = np.random.default_rng(1).integers(-(2**15), 2**15, stop - start).astype(EXACT[dtype])
            run(kernels, dtype, "unpack", vectors, start, stop, packed, divisor)
            for arrays, old in zip(vectors, before, strict=True):
                old[start:stop] = (packed / packed.dtype.type(divisor)).astype(kind)
                np.testing.assert_array_equal(np.concatenate(arrays).astype(float), old.astype(float))


@pytest.mark.parametrize("dtype", [name for name in TYPES if "float" in name])
@pytest.mark.parametrize("op", OPERATIONS)
def test_what_is_no_number_stays_so(kernels: ctypes.CDLL, dtype: str, op: str) -> None:
    kind = numpy_dtype(dtype)
    special = [np.nan, 1, np.inf, -np.inf, 0, 1e-7]
    pairs = np.array(list(product(special, special)), np.float64).astype(kind)
    vectors = [[pairs[:, 0].copy()], [pairs[:, 1].copy()]]
    packed = np.zeros(len(pairs), EXACT[dtype])
    run(kernels, dtype, op, vectors, 0, len(pairs), packed)
    exact = pairs.astype(EXACT[dtype])
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(packed, OPERATIONS[op](exact[:, 0], exact[:, 1]))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_wrap(kernels: ctypes.CDLL, dtype: str) -> None:
    largest = np.full(5, np.iinfo(dtype).max, dtype)
    packed = np.zeros(5, dtype)
    run(kernels, dtype, "sum", [[largest], [np.ones(5, dtype)]], 0, 5, packed)
    assert (packed == np.iinfo(dtype).min).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_rounded_as_numpy_does(kernels: ctypes.CDLL, dtype: str) -> None:
    """All values, the middles between them, and what is just beside: to nearest, ties to even."""
    kind = numpy_dtype(dtype)
    every = np.arange(1 << 16, dtype=np.uint16).view(kind).astype(np.float32)
    ordered = np.sort(every[np.isfinite(every)])
    middles = (ordered[:-1] / 2 + ordered[1:] / 2).astype(np.float32)
    packed = np.concatenate([every, middles, np.nextafter(middles, np.inf), np.nextafter(middles, -np.inf)])
    packed = packed.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = packed.astype(kind)
    out = np.zeros(len(packed), kind)
    run(kernels, dtype, "unpack", [[out]], 0, len(packed), packed)
    np.testing.assert_array_equal(out.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90"])
def test_compiles_for_a_gpu(dtype: str, architecture: str) -> None:
    """All kernels become machine code, which keeps everything in registers, and moves 16 bytes at a time."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed", exc_type=ImportError)
    nvrtc = cupy.cuda.nvrtc
    try:
        nvrtc.getVersion()
    except (ImportError, OSError, RuntimeError) as error:
        pytest.skip(f"no NVRTC: {error}")
    program = nvrtc.createProgram(SOURCE.read_text(), SOURCE.name, [], [])
    names = kernel_names(dtype).values()
    for name in names:
        nvrtc.addNameExpression(program, name)
    try:
        nvrtc.compileProgram(program, (*OPTIONS, f"-arch={architecture}"))
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))
    text = nvrtc.getPTX(program)
    entries = re.split(r"\.entry", text if isinstance(text, str) else text.decode())[1:]
    assert len(entries) == len(list(names))
    assert nvrtc.getCUBIN(program)
    for entry in entries:
        assert "ld.global.cg.v4" in entry
        assert "st.global.cg.v4" in entry
        assert ".local" not in entry
