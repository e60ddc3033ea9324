// Rows by a block of 256 threads: in round r, thread i holds values 4i + 1024r .. + 3.
#pragma once
#include "product.cuh"

__device__ __forceinline__ float4 load_four(const float* from, u32 k, u32 width) {
    return k < width ? *(const float4*)(from + k) : make_float4(0, 0, 0, 0);
}

// Eight lanes with four values each quantise a block of 32, as `quantize_block` does; `q` and `side` are the row's.
// Every lane of the warp takes part; those with k ≥ width leave nothing.
__device__ __forceinline__ void quantize_four(float4 v, u8* q, float4* side, u32 k, u32 width) {
    float top = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
    for (int step = 1; step < 8; step *= 2) top = fmaxf(top, __shfl_xor_sync(FULL, top, step));
    float d = top / 127.0f, back = top > 0 ? 127.0f / top : 0.0f;
    float a = rintf(v.x * back), b = rintf(v.y * back), c = rintf(v.z * back), e = rintf(v.w * back);
    float half = a + b + (c + e);
    half += __shfl_xor_sync(FULL, half, 1);
    half += __shfl_xor_sync(FULL, half, 2);
    float other = __shfl_xor_sync(FULL, half, 4);
    if (k >= width) return;
    u32 word = ((u32)(int)a & 255) | ((u32)(int)b & 255) << 8 | ((u32)(int)c & 255) << 16 | (u32)(int)e << 24;
    *(u32*)(q + k / 32 * 32 + k / 4 % 4 * 8 + k / 16 % 2 * 4) = word;
    if (k % 32 == 0) side[k / 32] = make_float4(d, d * (half + other), d * half, d * other);
}
