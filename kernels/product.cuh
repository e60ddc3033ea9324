// Products of packed rows with activations: 16 rows by 8·NT tokens a warp, on tensor cores in halves, sums in floats.
//
// The inputs of a row are cut into PARTS parts; each part is summed in order of its blocks, the parts in order after
// that. Which warp sums which part differs between the kernels, the order does not: a row's number is the same at
// every batch size.
#pragma once
#include "named.cuh"

#define PARTS 8

// Activations [tokens][inputs] as halves, each 32 in the order of operand B: places 8j + 4·m .. + 3 are
// inputs 8j + 4·m + {0, 2, 1, 3}, so that eight inputs side by side are one lane's.
struct Halves {
    const u16* at;
    u32 inputs;
};

__device__ __forceinline__ u32 half_place(u32 k) {
    return k / 4 * 4 + k % 2 * 2 + k % 4 / 2;
}

// The nearest half, or the largest one of its sign; what is no number stays none.
__device__ __forceinline__ u16 to_half(float v) {
    return float_to_half(v > 65504.0f ? 65504.0f : v < -65504.0f ? -65504.0f : v);
}

// Value k of row `row`.
__device__ __forceinline__ void put_half(float v, u16* halves, u32 inputs, u32 row, u32 k) {
    halves[(u64)row * inputs + half_place(k)] = to_half(v);
}

// First block of part p of n blocks.
__device__ __forceinline__ u32 part_start(u32 p, u32 n) { return p * n / PARTS; }

// The activations of a lane's columns, eight tokens a tile. ONE: a single token stands in every column.
template <int NT, bool ONE> struct Columns {
    const u16* row[NT];

    // A single row.
    __device__ __forceinline__ Columns(const u16* halves) { row[0] = halves + 8 * (threadIdx.x % 4); }
    // `token`: the row of each column.
    __device__ __forceinline__ Columns(const Halves& x, const u32* token) {
        u32 lane = threadIdx.x % 32, g = lane / 4, j = lane % 4;
#pragma unroll
        for (int n = 0; n < NT; n++) row[n] = x.at + (u64)token[ONE ? 0 : 8 * n + g] * x.inputs + 8 * j;
    }
    template <class P> __device__ __forceinline__ void part(u32, u32) {}
    template <class P> __device__ __forceinline__ void fetch(u32) const {}
    // What tile n reads of step t of a block.
    template <class P> __device__ __forceinline__ uint4 at(int n, u32 block, int t) const {
        return *(const uint4*)(row[n] + (u64)block * P::INPUTS + 32 * t);
    }
};

// The same of a single token and a part of long rows, which a warp fetches 256 inputs at a time into shared memory of its own, with
// the weights that they are multiplied by. Read by the lanes from where they lie, each 32 would be waited for.
struct Fetched {
    const u16* row;
    uint4* own;  // [32]
    u32 from = 0, end = 0;

    __device__ __forceinline__ Fetched(const u16* row, uint4* own) : row(row), own(own) {}
    template <class P> __device__ __forceinline__ void part(u32 first, u32 behind) { from = first, end = behind * P::INPUTS; }
    template <class P> __device__ __forceinline__ void fetch(u32 block) const {
        const u32 EACH = 256 / P::INPUTS;
        if ((block - from) % EACH) return;
        u32 k = block * P::INPUTS + 8 * (threadIdx.x % 32);
        const uint4 v = k < end ? *(const uint4*)(row + k) : make_uint4(0, 0, 0, 0);
        __syncwarp();
        own[threadIdx.x % 32] = v;
        __syncwarp();
    }
    template <class P> __device__ __forceinline__ uint4 at(int, u32 block, int t) const {
        return own[(block - from) % (256 / P::INPUTS) * (P::INPUTS / 8) + 4 * t + threadIdx.x % 4];
    }
};

// acc[n] += 1 / `unit_of` times rows of one block times the tokens; acc[n][0..1]: row g, columns 2j and 2j + 1 of tile n,
// acc[n][2..3]: row g + 8.
template <class P, int NT, class X>
__device__ __forceinline__ void block_product(const P& pack, const X& x, u32 block, float acc[NT][4]) {
#pragma unroll
    for (int t = 0; t < P::INPUTS / 32; t++) {
        u32 w[2][4];
        operands(pack, t, w);
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const uint4 b = x.template at<P>(n, block, t);
            mma_halves(acc[n], w[0], b.x, b.y);
            mma_halves(acc[n], w[1], b.z, b.w);
        }
    }
}

// The first DEEP blocks of part `p` of a tile, as far as it has so many, on their way.
template <class P, int DEEP>
__device__ __forceinline__ void hold(const u8* tile, u32 p, u32 blocks, P (&held)[DEEP]) {
    u32 at = part_start(p, blocks), end = part_start(p + 1, blocks);
#pragma unroll
    for (int d = 0; d < DEEP; d++)
        if (at + d < end) held[d].load(tile + (u64)(at + d) * P::BYTES, threadIdx.x % 32);
}

// acc = part `p` of the tile's rows times tokens (x: columns, or what is fetched); `held` has its first blocks already.
template <class P, int NT, int DEEP, class X>
__device__ __forceinline__ void part_product(const u8* tile, u32 p, u32 blocks, P (&held)[DEEP], X x, float acc[NT][4]) {
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[n][i] = 0;
    u32 from = part_start(p, blocks), end = part_start(p + 1, blocks);
    x.template part<P>(from, end);
#pragma unroll 1
    for (u32 at = from; at < end; at += DEEP) {
#pragma unroll
        for (int d = 0; d < DEEP; d++) {
            if (at + d >= end) break;
            if (DEEP == 1 && at > from) held[d].load(tile + (u64)at * P::BYTES, threadIdx.x % 32);
            x.template fetch<P>(at + d);
            block_product<P, NT>(held[d], x, at + d, acc);
            if (DEEP > 1 && at + d + DEEP < end) held[d].load(tile + (u64)(at + d + DEEP) * P::BYTES, threadIdx.x % 32);
        }
    }
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[n][i] *= unit_of<P>();
}

// All parts of a tile by one warp, in order.
template <class P, int NT, bool ONE, int DEEP>
__device__ __forceinline__ void tile_product(const u8* tile, u32 blocks, P (&held)[DEEP], const Columns<NT, ONE>& x,
                                             float total[NT][4]) {
#pragma unroll 1
    for (u32 p = 0; p < PARTS; p++) {
        float acc[NT][4];
        if (p > 0) hold(tile, p, blocks, held);
        part_product<P, NT>(tile, p, blocks, held, x, acc);
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) total[n][i] = p == 0 ? acc[n][i] : total[n][i] + acc[n][i];
    }
}

// Value i of a row of floats.
template <int PACKING> __device__ __forceinline__ float float_at(const u8* weights, u64 i) {
    if (PACKING == F32) return ((const float*)weights)[i];
    u16 v = ((const u16*)weights)[i];
    return PACKING == F16 ? half_to_float(v) : bf16_to_float(v);
}

// Rows of activations as floats; n: the place of the token among those that are computed together.
struct PlainRows {
    const float* x;
    u32 inputs;
    __device__ __forceinline__ float4 four(int, u32 token, u32 k) const { return *(const float4*)(x + (u64)token * inputs + k); }
    __device__ __forceinline__ float one(int, u32 token, u32 k) const { return x[(u64)token * inputs + k]; }
};

// Half `p` of the inputs of one row of floats, by one warp; of 32-bit ones the first 128·HELD are on their way before
// anything has to be waited for. Which lane sums what depends on the number of inputs alone.
template <int PACKING, int HELD> struct FloatPart {
    const u8* weights;
    u64 row;
    u32 inputs, first, end;
    bool fours;
    float4 held[HELD > 0 ? HELD : 1];

    __device__ __forceinline__ FloatPart(const u8* weights, u64 row, u32 inputs, u32 p)
        : weights(weights), row(row), inputs(inputs), fours(PACKING == F32 && inputs % 8 == 0) {
        u32 half = (inputs + 1) / 2;
        first = p * half, end = p == 0 ? half : inputs;
        if (!fours) return;
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            u32 k = first + 4 * (threadIdx.x % 32) + 128 * i;
            held[i] = k < end ? four(k) : make_float4(0, 0, 0, 0);
        }
    }
    __device__ __forceinline__ float4 four(u32 k) const { return *(const float4*)(weights + (row * inputs + k) * 4); }

    // acc[n] = Σ_k w[k]·x[token[n]][k]
    template <int TOKENS, class Rows>
    __device__ __forceinline__ void times(const Rows& x, const u32* token, float acc[TOKENS]) const {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (int n = 0; n < TOKENS; n++) acc[n] = 0;
        auto add = [&](const float4& w, u32 k) {
#pragma unroll
            for (int n = 0; n < TOKENS; n++) {
                const float4 v = x.four(n, token[n], k);
                acc[n] = fmaf(w.x, v.x, acc[n]);
                acc[n] = fmaf(w.y, v.y, acc[n]);
                acc[n] = fmaf(w.z, v.z, acc[n]);
                acc[n] = fmaf(w.w, v.w, acc[n]);
            }
        };
        if (fours) {
            u32 from = first + 4 * lane;
#pragma unroll
            for (int i = 0; i < HELD; i++)
                if (from + 128 * i < end) add(held[i], from + 128 * i);
#pragma unroll (TOKENS == 1 && HELD == 0 ? 4 : 1)
            for (u32 k = from + 128 * HELD; k < end; k += 128) add(four(k), k);
        } else {
#pragma unroll 2
            for (u32 k = first + lane; k < end; k += 32) {
                float w = float_at<PACKING>(weights, row * inputs + k);
#pragma unroll
                for (int n = 0; n < TOKENS; n++) acc[n] = fmaf(w, x.one(n, token[n], k), acc[n]);
            }
        }
#pragma unroll
        for (int n = 0; n < TOKENS; n++) acc[n] = warp_sum(acc[n]);
    }
};

template <int PACKING, int TOKENS>
__device__ __forceinline__ void float_part(const u8* weights, u64 row, u32 inputs, u32 p, const float* x,
                                           const u32* token, float acc[TOKENS]) {
    FloatPart<PACKING, 0>(weights, row, inputs, p).template times<TOKENS>(PlainRows{x, inputs}, token, acc);
}
