// Products of packed rows with many tokens: a warp owns 16 rows and multiplies them by up to 64 tokens whose values
// pass through shared memory, 64 inputs at a time, four such stages in flight; those of up to eight lie there at once. Weights go from global memory to the
// registers in which the tensor cores want them, as in product.cuh; sums are made in the same order, so a row's
// numbers are those of the kernels for few tokens.
#pragma once
#include "product.cuh"

#define WIDE_TOKENS 64
#define STAGES 4
#define STAGE_INPUTS 64

// One stage of activations. A token's pieces of 16 bytes change halves with every other token, so that the lanes of an
// operand meet different banks.
struct Stage {
    uint4 x[WIDE_TOKENS][STAGE_INPUTS / 8];
};

__device__ __forceinline__ u32 piece_place(u32 token, u32 piece) { return piece ^ token % 2 * 4; }

// Starts the copy of stage `s` of the first `count` tokens, by all 256 threads of a block.
__device__ __forceinline__ void fetch_stage(Stage& to, const Halves& x, u32 inputs, const u32* token, u32 count, u32 s) {
    u32 pieces = min((u32)STAGE_INPUTS, inputs - STAGE_INPUTS * s) / 8;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 n = (threadIdx.x + 256 * i) / 8, piece = threadIdx.x % 8;
        if (n < count && piece < pieces)
            copy_16(&to.x[n][piece_place(n, piece)], x.at + (u64)token[n] * x.inputs + STAGE_INPUTS * s + 8 * piece);
    }
}

// acc += 32 inputs (step u of the stage) of 16 rows times the first 8·N tokens.
template <int N> __device__ __forceinline__ void step_of(const u32 w[2][4], const Stage& x, u32 u, float acc[8][4]) {
    u32 g = threadIdx.x % 32 / 4, j = threadIdx.x % 4, piece = piece_place(g, 4 * u + j);
#pragma unroll
    for (int n = 0; n < N; n++) {
        const uint4 b = x.x[8 * n + g][piece];
        mma_halves(acc[n], w[0], b.x, b.y);
        mma_halves(acc[n], w[1], b.z, b.w);
    }
}

// The same for the first `tiles` eights, or a few more.
__device__ __forceinline__ void wide_step(const u32 w[2][4], const Stage& x, u32 u, u32 tiles, float acc[8][4]) {
    if (tiles > 4) step_of<8>(w, x, u, acc);
    else if (tiles > 2) step_of<4>(w, x, u, acc);
    else if (tiles > 1) step_of<2>(w, x, u, acc);
    else if (tiles > 0) step_of<1>(w, x, u, acc);
}

// Where a part ends, its sum is added to the total.
struct Parts {
    u32 blocks, p;
    __device__ __forceinline__ Parts(u32 blocks) : blocks(blocks), p(0) { skip(0); }
    __device__ __forceinline__ void skip(u32 done) {
        while (p < PARTS && part_start(p + 1, blocks) <= done) p++;
    }
    template <class P, int N> __device__ __forceinline__ void close(u32 done, float acc[][4], float total[][4]) {
        if (p >= PARTS || part_start(p + 1, blocks) != done) return;
        skip(done);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) total[n][i] += acc[n][i] * unit_of<P>(), acc[n][i] = 0;
    }
};

// Inputs of eight tokens that the stages hold at once.
#define FEW_INPUTS (STAGES * STAGE_INPUTS * WIDE_TOKENS / 8)

// total[0] += 16 rows times up to eight tokens, which lie in shared memory as the lanes read them, so that nobody waits
// but for weights.
template <class P>
__device__ __forceinline__ void few_product(const u8* rows, bool mine, const Halves& x, u32 inputs, const u32* token,
                                            u32 count, uint4* held_inputs, float total[4]) {
    u32 lane = threadIdx.x % 32, blocks = inputs / P::INPUTS;
    float acc[4] = {0, 0, 0, 0};
    Parts parts(blocks);
    // Two large blocks are on their way, or several small ones.
    const u32 DEEP = sizeof(P) <= 48 ? 6 : 2, STEPS = P::INPUTS / 32, ROUND = FEW_INPUTS / P::INPUTS / DEEP * DEEP;
    P held[DEEP] = {};
#pragma unroll
    for (u32 d = 0; d < DEEP; d++)
        if (mine && d < blocks) held[d].load(rows + (u64)d * P::BYTES, lane);
#pragma unroll 1
    for (u32 first = 0; first < blocks; first += ROUND) {
        u32 some = min(ROUND, blocks - first);
        __syncthreads();
        for (u32 i = threadIdx.x; i < some * STEPS * 32; i += 256) {
            u32 n = i % 32 / 4, k = first * P::INPUTS + i / 32 * 32 + 8 * (i % 4);
            if (n < count) copy_16(held_inputs + i, x.at + (u64)token[n] * x.inputs + k);
        }
        copies_end();
        copies_wait<0>();
        __syncthreads();
        if (!mine) continue;
#pragma unroll 1
        for (u32 at = 0; at < some; at += DEEP) {
#pragma unroll
            for (u32 d = 0; d < DEEP; d++) {
                u32 block = first + at + d;
                if (at + d >= some) break;
#pragma unroll
                for (u32 t = 0; t < STEPS; t++) {
                    u32 w[2][4];
                    operands(held[d], (int)t, w);
                    const uint4 b = held_inputs[((at + d) * STEPS + t) * 32 + lane];
                    mma_halves(acc, w[0], b.x, b.y);
                    mma_halves(acc, w[1], b.z, b.w);
                }
                if (block + DEEP < blocks) held[d].load(rows + (u64)(block + DEEP) * P::BYTES, lane);
                parts.close<P, 1>(block + 1, &acc, (float(*)[4])total);
            }
        }
    }
    __syncthreads();
}

// total += 16 rows (`rows`: the tile's first block) times up to 64 tokens. All threads of a block of 256 call it
// together; a warp without rows passes those of another and `mine` false. x.inputs is the length of a row of
// activations, of which the first `inputs` count.
template <class P>
__device__ __forceinline__ void wide_product(const u8* rows, bool mine, const Halves& x, u32 inputs, const u32* token,
                                             u32 count, Stage* stages, float total[8][4]) {
    const u32 STEPS = STAGE_INPUTS / 32;
    u32 lane = threadIdx.x % 32, blocks = inputs / P::INPUTS, last = (inputs + STAGE_INPUTS - 1) / STAGE_INPUTS;
    u32 tiles = mine ? (count + 7) / 8 : 0;
    float acc[8][4];
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[n][i] = 0;
    if (count <= 8) return few_product<P>(rows, mine, x, inputs, token, count, stages[0].x[0], total[0]);
    Parts parts(blocks);
    for (u32 s = 0; s < STAGES - 1; s++) {
        if (s < last) fetch_stage(stages[s], x, inputs, token, count, s);
        copies_end();
    }
    // The stage that is needed now is there; the one that is read no more is filled again.
    auto turn = [&](u32 s) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        u32 next = s + STAGES - 1;
        if (next < last) fetch_stage(stages[next % STAGES], x, inputs, token, count, next);
        copies_end();
    };
    if (P::INPUTS == 256) {
        P held = {};
#pragma unroll 1
        for (u32 at = 0; at < blocks; at++) {
            held.load(rows + (u64)at * P::BYTES, lane);
            if (at + 1 < blocks && 128 * lane < P::BYTES) fetch_ahead(rows + (u64)(at + 1) * P::BYTES + 128 * lane);
#pragma unroll
            for (u32 part = 0; part < 256 / STAGE_INPUTS; part++) {
                u32 s = at * (256 / STAGE_INPUTS) + part;
                turn(s);
#pragma unroll
                for (u32 u = 0; u < STEPS; u++) {
                    u32 w[2][4];
                    operands(held, (int)(part * STEPS + u), w);
                    wide_step(w, stages[part % STAGES], u, tiles, acc);
                }
            }
            parts.close<P, 8>(at + 1, acc, total);
        }
    } else {
#pragma unroll 1
        for (u32 s = 0; s < last; s++) {
            turn(s);
#pragma unroll 1
            for (u32 u = 0; u < STEPS && STEPS * s + u < blocks; u++) {
                P held = {};
                held.load(rows + (u64)(STEPS * s + u) * P::BYTES, lane);
                u32 w[2][4];
                operands(held, 0, w);
                wide_step(w, stages[s % STAGES], u, tiles, acc);
                parts.close<P, 8>(STEPS * s + u + 1, acc, total);
            }
        }
    }
    copies_wait<0>();
    __syncthreads();
}
