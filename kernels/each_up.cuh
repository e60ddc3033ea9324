// The router, and gate and up of the experts that few tokens choose by it.
#pragma once
#include "each.cuh"
#include "pick.cuh"

// Shared memory of a block: sums of gate and up by parts, of two tiles, of which one is joined while the next is multiplied, or of
// one for four tokens; or
// of four rows of the router by halves; or of a row that is normalised.
struct EachScratch {
    union {
        float sums[2][2][PARTS][16];
        float shared[2][PARTS][16][4];
        float floats[8][4];
        RowSums row;
    };
    uint4 halves[NORMED_INPUTS_MAX / 8];  // of a token that is normalised here
};

// acc[d] = part `p` of a tile of gate and of one of up times tokens, side by side; `held` has their first blocks.
template <class P, bool ONE>
__device__ __forceinline__ void pair_product(const u8* const (&tiles)[2], u32 p, u32 blocks, P (&held)[2],
                                             const Columns<1, ONE>& x, float (&acc)[2][4]) {
#pragma unroll
    for (int d = 0; d < 2; d++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[d][i] = 0;
    u32 from = part_start(p, blocks), end = part_start(p + 1, blocks);
#pragma unroll 1
    for (u32 at = from; at < end; at++) {
#pragma unroll
        for (int d = 0; d < 2; d++)
            if (at > from) held[d].load(tiles[d] + (u64)at * P::BYTES, threadIdx.x % 32);
#pragma unroll
        for (int t = 0; t < P::INPUTS / 32; t++) {
            const uint4 b = *(const uint4*)(x.row[0] + (u64)at * P::INPUTS + 32 * t);
#pragma unroll
            for (int d = 0; d < 2; d++) {
                u32 w[2][4];
                operands(held[d], t, w);
                mma_halves(acc[d], w[0], b.x, b.y);
                mma_halves(acc[d], w[1], b.z, b.w);
            }
        }
    }
#pragma unroll
    for (int d = 0; d < 2; d++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[d][i] *= unit_of<P>();
}

// Blocks that normalise a token for all others, unless each of these does.
__device__ __forceinline__ u32 norm_blocks(const EachArgs& a) { return a.norm.squares.at ? 0 : a.tokens; }
// Blocks that make logits, four rows of the router each.
__device__ __forceinline__ u32 router_blocks(const EachArgs& a) { return a.experts / 4 + 1; }

__device__ __forceinline__ void await_blocks(const u32* arrived, u32 blocks) {
    if (blocks == 0) return;
    if (threadIdx.x == 0) await(arrived, blocks);
    __syncthreads();
}

// Token t as its readers take it.
__device__ __forceinline__ void normalise(const EachArgs& a, u32 t, EachScratch& m) {
    float4 held[8], w[8];
#pragma unroll
    for (u32 r = 0; r < 8; r++) w[r] = load_four(a.norm.weights, 4 * threadIdx.x + 1024 * r, a.inputs);
    after_previous();
#pragma unroll
    for (u32 r = 0; r < 8; r++) held[r] = load_four(a.residual + (u64)t * a.inputs, 4 * threadIdx.x + 1024 * r, a.inputs);
    put_normalised(held, w, a.inputs, a.norm.eps, m.row, a.x + (u64)t * a.inputs, a.halves + (u64)t * a.inputs);
    __syncthreads();
    if (threadIdx.x == 0) arrive(&a.arrived[0]);
}

// The expert of token t at a place of the choice, by a warp.
__device__ __forceinline__ u32 choose(const EachArgs& a, u32 t, u32 place) {
    const float* logits = a.logits + (u64)t * (a.experts + 1);
    return a.experts <= 256 ? pick_one<8>(logits, a.experts, place) : pick_one<32>(logits, a.experts, place);
}

// The first block of a warp's part of a tile of gate and of one of up.
template <class P> __device__ __forceinline__ void hold_pair(const u8* const (&tiles)[2], u32 blocks, P (&held)[2]) {
    u32 warp = threadIdx.x / 32, at = part_start(warp, blocks);
#pragma unroll
    for (int d = 0; d < 2; d++)
        if (at < part_start(warp + 1, blocks)) held[d].load(tiles[d] + (u64)at * P::BYTES, threadIdx.x % 32);
}

// What its readers normalise of x: the inputs of a warp's part.
template <class P> __device__ __forceinline__ WarpHalves own_halves(const EachArgs& a) {
    u32 warp = threadIdx.x / 32, blocks = a.norm.squares.at ? a.inputs / P::INPUTS : 0;
    return WarpHalves(a.norm, part_start(warp, blocks) * P::INPUTS, part_start(warp + 1, blocks) * P::INPUTS);
}

// What a warp knows of adapters ahead of the wait: factors of its group for gate, or of warps from the fourth on for up, and whose
// the tokens of a lane's columns are.
struct RiseAhead {
    LowTiles own;
    u32 whose[2];

    __device__ __forceinline__ RiseAhead(const EachArgs&, u32) {}
    __device__ __forceinline__ RiseAhead(const LowEachArgs& a, u32 tile) {
        for (u32 i = 0; i < 2; i++) whose[i] = group_of(a.low, min(threadIdx.x % 4 * 2 + i, a.tokens - 1));
        own = low_ahead(a.low, threadIdx.x / 32 % 4, a.low.of[threadIdx.x / 128], tile);
    }

    // What adapters add to a tile of gate and up [2], as the lanes of a product have it; to be read behind a barrier.
    __device__ __forceinline__ float (*put(const LowEachArgs& a, u32 tile) const)[1][4][32] {
        __shared__ float adds[2][1][4][32];
        for (u32 d = 0; d < 2; d++) {
            u32 part = a.low.of[d];
            if (part == NO_ADAPTER) continue;
            auto row = [&](int) { return inner_of(a.low, a.tokens, part, min(threadIdx.x % 32 / 4, a.tokens - 1)); };
            auto of = [&](u32 column) { return whose[column % 2]; };
            // The other four warps have groups only where rows were dropped: there may be more groups than tokens.
            u32 warp = (threadIdx.x / 32 + 4 * d) % 8;
            low_add<1>(a.low, part, tile, warp, own, warp < 4 ? warp : NO_ADAPTER, of, row, adds[d]);
        }
        return adds;
    }
};

// Sixteen inner values of an adapter for its tokens.
__device__ __forceinline__ void rise_inner(const LowEachArgs& a, u32 at, EachScratch& m) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = a.inputs / PackH16::INPUTS;
    const LowUnit unit(a.low, at, a.inputs);
    PackH16 held[4] = {};
    if (unit.rows) low_hold(unit.rows, blocks, held);
    const WarpHalves own = own_halves<PackH16>(a);
    after_previous();
    if (a.norm.squares.at) own.make(a.norm, a.x, a.inputs, (u16*)m.halves);
    await_blocks(&a.arrived[0], norm_blocks(a));
    if (unit.rows) {
        u32 t = min(lane / 4, a.tokens - 1), first = lane % 4 * 2;
        const Columns<1, false> x((a.norm.squares.at ? (const u16*)m.halves : a.halves.get()) + (u64)t * a.inputs);
        float acc[1][4];
        part_product<PackH16, 1>(unit.rows, warp, blocks, held, x, acc);
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            if (first < 4) m.shared[0][warp][lane / 4 + i / 2 * 8][first + i % 2] = acc[0][i];
        __syncthreads();
        u32 row = threadIdx.x % 16, token = threadIdx.x / 16;
        if (token < a.tokens && group_of(a.low, token) == unit.group) {
            float v = m.shared[0][0][row][token];
#pragma unroll
            for (int p = 1; p < PARTS; p++) v += m.shared[0][p][row][token];
            inner_of(a.low, a.tokens, unit.part, token)[half_place(16 * unit.rank + row)] = to_half(v);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) arrive(a.low.arrived);
}

// 16 rows of gate and up of the shared expert for all tokens, behind the chosen ones of each; a warp owns a part of the inputs.
// The weights are on their way before the wait.
template <class P, class A> __device__ __forceinline__ void rise_shared(const A& a, u32 tile, EachScratch& m) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = a.inputs / P::INPUTS;
    u64 from = (u64)tile * blocks * P::BYTES;
    const u8* const tiles[2] = {a.shared.gate + from, a.shared.up + from};
    P held[2] = {};
    hold_pair(tiles, blocks, held);
    open_books(a.shared.gate_packing, F32);
    const RiseAhead low(a, tile);
    const WarpHalves own = own_halves<P>(a);
    after_previous();
    if (a.norm.squares.at) own.make(a.norm, a.x, a.inputs, (u16*)m.halves);
    await_blocks(&a.arrived[0], norm_blocks(a));
    u32 t = min(lane / 4, a.tokens - 1), first = lane % 4 * 2;
    const Columns<1, false> x((a.norm.squares.at ? (const u16*)m.halves : a.halves.get()) + (u64)t * a.inputs);
    float acc[2][4];
    pair_product(tiles, warp, blocks, held, x, acc);
#pragma unroll
    for (int d = 0; d < 2; d++)
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            if (first < 4) m.shared[d][warp][lane / 4 + i / 2 * 8][first + i % 2] = acc[d][i];
    float(*adds)[1][4][32] = nullptr;
    if constexpr (A::LOW) adds = low.put(a, tile);
    __syncthreads();
    u32 row = threadIdx.x % 16, token = threadIdx.x / 16;
    if (token >= a.tokens) return;
    float g = m.shared[0][0][row][token], u = m.shared[1][0][row][token];
#pragma unroll
    for (int p = 1; p < PARTS; p++) g += m.shared[0][p][row][token], u += m.shared[1][p][row][token];
    if constexpr (A::LOW) {
        u32 from = 4 * (row % 8) + token / 2, i = row / 8 * 2 + token % 2;
        if (a.low.of[0] != NO_ADAPTER) g += adds[0][0][i][from];
        if (a.low.of[1] != NO_ADAPTER) u += adds[1][0][i][from];
    }
    put_half(silu(g) * u, a.hh, a.stride, token * (a.used + 1) + a.used, 16 * tile + row);
}

// 16 rows (tile; of MANY tokens also each that is as many further as blocks share an expert) of gate and up of the expert at a place
// of the choice for token t. The weights of the next tile are on their way while the sums of one are joined.
template <class P, bool MANY>
__device__ __forceinline__ void rise(const EachArgs& a, u32 tile, u32 t, u32 place, EachScratch& m) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = a.inputs / P::INPUTS;
    P held[2] = {};
    open_books(a.routed.gate_packing, F32);
    bool normed = a.norm.squares.at;
    const WarpHalves own = own_halves<P>(a);
    after_previous();
    if (normed) own.make(a.norm, a.x, a.inputs, (u16*)m.halves);
    await_blocks(&a.arrived[1], router_blocks(a));
    // Every warp chooses: one for all of them would be no sooner.
    u32 expert = choose(a, t, place);
    if (threadIdx.x == 0 && tile == 0) a.chosen[t * a.used + place] = expert;
    const u8 *gate = a.routed.gate + expert * a.routed.gate_bytes, *up = a.routed.up + expert * a.routed.up_bytes;
    auto hold_tile = [&] {
        u64 from = (u64)tile * blocks * P::BYTES;
        const u8* const tiles[2] = {gate + from, up + from};
        hold_pair(tiles, blocks, held);
    };
    hold_tile();
    const Columns<1, true> x(normed ? (const u16*)m.halves : a.halves + (u64)t * a.inputs);
#pragma unroll 1
    for (u32 turn = 0;; turn++) {
        float acc[2][4];
        u64 from = (u64)tile * blocks * P::BYTES;
        const u8* const tiles[2] = {gate + from, up + from};
        pair_product(tiles, warp, blocks, held, x, acc);
        u32 to = 16 * tile;
        tile += a.beside;
        bool more = MANY && 16 * tile < a.routed.width;
        if (more) hold_tile();
        auto& sums = m.sums[turn % 2];
#pragma unroll
        for (int d = 0; d < 2; d++)
            if (lane % 4 == 0) sums[d][warp][lane / 4] = acc[d][0], sums[d][warp][lane / 4 + 8] = acc[d][2];
        __syncthreads();
        if (warp == turn % 8 && lane < 16) {
            float g = sums[0][0][lane], u = sums[1][0][lane];
#pragma unroll
            for (int p = 1; p < PARTS; p++) g += sums[0][p][lane], u += sums[1][p][lane];
            put_half(silu(g) * u, a.hh, a.stride, t * (a.used + 1) + place, to + lane);
        }
        if (!more) return;
    }
}

template <bool MANY>
__device__ __forceinline__ void rise_any(const EachArgs& a, u32 tile, u32 t, u32 place, EachScratch& m) {
#define RISE(P) return rise<P, MANY>(a, tile, t, place, m)
    switch (a.routed.gate_packing) {
        TILE_CASES(RISE)
    }
}

template <class A> __device__ __forceinline__ void rise_shared_any(const A& a, u32 tile, EachScratch& m) {
#define RISE_SHARED(P) return rise_shared<P>(a, tile, m)
    switch (a.shared.gate_packing) {
        TILE_CASES(RISE_SHARED)
    }
}

// Four rows of the router, from `first` on, for all tokens: two warps a row, each one half of the inputs.
template <int PACKING, int TOKENS> __device__ __forceinline__ void router_rows(const EachArgs& a, u32 first, EachScratch& m) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows = a.experts + 1, token[TOKENS];
    const FloatPart<PACKING, 8> part(a.router, min(first + warp / 2, rows - 1), a.inputs, warp % 2);
    after_previous();
    await_blocks(&a.arrived[0], norm_blocks(a));
    float acc[TOKENS];
#pragma unroll
    for (int n = 0; n < TOKENS; n++) token[n] = min((u32)n, a.tokens - 1);
    if (TOKENS == 1 && a.norm.squares.at) part.template times<TOKENS>(NormedRow(a.norm, a.x, a.inputs), token, acc);
    else part.template times<TOKENS>(PlainRows{a.x, a.inputs}, token, acc);
    if (lane == 0)
        for (int n = 0; n < TOKENS; n++) m.floats[warp][n] = acc[n];
    __syncthreads();
    u32 r = threadIdx.x % 4, n = threadIdx.x / 4, row = first + r;
    if (n < a.tokens && row < rows) a.logits[(u64)n * rows + row] = m.floats[2 * r][n] + m.floats[2 * r + 1][n];
    // One warp has written them all.
    __syncwarp();
    if (threadIdx.x == 0) arrive(&a.arrived[1]);
}

template <int TOKENS> __device__ __forceinline__ void router_any(const EachArgs& a, u32 first, EachScratch& m) {
#define ROUTER_ROWS(P) return router_rows<P, TOKENS>(a, first, m)
    switch (a.router_packing) {
        FLOAT_CASES(ROUTER_ROWS)
    }
}

// A block of each_up: the first ones have a token to normalise, the next ones four rows of the router, then inner values of an
// adapter, then 16 rows of the shared expert; all others have rows of a chosen expert for a token. Who needs what others make waits for them.
template <bool MANY, class A> __device__ __forceinline__ void rise_all(const A& a) {
    __shared__ EachScratch m;
    u32 i = blockIdx.x, shared = (a.shared.width + 15) / 16;
    if (i < norm_blocks(a)) return normalise(a, i, m);
    i -= norm_blocks(a);
    if (i < router_blocks(a)) return router_any<MANY ? 4 : 1>(a, 4 * i, m);
    i -= router_blocks(a);
    if constexpr (A::LOW) {
        if (i < low_units(a.low)) return rise_inner(a, i, m);
        i -= low_units(a.low);
    }
    if (i < shared) return rise_shared_any(a, i, m);
    i -= shared;
    rise_any<MANY>(a, i % a.beside, i / a.beside / a.used, i / a.beside % a.used, m);
}
