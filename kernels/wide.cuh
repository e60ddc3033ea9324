// Products of packed rows with many tokens: a warp owns 16 rows and multiplies them by 64 tokens whose quantised values
// pass through shared memory, 128 inputs at a time, three such stages in flight. Weights go from global memory to the
// registers in which the tensor cores want them, as in product.cuh; sums are made in the same order, so a row's
// numbers are those of the kernels for few tokens.
#pragma once
#include "product.cuh"

#define WIDE_TOKENS 64
#define STAGES 3

// One stage of activations, laid out so that the lanes of an operand meet different banks.
struct Stage {
    u8 q[WIDE_TOKENS][160];         // 128 bytes of a token, as in Quantised
    float2 all[4][WIDE_TOKENS];     // of each 32: d, d·Σq
    float2 halves[4][WIDE_TOKENS];  // d·Σ of the first 16, of the others
};

// Starts the copy of stage `s`, by all 256 threads of a block.
template <int SUB> __device__ __forceinline__ void fetch_stage(Stage& to, const Quantised& x, u32 inputs, const u32* token,
                                            u32 s) {
    u32 steps = min(4u, inputs / 32 - 4 * s);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 piece = threadIdx.x + 256 * i, n = piece / 8, at = piece % 8;
        if (at < 2 * steps) copy_16(&to.q[n][16 * at], x.q + (u64)token[n] * x.inputs + 128 * s + 16 * at);
    }
    u32 n = threadIdx.x / 4, t = threadIdx.x % 4;
    if (t < steps) {
        const float4* side = x.side + (u64)token[n] * (x.inputs / 32) + 4 * s + t;
        copy_8(&to.all[t][n], side);
        if (SUB == 16) copy_8(&to.halves[t][n], (const float2*)side + 1);
    }
}

// acc += 32 inputs (step u of the stage) of 16 rows times the first `pairs`·16 tokens.
template <int SUB>
__device__ __forceinline__ void wide_step(const u32 a[4], const Scale& first, const Scale& second, const Stage& x,
                                          u32 u, u32 pairs, float acc[8][4]) {
    u32 g = threadIdx.x % 32 / 4, j = threadIdx.x % 4;
#pragma unroll
    for (int two = 0; two < 4; two++) {
        if ((u32)two >= pairs) break;
#pragma unroll
        for (int n = 2 * two; n < 2 * two + 2; n++) {
            const uint2 b = *(const uint2*)&x.q[8 * n + g][32 * u + 8 * j];
            const float4 s = *(const float4*)&x.all[u][8 * n + 2 * j];
            const float d[2] = {s.x, s.z}, all[2] = {s.y, s.w};
            int sum[4], more[4];
            float4 h = s;
            if (SUB == 16) {
                h = *(const float4*)&x.halves[u][8 * n + 2 * j];
                mma_k16(sum, a[0], a[1], b.x);
                mma_k16(more, a[2], a[3], b.y);
            } else {
                mma_k32(sum, a, b.x, b.y);
            }
            const float low[2] = {h.x, h.z}, high[2] = {h.y, h.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                // The operations of block_product, by name.
                acc[n][i] = fmaf(d[i % 2] * first.a[i / 2], (float)sum[i], acc[n][i]);
                acc[n][i] = fmaf(first.b[i / 2], SUB == 16 ? low[i % 2] : all[i % 2], acc[n][i]);
                if (SUB == 16) {
                    acc[n][i] = fmaf(d[i % 2] * second.a[i / 2], (float)more[i], acc[n][i]);
                    acc[n][i] = fmaf(second.b[i / 2], high[i % 2], acc[n][i]);
                }
            }
        }
    }
}

template <class P>
__device__ __forceinline__ void wide_packed_step(const P& pack, int t, const Stage& x, u32 u, u32 pairs,
                                                 float acc[8][4]) {
    u32 a[4];
    pack.codes(t, a);
    Scale first = pack.scale(t, 0), second = P::SUB == 16 ? pack.scale(t, 1) : first;
    wide_step<P::SUB>(a, first, second, x, u, pairs, acc);
}

// Where a part ends, its sum is added to the total.
struct Parts {
    u32 blocks, p;
    __device__ __forceinline__ Parts(u32 blocks) : blocks(blocks), p(0) { skip(0); }
    __device__ __forceinline__ void skip(u32 done) {
        while (p < PARTS && part_start(p + 1, blocks) <= done) p++;
    }
    __device__ __forceinline__ void close(u32 done, float acc[8][4], float total[8][4]) {
        if (p >= PARTS || part_start(p + 1, blocks) != done) return;
        skip(done);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) total[n][i] += acc[n][i], acc[n][i] = 0;
    }
};

// total = 16 rows (`rows`: the tile's first block) times up to 64 tokens. All threads of a block of 256 call it
// together; a warp without rows passes those of another and `mine` false. x.inputs is the length of a row of activations, of which the first
// `inputs` count.
template <class P>
__device__ __forceinline__ void wide_product(const u8* rows, bool mine, const Quantised& x, u32 inputs,
                                             const u32* token, u32 count, Stage* stages, float total[8][4]) {
    u32 lane = threadIdx.x % 32, blocks = inputs / P::INPUTS, last = (inputs + 127) / 128;
    u32 pairs = mine ? (count + 15) / 16 : 0;
    float acc[8][4];
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) total[n][i] = 0, acc[n][i] = 0;
    Parts parts(blocks);
    for (u32 s = 0; s < STAGES - 1; s++) {
        if (s < last) fetch_stage<P::SUB>(stages[s], x, inputs, token, s);
        copies_end();
    }
    if (P::INPUTS == 256) {
        P held = {};
#pragma unroll 1
        for (u32 at = 0; at < blocks; at++) {
            held.load(rows + (u64)at * P::BYTES, lane);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 s = 2 * at + half;
                copies_wait();
                __syncthreads();
                if (s + STAGES - 1 < last)
                    fetch_stage<P::SUB>(stages[(s + STAGES - 1) % STAGES], x, inputs, token, s + STAGES - 1);
                copies_end();
#pragma unroll
                for (int u = 0; u < 4; u++)
                    wide_packed_step(held, 4 * half + u, stages[s % STAGES], u, pairs, acc);
            }
            parts.close(at + 1, acc, total);
        }
    } else {
#pragma unroll 1
        for (u32 s = 0; s < last; s++) {
            copies_wait();
            __syncthreads();
            if (s + STAGES - 1 < last)
                fetch_stage<P::SUB>(stages[(s + STAGES - 1) % STAGES], x, inputs, token, s + STAGES - 1);
            copies_end();
#pragma unroll 1
            for (u32 u = 0; u < 4 && 4 * s + u < blocks; u++) {
                P held = {};
                held.load(rows + (u64)(4 * s + u) * P::BYTES, lane);
                wide_packed_step(held, 0, stages[s % STAGES], u, pairs, acc);
                parts.close(4 * s + u + 1, acc, total);
            }
        }
    }
    __syncthreads();
}
