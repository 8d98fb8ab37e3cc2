"""The CUDA kernels compiled for the processor, which runs their threads one after the other."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from hybridps.tensor_collectives.devices.cuda_kernels import SOURCE, TYPES, kernel_names

PRELUDE = """
#include <cstring>
#define __device__
#define __global__
static thread_local struct { unsigned x; } blockIdx, blockDim, threadIdx;
struct alignas(16) uint4 { unsigned x, y, z, w; };
static uint4 __ldcg(const uint4* from) { return *from; }
static void __stcg(uint4* to, uint4 value) { *to = value; }
template <class To, class From> static To same_bits(From from) { To to; memcpy(&to, &from, sizeof(to)); return to; }
static float half_to_float(unsigned short bits) { return same_bits<_Float16>(bits); }
static unsigned short float_to_half(float value) { return same_bits<unsigned short>((_Float16)value); }
static float bits_to_float(unsigned bits) { return same_bits<float>(bits); }
static unsigned float_to_bits(float value) { return same_bits<unsigned>(value); }
"""

LAUNCH = """
extern "C" void {dtype}_{op}(void* arrays, const long long* starts, int segments, int vectors, long long start,
                             long long stop, long long share, {E}* packed, int threads, {E} divisor) {{
  blockDim.x = threads;
  for (blockIdx.x = 0; start + blockIdx.x * share < stop; blockIdx.x++)
    for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++)
      {kernel}(({T}**)arrays, starts, segments, vectors, start, stop, share, packed{divisor});
}}
"""


def compile_kernels(folder: Path) -> ctypes.CDLL:
    """A library of functions `<dtype>_<operation>`, as in `LAUNCH`. Skips the test where no compiler is there."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not installed")
    launches = [
        LAUNCH.format(dtype=dtype, op=op, kernel=name, T=T, E=E, divisor=", divisor" if op == "unpack" else "")
        for dtype, (T, E) in TYPES.items()
        for op, name in kernel_names(dtype).items()
    ]
    (folder / "kernels.cpp").write_text(PRELUDE + SOURCE.read_text() + "".join(launches))
    options = ["-std=c++14", "-O1", "-shared", "-fPIC", "-fno-strict-aliasing", "-fwrapv", "-w"]
    done = subprocess.run(
        [compiler, *options, "-o", folder / "kernels.so", folder / "kernels.cpp"], capture_output=True, text=True
    )
    if "_Float16" in done.stderr:
        pytest.skip("g++ has no _Float16 here: version 12 is the first")
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(folder / "kernels.so"))
