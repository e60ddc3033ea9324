// What adapters add to products in floats, y += scale·B·(A·x), as every kernel that takes part sees it: whose adapter a row is
// under, and the factors of a matrix. The sums of a row depend on the row and its factors alone. Factors of halves: low.cuh.
#pragma once
#include "low.cuh"

// The factors of one matrix, or of one for each expert: A [experts][rank][inputs], B [experts][rank][outputs].
struct LowRank {
    Ptr<float> a, b;  // null: the adapter leaves the matrix as it is
    u32 rank;
    float scale;
};

// The adapter of each row.
struct Who {
    Ptr<LowRank> factors;  // [adapters][places]; null: no row has one
    Ptr<u32> adapter;      // of each slot
    Ptr<u32> slot;         // of each row of the pass
    Ptr<u32> rows;         // which of them are computed; null: all, in order
    u32 places, pad;
};

// The factors that row t has for the matrix at `place`; null if none.
__device__ __forceinline__ const LowRank* factors_of(const Who& w, u32 t, u32 place) {
    u32 adapter = w.adapter[w.slot[w.rows.at ? w.rows[t] : t]];
    if (adapter == NO_ADAPTER) return nullptr;
    const LowRank* f = w.factors.get() + (u64)adapter * w.places + place;
    return f->a.at ? f : nullptr;
}

// v + B·inner for one output, `b` being its first value and `stride` the distance to that of the next rank. The values of
// DEEP ranks are asked for together: one after the other each would cost a trip to memory.
template <int DEEP>
__device__ __forceinline__ float add_ranks(const float* b, u64 stride, const float* inner, u32 rank, float v) {
    u32 r = 0;
#pragma unroll 1
    for (; r + DEEP <= rank; r += DEEP, b += DEEP * stride) {
        float w[DEEP];
#pragma unroll
        for (u32 i = 0; i < DEEP; i++) w[i] = b[i * stride];
#pragma unroll
        for (u32 i = 0; i < DEEP; i++) v = fmaf(w[i], inner[r + i], v);
    }
#pragma unroll 1
    for (; r < rank; r++, b += stride) v = fmaf(*b, inner[r], v);
    return v;
}

// What is added to gate and up of the experts before they are joined.
struct Joint {
    Who who;
    Ptr<float> gate, up;  // scale·A·x of each pair [pairs][RANK_MAX]
    u32 gate_place, up_place, shared_gate_place, shared_up_place;
};

__device__ __forceinline__ float join_one(const Who& who, u32 t, u32 place, const float* inner, u32 expert, u32 width,
                                          u32 row, float v) {
    const LowRank* f = factors_of(who, t, place);
    if (!f) return v;
    return add_ranks<8>(f->b.get() + (u64)expert * f->rank * width + row, width, inner, f->rank, v);
}

// Adds to gate and up of row `row` (of `width`) for a pair of token t and an expert; the shared one has a single matrix.
__device__ __forceinline__ void join(const Joint& j, u32 t, u32 pair, bool shared, u32 expert, u32 width, u32 row,
                                     float& gate, float& up) {
    u64 at = (u64)pair * RANK_MAX;
    gate = join_one(j.who, t, shared ? j.shared_gate_place : j.gate_place, j.gate + at, expert, width, row, gate);
    up = join_one(j.who, t, shared ? j.shared_up_place : j.up_place, j.up + at, expert, width, row, up);
}
