// Vectors of a GPU to and from one packed buffer, in one pass each. Compiled at run time, see cuda_kernels.py.
//
// A vector is `segments` arrays, as if they lay one after the other; all vectors are cut alike. Array s of vector v
// begins at `arrays[s * vectors + v]`, and with it element `starts[s]` of the vector; `starts[segments]` is its length.
// T is the type of the arrays, E the type that they are combined in, and the one of the packed buffer.

struct Half { unsigned short bits; };
struct BFloat16 { unsigned short bits; };

#ifdef __CUDACC__
// Inline, because the headers of the CUDA toolkit are not always there.
__device__ inline float half_to_float(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
__device__ inline unsigned short float_to_half(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
__device__ inline float bits_to_float(unsigned int bits) { return __uint_as_float(bits); }
__device__ inline unsigned int float_to_bits(float value) { return __float_as_uint(value); }
#endif

template <class E, class T> __device__ inline E widen(T value) { return value; }
template <> __device__ inline float widen(Half value) { return half_to_float(value.bits); }
template <> __device__ inline float widen(BFloat16 value) { return bits_to_float((unsigned int)value.bits << 16); }

template <class T, class E> __device__ inline T narrow(E value) { return value; }
template <> __device__ inline Half narrow(float value) { return Half{float_to_half(value)}; }
template <> __device__ inline BFloat16 narrow(float value) {
  unsigned int bits = float_to_bits(value);
  if (value != value) return BFloat16{(unsigned short)(bits >> 16 | 0x40)};  // rounding could make a NaN infinite
  return BFloat16{(unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};  // to nearest, ties to even
}

// Integers wrap, and a NaN stays one, as with NumPy.
struct Sum {
  template <class E> static __device__ inline E of(E a, E b) { return a + b; }
  static __device__ inline int of(int a, int b) { return (int)((unsigned int)a + (unsigned int)b); }
  static __device__ inline long long of(long long a, long long b) {
    return (long long)((unsigned long long)a + (unsigned long long)b);
  }
};
struct Max {
  template <class E> static __device__ inline E of(E a, E b) { return a > b || a != a ? a : b; }
};
struct Min {
  template <class E> static __device__ inline E of(E a, E b) { return a < b || a != a ? a : b; }
};

// N elements in registers, read and written 16 bytes at a time (plain assignments are split); one element as it is.
template <class T, int N> union Run {
  uint4 words[sizeof(T) * N / 16];
  T at[N];
  __device__ inline explicit Run(const T* from) {
#pragma unroll
    for (int w = 0; w < (int)(sizeof(T) * N / 16); w++) words[w] = __ldcg((const uint4*)from + w);
  }
  __device__ inline Run() {}
  __device__ inline void write(T* to) const {
#pragma unroll
    for (int w = 0; w < (int)(sizeof(T) * N / 16); w++) __stcg((uint4*)to + w, words[w]);
  }
};
template <class T> union Run<T, 1> {
  T at[1];
  __device__ inline explicit Run(const T* from) : at{*from} {}
  __device__ inline Run() {}
  __device__ inline void write(T* to) const { *to = at[0]; }
};

__device__ inline bool aligned(const void* address) { return (unsigned long long)address % 16 == 0; }

template <class T, class E, class Op, int N>
__device__ inline void pack_run(T* const* from, int vectors, long long offset, E* to) {
  Run<E, N> total;
  const Run<T, N> first(from[0] + offset);
#pragma unroll
  for (int i = 0; i < N; i++) total.at[i] = widen<E>(first.at[i]);
#pragma unroll 4
  for (int v = 1; v < vectors; v++) {
    const Run<T, N> next(from[v] + offset);
#pragma unroll
    for (int i = 0; i < N; i++) total.at[i] = Op::of(total.at[i], widen<E>(next.at[i]));
  }
  total.write(to);
}

template <class T, class E, int N>
__device__ inline void unpack_run(const E* from, E divisor, T* const* to, int vectors, long long offset) {
  const Run<E, N> packed(from);
  Run<T, N> result;
#pragma unroll
  for (int i = 0; i < N; i++) result.at[i] = narrow<T>((E)(packed.at[i] / divisor));
  for (int v = 0; v < vectors; v++) result.write(to[v] + offset);
}

// Calls work(segment, offset in its arrays, offset in the packed buffer, elements) for the part of each segment that
// lies in this block's share of elements `start` to `stop`.
template <class Work>
__device__ inline void for_each_segment(const long long* starts, int segments, long long start, long long stop,
                                        long long share, Work work) {
  const long long begin = start + blockIdx.x * share;
  const long long end = begin + share < stop ? begin + share : stop;
  int low = 0, high = segments;  // segment `low` is the last that starts at or before `begin`
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (starts[middle] <= begin) low = middle; else high = middle;
  }
  for (int s = low; s < segments && starts[s] < end; s++) {
    const long long first = starts[s] > begin ? starts[s] : begin;
    const long long last = starts[s + 1] < end ? starts[s + 1] : end;
    if (first < last) work(s, first - starts[s], first - start, last - first);
  }
}

// packed[0 .. stop - start] = Op over the vectors, elements start to stop.
template <class T, class E, class Op>
__global__ void pack(T* const* arrays, const long long* starts, int segments, int vectors,
                     long long start, long long stop, long long share, E* packed) {
  for_each_segment(starts, segments, start, stop, share, [&](int s, long long offset, long long at, long long size) {
    const int N = 16 / sizeof(T);
    T* const* from = arrays + (long long)s * vectors;
    bool wide = aligned(packed + at);
    for (int v = 0; v < vectors; v++) wide = wide && aligned(from[v] + offset);
    const long long runs = wide ? size / N : 0;
    for (long long i = threadIdx.x; i < runs; i += blockDim.x)
      pack_run<T, E, Op, N>(from, vectors, offset + i * N, packed + at + i * N);
    for (long long i = runs * N + threadIdx.x; i < size; i += blockDim.x)
      pack_run<T, E, Op, 1>(from, vectors, offset + i, packed + at + i);
  });
}

// Elements start to stop of all vectors = packed[0 .. stop - start] / divisor.
template <class T, class E>
__global__ void unpack(T* const* arrays, const long long* starts, int segments, int vectors,
                       long long start, long long stop, long long share, const E* packed, E divisor) {
  for_each_segment(starts, segments, start, stop, share, [&](int s, long long offset, long long at, long long size) {
    const int N = 16 / sizeof(T);
    T* const* to = arrays + (long long)s * vectors;
    bool wide = aligned(packed + at);
    for (int v = 0; v < vectors; v++) wide = wide && aligned(to[v] + offset);
    const long long runs = wide ? size / N : 0;
    for (long long i = threadIdx.x; i < runs; i += blockDim.x)
      unpack_run<T, E, N>(packed + at + i * N, divisor, to, vectors, offset + i * N);
    for (long long i = runs * N + threadIdx.x; i < size; i += blockDim.x)
      unpack_run<T, E, 1>(packed + at + i, divisor, to, vectors, offset + i);
  });
}
