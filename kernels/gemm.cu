// out[t][row] = Σ_k W[row][k]·x[t][k] for many tokens, with the bits of matmul.cu; added to out where `add` says.
//
// matmul_wide: packed matrices, 128 rows (x) by 64 tokens (y) a block; _low: with what adapters add. matmul_floats: matrices of floats, a warp 8 rows
// by 8 tokens. Limits: as in matmul.cu. Shared memory: 33 KB.
#include "matmul.cuh"
#include "wide.cuh"

// Blocks of inner values of a tile of tokens: eight units each.
__device__ __forceinline__ u32 low_blocks(const Low& l) { return (low_units(l) + 7) / 8; }

// Inner values of adapters for 64 tokens, a unit a warp.
__device__ __forceinline__ void wide_inner(const LowMatmulArgs& a, Stage* stages, u32* token, u32* group) {
    u32 lane = threadIdx.x % 32, first = WIDE_TOKENS * blockIdx.y, count = min(a.tokens - first, (u32)WIDE_TOKENS);
    if (threadIdx.x < WIDE_TOKENS) {
        token[threadIdx.x] = first + min(threadIdx.x, count - 1);
        group[threadIdx.x] = group_of(a.low, token[threadIdx.x]);
    }
    const LowUnit unit(a.low, 8 * blockIdx.x + threadIdx.x / 32, a.inputs);
    __syncthreads();
    wait_previous();
    bool any = group[lane] == unit.group || group[lane + 32] == unit.group;
    bool mine = __ballot_sync(FULL, any) && unit.rows;
    float total[8][4] = {};
    // A warp without rows reads something: it has as many activations.
    const u8* rows = mine ? unit.rows : (const u8*)a.halves.get();
    if (__syncthreads_count(mine)) wide_product<PackH16>(rows, mine, {a.halves, a.inputs}, a.inputs, token, count, stages, total);
    if (mine) {
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 t = 8 * n + lane % 4 * 2 + i % 2, r = 16 * unit.rank + lane / 4 + i / 2 * 8;
                if (t < count && group[t] == unit.group)
                    inner_of(a.low, a.tokens, unit.part, first + t)[half_place(r)] = to_half(total[n][i]);
            }
    }
    __syncthreads();
    if (threadIdx.x == 0) arrive(&a.low.arrived[blockIdx.y]);
}

// What adapters add to a warp's 16 rows, behind their sums.
__device__ __forceinline__ void wide_add(const LowMatmulArgs& a, u32 part, u32 tile, bool mine, const u32* token, u32* group, u32 count,
                                         float (&total)[8][4]) {
    if (part == NO_ADAPTER) return;
    if (threadIdx.x < WIDE_TOKENS) group[threadIdx.x] = group_of(a.low, token[threadIdx.x]);
    if (threadIdx.x == 0) await(&a.low.arrived[blockIdx.y], low_blocks(a.low));
    __syncthreads();
    if (!mine) return;
    auto row = [&](int n) { return inner_of(a.low, a.tokens, part, token[8 * n + threadIdx.x % 32 / 4]); };
    low_wide(a.low, part, tile, count, group, row, total);
}

template <class P, class A>
__device__ __forceinline__ void wide(const A& a, u32 at, Stage* stages, u32* token, u32* group) {
    const Segment& s = a.segments[at];
    u32 lane = threadIdx.x % 32, first = WIDE_TOKENS * blockIdx.y;
    u32 tile = 8 * (blockIdx.x - s.unit) + threadIdx.x / 32, count = min(a.tokens - first, (u32)WIDE_TOKENS);
    bool mine = 16 * tile < s.rows;
    if (threadIdx.x < WIDE_TOKENS) token[threadIdx.x] = first + min(threadIdx.x, count - 1);
    open_books(s.packing, F32);
    __syncthreads();
    wait_previous();
    const u8* rows = s.weights + (u64)(mine ? tile : 0) * (a.inputs / P::INPUTS) * P::BYTES;
    float total[8][4] = {};
    wide_product<P>(rows, mine, {a.halves, a.inputs}, a.inputs, token, count, stages, total);
    if constexpr (A::LOW) wide_add(a, a.low.of[at], tile, mine, token, group, count, total);
    if (!mine) return;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 t = 8 * n + lane % 4 * 2 + i % 2, row = 16 * tile + lane / 4 + i / 2 * 8;
            if (t < count && row < s.rows) {
                float* to = s.out + (u64)(first + t) * s.stride + row;
                *to = a.add ? *to + total[n][i] : total[n][i];
            }
        }
}

__device__ __forceinline__ u32 segment_at(const MatmulArgs& a) {
    u32 i = 0;
    while (i + 1 < a.count && blockIdx.x >= a.segments[i + 1].unit) i++;
    return i;
}

template <class A> __device__ __forceinline__ void wide_any(const A& a) {
    __shared__ Stage stages[STAGES];
    __shared__ u32 token[WIDE_TOKENS], group[A::LOW ? WIDE_TOKENS : 1];
    if constexpr (A::LOW)
        if (blockIdx.x < low_blocks(a.low)) return wide_inner(a, stages, token, group);
    u32 at = segment_at(a);
#define WIDE(P) return wide<P>(a, at, stages, token, group)
    switch (a.segments[at].packing) {
        TILE_CASES(WIDE)
    }
}
KERNEL(__launch_bounds__(256, 2) matmul_wide, MatmulArgs) { wide_any(a); }
KERNEL(__launch_bounds__(256, 2) matmul_wide_low, LowMatmulArgs) { wide_any(a); }

#define FLOAT_ROWS 4
#define FLOAT_TOKENS 8

// Half `p` of the inputs of four rows times eight tokens, by the lanes and in the order of float_part.
template <int PACKING>
__device__ __forceinline__ void float_tile(const u8* weights, const u32* row, const float* x, const u32* token,
                                           u32 inputs, u32 p, float acc[FLOAT_ROWS * FLOAT_TOKENS]) {
    u32 lane = threadIdx.x % 32, half = (inputs + 1) / 2, end = p == 0 ? half : inputs;
#pragma unroll
    for (int i = 0; i < FLOAT_ROWS * FLOAT_TOKENS; i++) acc[i] = 0;
    if (PACKING == F32 && inputs % 8 == 0) {
#pragma unroll 1
        for (u32 k = p * half + 4 * lane; k < end; k += 128) {
            float4 w[FLOAT_ROWS];
#pragma unroll
            for (int r = 0; r < FLOAT_ROWS; r++) w[r] = *(const float4*)(weights + ((u64)row[r] * inputs + k) * 4);
#pragma unroll
            for (int n = 0; n < FLOAT_TOKENS; n++) {
                const float4 v = *(const float4*)(x + (u64)token[n] * inputs + k);
#pragma unroll
                for (int r = 0; r < FLOAT_ROWS; r++) {
                    float& sum = acc[r * FLOAT_TOKENS + n];
                    sum = fmaf(w[r].x, v.x, sum);
                    sum = fmaf(w[r].y, v.y, sum);
                    sum = fmaf(w[r].z, v.z, sum);
                    sum = fmaf(w[r].w, v.w, sum);
                }
            }
        }
    } else {
#pragma unroll 1
        for (u32 k = p * half + lane; k < end; k += 32) {
            float w[FLOAT_ROWS];
#pragma unroll
            for (int r = 0; r < FLOAT_ROWS; r++) w[r] = float_at<PACKING>(weights, (u64)row[r] * inputs + k);
#pragma unroll
            for (int n = 0; n < FLOAT_TOKENS; n++) {
                float v = x[(u64)token[n] * inputs + k];
#pragma unroll
                for (int r = 0; r < FLOAT_ROWS; r++)
                    acc[r * FLOAT_TOKENS + n] = fmaf(w[r], v, acc[r * FLOAT_TOKENS + n]);
            }
        }
    }
}

// A block of 8 warps: 16 rows (x) by 8 tokens (y); warps 0..3 the first half of the inputs, 4..7 the second.
template <int PACKING>
__device__ __forceinline__ void float_rows(const MatmulArgs& a, const Segment& s, float sums[8][32]) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, row[FLOAT_ROWS], token[FLOAT_TOKENS];
    u32 first = 16 * (blockIdx.x - s.unit) + warp % 4 * FLOAT_ROWS, from = FLOAT_TOKENS * blockIdx.y;
    for (u32 r = 0; r < FLOAT_ROWS; r++) row[r] = min(first + r, s.rows - 1);
    for (u32 n = 0; n < FLOAT_TOKENS; n++) token[n] = min(from + n, a.tokens - 1);
    float acc[32];
    float_tile<PACKING>(s.weights, row, a.x, token, a.inputs, warp / 4, acc);
    // The sums of warp_sum, 32 at once: after each step a lane keeps those whose number agrees with its own.
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
#pragma unroll
        for (int i = 0; i < step; i++) {
            bool upper = lane & step;
            float keep = upper ? acc[i + step] : acc[i], give = upper ? acc[i] : acc[i + step];
            acc[i] = keep + __shfl_xor_sync(FULL, give, step);
        }
    sums[warp][lane] = acc[0];
    __syncthreads();
    if (threadIdx.x >= 128) return;
    u32 r = threadIdx.x % 16, n = threadIdx.x / 16, at = r % 4 * FLOAT_TOKENS + n, out = 16 * (blockIdx.x - s.unit) + r;
    if (out >= s.rows || from + n >= a.tokens) return;
    float v = sums[r / 4][at] + sums[4 + r / 4][at];
    float* to = s.out + (u64)(from + n) * s.stride + out;
    *to = a.add ? *to + v : v;
}

KERNEL(__launch_bounds__(256, 2) matmul_floats, MatmulArgs) {
    __shared__ float sums[8][32];
    const Segment& s = a.segments[segment_at(a)];
    wait_previous();
#define FLOAT_ROWS_OF(P) return float_rows<P>(a, s, sums)
    switch (s.packing) {
        FLOAT_CASES(FLOAT_ROWS_OF)
    }
}
