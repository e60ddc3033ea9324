// Runs a kernel's source on the processor: the threads of a block are fibers that change places at barriers and at
// warp operations; blocks run one after the other. Verifies indices, layouts, arithmetic and the use of barriers; says
// nothing of speed, and nothing of what the device's memory model allows between barriers.
#pragma once
#include <math.h>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)

struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct dim3 { unsigned x, y, z; };
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }

namespace emulated {
extern dim3 thread, block, grid_size, block_size;
void barrier();
// A barrier that tells every thread for how many of them it held.
int count(bool holds);
// A place for something of every lane, and the wait until every live lane of the warp has left its own there.
constexpr unsigned EXCHANGE_BYTES = 32;
uint8_t* slots();
void meet();
// Every live lane leaves `mine`; returns those of all 32, in order of the lanes, until the exchange after the next.
template <class T> static inline const T* exchange(const T& mine) {
    static_assert(sizeof(T) <= EXCHANGE_BYTES, "more than a lane has room for");
    T* all = (T*)slots();
    all[thread.x % 32] = mine;
    meet();
    return all;
}
// Copies that run on their own: at once, or as late as a wait allows, as the launch drew.
void copy(void* to, const void* from, unsigned bytes);
void copies_end();
void copies_wait_but(unsigned n);
}  // namespace emulated

#define threadIdx emulated::thread
#define blockIdx emulated::block
#define gridDim emulated::grid_size
#define blockDim emulated::block_size

static inline void __syncthreads() { emulated::barrier(); }
static inline int __syncthreads_count(int v) { return emulated::count(v != 0); }
static inline void __syncwarp(unsigned = ~0u) { emulated::meet(); }

template <class T> static inline T __shfl_sync(unsigned, T v, int lane) { return emulated::exchange(v)[lane & 31]; }
template <class T> static inline T __shfl_xor_sync(unsigned mask, T v, int step) {
    return __shfl_sync(mask, v, (int)(threadIdx.x & 31) ^ step);
}
static inline unsigned __ballot_sync(unsigned, int v) {
    const int* all = emulated::exchange(v);
    unsigned out = 0;
    for (int l = 0; l < 32; l++) out |= (all[l] != 0 ? 1u : 0u) << l;
    return out;
}
static inline unsigned __reduce_max_sync(unsigned, unsigned v) {
    const unsigned* all = emulated::exchange(v);
    unsigned out = 0;
    for (int l = 0; l < 32; l++) out = all[l] > out ? all[l] : out;
    return out;
}
static inline unsigned __reduce_min_sync(unsigned mask, unsigned v) { return ~__reduce_max_sync(mask, ~v); }
static inline float __uint_as_float(unsigned v) { float f; std::memcpy(&f, &v, 4); return f; }
static inline unsigned __float_as_uint(float v) { unsigned u; std::memcpy(&u, &v, 4); return u; }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

float half_to_float(uint16_t h);
uint16_t float_to_half(float f);
static inline uint16_t float_to_bf16(float f) {
    unsigned u = __float_as_uint(f);
    return f == f ? (u + 0x7fff + (u >> 16 & 1)) >> 16 : 0x7fff;
}
void mma_halves(float c[4], const unsigned a[4], unsigned b0, unsigned b1);
void load_matrices(unsigned m[4], const void* row);
void load_matrices_transposed(unsigned m[4], const void* row);
static inline unsigned pack_halves(float low, float high) {
    return float_to_half(low) | (unsigned)float_to_half(high) << 16;
}
// Exact in between, so that one rounding is left.
template <class F> static inline unsigned both_halves(F of) {
    return float_to_half(of(0)) | (unsigned)float_to_half(of(16)) << 16;
}
static inline unsigned sub_halves(unsigned a, unsigned b) {
    return both_halves([=](int i) { return half_to_float(a >> i) - half_to_float(b >> i); });
}
static inline unsigned mul_halves(unsigned a, unsigned b) {
    return both_halves([=](int i) { return half_to_float(a >> i) * half_to_float(b >> i); });
}
static inline unsigned fma_halves(unsigned a, unsigned b, unsigned c) {
    return both_halves([=](int i) { return fmaf(half_to_float(a >> i), half_to_float(b >> i), half_to_float(c >> i)); });
}
static inline unsigned masked_or(unsigned v, unsigned mask, unsigned bits) { return (v & mask) | bits; }
static inline unsigned masked_xor(unsigned v, unsigned mask, unsigned bits) { return (v & mask) ^ bits; }
static inline unsigned both_low(unsigned v) { return (v & 0xffff) | v << 16; }
static inline unsigned both_high(unsigned v) { return v >> 16 | (v & 0xffff0000u); }
static inline unsigned pick_bytes(unsigned a, unsigned b, unsigned which) {
    uint64_t all = a | (uint64_t)b << 32;
    unsigned v = 0;
    for (int i = 0; i < 4; i++) v |= (unsigned)(all >> (8 * (which >> (4 * i) & 7)) & 255) << (8 * i);
    return v;
}
static inline void fetch_ahead(const void*) {}
static inline void arrive(unsigned* count) { ++*count; }
// Blocks run in order: what is awaited is there, or would never come.
static inline void await(const unsigned* count, unsigned blocks) {
    if (*count < blocks) std::abort();
}
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline void copy_16(void* to, const void* from) { emulated::copy(to, from, 16); }
static inline void copies_end() { emulated::copies_end(); }
template <int N> static inline void copies_wait() { emulated::copies_wait_but(N); }
static inline unsigned atomicAdd(unsigned* at, unsigned n) { return (*at += n) - n; }
static inline uint4 load_once(const void* p) { uint4 v; std::memcpy(&v, p, 16); return v; }
static inline void after_previous() {}
static inline void wait_previous() {}
