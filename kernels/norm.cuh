// Rows by a block of 256 threads: in round r, thread i holds values 4i + 1024r .. + 3.
#pragma once
#include "product.cuh"

__device__ __forceinline__ float4 load_four(const float* from, u32 k, u32 width) {
    return k < width ? *(const float4*)(from + k) : make_float4(0, 0, 0, 0);
}

// Values k .. k + 3 of a row, k a multiple of four.
__device__ __forceinline__ void put_four(float4 v, u16* row, u32 k) {
    u32 low = to_half(v.x) | (u32)to_half(v.z) << 16, high = to_half(v.y) | (u32)to_half(v.w) << 16;
    *(uint2*)(row + half_place(k)) = make_uint2(low, high);
}
