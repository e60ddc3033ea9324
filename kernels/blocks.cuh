// Keys and values as blocks of 32 with a scale each: keys as q8_0 of a head whose values were mixed, values as q4_0.
//
// The blocks are GGUF's, codes and scales apart so that codes are read eight at a time. A page holds the codes of 64
// positions, [64][kv_heads][dim] bytes of keys or [64][kv_heads][dim / 32][16] of values (the low half of a byte is value j of
// its block, the high half value j + 16), and behind them the scales, [64][kv_heads][dim / 32] halves. Whoever reads a
// page sees code times scale, rounded once to a half.
#pragma once
#include "product.cuh"

// Hadamard's matrix times the head, over the largest power of two that divides it; a second time it is the head again.
// What one value has too much is spread over all, and products of two heads stay what they were. Lane holds values lane,
// lane + 32 …, zeros from `dim` on.
__device__ __forceinline__ void mix_head(float x[8], u32 dim) {
    u32 lane = threadIdx.x % 32, size = dim & (0 - dim);
#pragma unroll
    for (int step = 1; step < 32; step *= 2)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float other = __shfl_xor_sync(FULL, x[i], step);
            x[i] = lane & step ? other - x[i] : x[i] + other;
        }
#pragma unroll
    for (int step = 1; step < 8; step *= 2) {
        if (32 * (u32)step >= size) break;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i & step) continue;
            float a = x[i], b = x[i + step];
            x[i] = a + b, x[i + step] = a - b;
        }
    }
    float scale = 1.0f / sqrtf((float)size);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] *= scale;
}

// One head of one position.
template <int BITS> struct Place {
    u8* codes;
    u16* scales;
    // `row`: position in the page times the KV heads, plus the head.
    __device__ __forceinline__ Place(u8* pages, u32 page, u32 row, u32 kv_heads, u32 dim) {
        u32 codes_all = 64 * kv_heads * dim * BITS / 8;
        u8* at = pages + (u64)page * (codes_all + 64 * kv_heads * dim / 16);
        codes = at + (u64)row * (dim * BITS / 8);
        scales = (u16*)(at + codes_all) + (u64)row * (dim / 32);
    }
};

// A mixed key, by a warp; x becomes what a reader sees.
__device__ __forceinline__ void put_blocks(const Place<8>& to, float x[8], u32 dim, bool store) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (32 * (u32)i >= dim) break;
        float top = warp_max(fabsf(x[i]));
        u16 scale = float_to_half(top / 127.0f);
        int code = (int)roundf(x[i] * (top > 0 ? 127.0f / top : 0));
        if (store) to.codes[32 * i + lane] = (u8)code;
        if (store && lane == 0) to.scales[i] = scale;
        x[i] = half_to_float(float_to_half(half_to_float(scale) * (float)code));
    }
}

// The same of a value. The one that is farthest from zero becomes -8, of two that are the positive one.
__device__ __forceinline__ void put_blocks(const Place<4>& to, float x[8], u32 dim, bool store) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (32 * (u32)i >= dim) break;
        float high = warp_max(x[i]), low = -warp_max(-x[i]), top = high >= -low ? high : low;
        u16 scale = float_to_half(top / -8.0f);
        u32 code = (u32)fminf(fmaf(x[i], top != 0 ? -8.0f / top : 0, 8.5f), 15.0f);
        u32 upper = __shfl_xor_sync(FULL, code, 16);
        if (store && lane < 16) to.codes[16 * i + lane] = (u8)(code | upper << 4);
        if (store && lane == 0) to.scales[i] = scale;
        x[i] = half_to_float(float_to_half(half_to_float(scale) * (float)((int)code - 8)));
    }
}

// Eight values of a head as they lie in a cache of halves, or of blocks: `eighth` says which of the head's.
template <int BITS> struct Eight {
    uint2 codes;
    u32 scale;

    __device__ __forceinline__ void load(const Place<BITS>& from, u32 eighth) {
        u32 at = BITS == 8 ? 8 * eighth : eighth / 4 * 16 + eighth % 2 * 8;
        codes = *(const uint2*)(from.codes + at);
        scale = from.scales[eighth / 4];
    }

    // A code under the exponent of 1,024 is that half plus the code.
    __device__ __forceinline__ uint4 halves(u32 eighth) const {
        u32 by = scale | scale << 16, zero = BITS == 8 ? 0x64806480 : 0x64086408, a = codes.x, b = codes.y;
        if (BITS == 8) a ^= 0x80808080, b ^= 0x80808080;
        else if (eighth % 4 < 2) a &= 0x0f0f0f0f, b &= 0x0f0f0f0f;
        else a = a >> 4 & 0x0f0f0f0f, b = b >> 4 & 0x0f0f0f0f;
        return make_uint4(mul_halves(sub_halves(pick_bytes(a, 0x64646464, 0x4140), zero), by),
                          mul_halves(sub_halves(pick_bytes(a, 0x64646464, 0x4342), zero), by),
                          mul_halves(sub_halves(pick_bytes(b, 0x64646464, 0x4140), zero), by),
                          mul_halves(sub_halves(pick_bytes(b, 0x64646464, 0x4342), zero), by));
    }
};
