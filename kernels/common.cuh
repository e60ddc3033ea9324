// What every kernel uses: plain types, reductions in one fixed order, conversions, the edges between kernels.
// Also plain C++: with EMULATE defined the same source is compiled by a C++ compiler (emulated/shim.hpp).
//
// Every kernel takes one struct by value, laid out as its twin in ffi/src/kernels (same names, same order).
#pragma once

#ifdef EMULATE
#include "emulated/shim.hpp"
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;

#define KERNEL(name, Args) extern "C" __global__ void name(const Args a)
#define FULL 0xffffffffu

// A pointer as the launcher passes it.
template <class T> struct Ptr {
    u64 at;
    __device__ T* get() const { return (T*)at; }
    __device__ T& operator[](u64 i) const { return ((T*)at)[i]; }
    __device__ operator T*() const { return (T*)at; }
};

#ifndef EMULATE
#define INFINITY __int_as_float(0x7f800000)

__device__ __forceinline__ float half_to_float(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

__device__ __forceinline__ u16 float_to_half(float f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

__device__ __forceinline__ u16 float_to_bf16(float f) {
    u16 h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

// C[16 x 8] += A[16 x 16] · B[16 x 8] in halves, sums in floats. A: rows g, g + 8 and columns 2j, 2j + 1, then the same of
// columns 8 + 2j ..; B: column g, rows 2j, 2j + 1, then 8 + 2j ..; C as above.
__device__ __forceinline__ void mma_halves(float c[4], const u32 a[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 pack_halves(float low, float high) {
    u32 v;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}

// Two halves a word, both at once, each rounded once.
__device__ __forceinline__ u32 sub_halves(u32 a, u32 b) {
    u32 v;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
    return v;
}
__device__ __forceinline__ u32 mul_halves(u32 a, u32 b) {
    u32 v;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
    return v;
}
__device__ __forceinline__ u32 fma_halves(u32 a, u32 b, u32 c) {
    u32 v;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(c));
    return v;
}
// v & mask | bits, and v & mask ^ bits: one instruction, where the compiler makes two of a form with two constants.
__device__ __forceinline__ u32 masked_or(u32 v, u32 mask, u32 bits) {
    u32 out;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(v), "r"(mask), "r"(bits));
    return out;
}
__device__ __forceinline__ u32 masked_xor(u32 v, u32 mask, u32 bits) {
    u32 out;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(out) : "r"(v), "r"(mask), "r"(bits));
    return out;
}
// One half of a word in both; said like this, it costs nothing beside the product that takes it.
__device__ __forceinline__ u32 both_low(u32 v) {
    u32 out;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {l, l};}" : "=r"(out) : "r"(v));
    return out;
}
__device__ __forceinline__ u32 both_high(u32 v) {
    u32 out;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, h};}" : "=r"(out) : "r"(v));
    return out;
}
// Bytes of `a` (0 to 3) and `b` (4 to 7), a nibble of `which` each.
__device__ __forceinline__ u32 pick_bytes(u32 a, u32 b, u32 which) { return __byte_perm(a, b, which); }

// Four matrices of 8 x 8 halves from shared memory; lane 8i + r names row r of matrix i. Lane 4g + j gets of each
// elements 2j, 2j + 1 of row g, or of column g.
__device__ __forceinline__ void load_matrices(u32 m[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"((u32)__cvta_generic_to_shared(row))
                 : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(u32 m[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"((u32)__cvta_generic_to_shared(row))
                 : "memory");
}

// Copies from global to shared memory that run on their own, in groups; `copies_wait` waits for all groups but the
// newest N.
__device__ __forceinline__ void copy_16(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// What is read once a pass, weights: it leaves the second-level cache first, so that what is read again stays there.
__device__ __forceinline__ u64 read_once() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
// A line of weights on its way to the second-level cache.
__device__ __forceinline__ void fetch_ahead(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
__device__ __forceinline__ uint4 load_once(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p), "l"(read_once()));
    return v;
}

// Waits until everything that the kernels before this one wrote can be read, then lets the next kernel start its
// prologue. What is read before it must have been written at least two kernels ago, or be weights.
__device__ __forceinline__ void after_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Says that one more block of this kernel has written what others of it wait for, and waits for so many. Whoever waits must
// have a higher index: blocks start in order, so those before it run or have ended.
__device__ __forceinline__ void arrive(u32* count) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
}
__device__ __forceinline__ void await(const u32* count, u32 blocks) {
    u32 seen;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(count) : "memory");
    while (seen < blocks);
}

// Waits alone: the blocks of the next kernel would only take places from those of a kernel that fills the card.
__device__ __forceinline__ void wait_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#endif

__device__ __forceinline__ float bf16_to_float(u16 h) { return __uint_as_float((u32)h << 16); }

__device__ __forceinline__ float warp_sum(float v) {
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(FULL, v, step);
    return v;
}

__device__ __forceinline__ float warp_max(float v) {
    for (int step = 16; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(FULL, v, step));
    return v;
}

// Sum over a block of `warps` warps, on every thread; `scratch` holds a float a warp and may be used again at once.
__device__ __forceinline__ float block_sum(float v, float* scratch, int warps) {
    v = warp_sum(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int w = 0; w < warps; w++) v += scratch[w];
    return v;
}

// A value of a rotated pair, `first` the one of the lower half; its operations are named, for several kernels must round alike.
__device__ __forceinline__ float rotated(float value, float partner, float2 angle, bool first) {
    float across = partner * angle.y;
    return fmaf(value, angle.x, first ? -across : across);
}

// Floats as integers in the same order, and back.
__device__ __forceinline__ u32 key_of(float v) {
    u32 u = __float_as_uint(v);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}
__device__ __forceinline__ float of_key(u32 u) {
    return __uint_as_float(u & 0x80000000u ? u & 0x7fffffffu : ~u);
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }
