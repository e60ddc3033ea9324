// What the experts of few tokens make of their inner values, weighed and added to the residual stream.
#pragma once
#include "each.cuh"

// What the residual stream has for 16 rows of a token, a lane each.
__device__ __forceinline__ float before(const EachArgs& a, u32 t, u32 tile) {
    u32 row = 16 * tile + threadIdx.x % 32;
    return threadIdx.x % 32 < 16 && row < a.inputs ? a.residual[(u64)t * a.inputs + row] : 0.0f;
}

// Shared memory of a block that adds experts up: parts of each one's rows, the rows of two tiles, and what each expert weighs.
struct FallScratch {
    float parts[EACH_MAX][PARTS][16], sums[2][EACH_MAX][16], weights[EACH_MAX];
};

// What the experts of a token weigh, by a warp: the chosen ones, a lane each, renormalised over them as `route` does, and the
// shared one by its gate.
__device__ __forceinline__ void weigh(const EachArgs& a, u32 t, u32 picked, FallScratch& m) {
    u32 lane = threadIdx.x % 32;
    const float* logits = a.logits + (u64)t * (a.experts + 1);
    float logit = logits[lane < a.used ? picked : a.experts], e = expf(logit - __shfl_sync(FULL, logit, 0)), sum = 0;
    for (u32 n = 0; n < a.used; n++) sum += __shfl_sync(FULL, e, (int)n);
    if (lane <= a.used) m.weights[lane] = lane < a.used ? e / sum : sigmoid(logit);
}

// What an adapter adds to the shared expert's rows: parts of the inner values, these as halves, and rows of a tile.
struct FallAdds {
    float parts[RANK_MAX / 16][PARTS][16];
    uint4 inner[RANK_MAX / 8];
    float rows[16];
};

__device__ __forceinline__ FallAdds& fall_adds() {
    __shared__ FallAdds m;
    return m;
}

// The factors of token t's adapter, none of any rank if it has none, on their way to the second-level cache: of B the block's own
// rows, of A a share.
__device__ __forceinline__ LowTiles fall_ahead(const LowEachArgs& a, u32 t) {
    u32 group = group_of(a.low, t);
    const LowTiles f = low_ahead(a.low, group, a.low.of[2], blockIdx.x);
    u32 lines = f.rank * a.shared.width / 64;
    for (u32 at = blockIdx.x + gridDim.x * threadIdx.x; at < lines; at += gridDim.x * 32 * (a.used + 1)) fetch_ahead(f.a + 128 * (u64)at);
    return f;
}
__device__ __forceinline__ LowTiles fall_ahead(const EachArgs&, u32) { return LowTiles{{0}, {0}, 0, 0.0f}; }

// The inner values of token t, by all warps of the block: each block makes them for itself, for it would wait longer for others.
template <int WARPS>
__device__ __forceinline__ void fall_inner(const LowEachArgs& a, const LowTiles& f, u32 t, FallAdds& m) {
    u32 lane = threadIdx.x % 32, blocks = a.shared.width / PackH16::INPUTS, row = t * (a.used + 1) + a.used;
    const Columns<1, true> x({a.hh, a.stride}, &row);
    // The first warp weighs the experts meanwhile: it comes last.
    u32 warps = WARPS * (a.used + 1);
    for (u32 at = (threadIdx.x / 32 + warps - 1) % warps; at < f.rank / 16 * PARTS; at += warps) {
        const u8* rows = f.a + (u64)(at / PARTS) * blocks * PackH16::BYTES;
        PackH16 held[2] = {};
        float acc[1][4];
        hold(rows, at % PARTS, blocks, held);
        part_product<PackH16, 1>(rows, at % PARTS, blocks, held, x, acc);
        float* to = m.parts[at / PARTS][at % PARTS];
        if (lane % 4 == 0) to[lane / 4] = acc[0][0], to[lane / 4 + 8] = acc[0][2];
    }
    __syncthreads();
}

// What it adds to a tile of rows, by a warp; the inner values become halves where they are read.
__device__ __forceinline__ void fall_add(const LowTiles& f, u32 tile, FallAdds& m) {
    u32 lane = threadIdx.x % 32;
    for (u32 r = lane; r < f.rank; r += 32) {
        float v = m.parts[r / 16][0][r % 16];
        for (int p = 1; p < PARTS; p++) v += m.parts[r / 16][p][r % 16];
        ((u16*)m.inner)[half_place(r)] = to_half(v);
    }
    __syncwarp();
    float acc[1][4];
    low_product<1>(f, tile, [&](int) { return (const u16*)m.inner; }, 1, acc);
    if (lane % 4 == 0) m.rows[lane / 4] = acc[0][0], m.rows[lane / 4 + 8] = acc[0][2];
    __syncwarp();
}

// Tiles of 16 rows of the expert at a place of the choice, by warp `share` of its WARPS; a single one where there are two, else
// also each that is as many further as there are blocks, its weights on their way while one is added up. `picked`: the experts
// of the token, a lane each. One warp adds them to `v`, what the residual stream has for it.
template <class P, int WARPS, class A>
__device__ __forceinline__ void fall(const A& a, const Expert& e, const LowTiles& low, u32 picked, u32 place, u32 share, float v,
                                     FallScratch& m) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = blockIdx.y, tile = blockIdx.x, tiles = (a.inputs + 15) / 16;
    u32 blocks = e.width / P::INPUTS, row = t * (a.used + 1) + place;
    u32 first = share * PARTS / WARPS, from = part_start(first, blocks), end = part_start(first + PARTS / WARPS, blocks);
    u32 expert = place == a.used ? 0 : __shfl_sync(FULL, picked, (int)place);
    const u8* rows = e.down + expert * e.down_bytes + (u64)tile * blocks * P::BYTES;
    const int DEEP = WARPS == 1 && sizeof(P) <= 120 ? 2 : 1;
    P held[DEEP] = {};
#pragma unroll
    for (int d = 0; d < DEEP; d++)
        if (from + d < end) held[d].load(rows + (from + d) * P::BYTES, lane);
    if (warp == 0) weigh(a, t, picked, m);
    if constexpr (A::LOW)
        if (low.rank > 0) fall_inner<WARPS>(a, low, t, fall_adds());
    float(*parts)[16] = m.parts[place];
    // A part without blocks adds nothing.
    for (u32 i = lane; i < 16 * PARTS / WARPS; i += 32) parts[first + i / 16][i % 16] = 0;
    __syncwarp();
    const Columns<1, true> x({a.hh, a.stride}, &row);
#pragma unroll 1
    for (u32 turn = 0;; turn++) {
        u32 next = tile + gridDim.x, part = first;
        bool more = WARPS == 1 && next < tiles;
        float acc[1][4] = {{0, 0, 0, 0}};
#pragma unroll 1
        for (u32 i = from; i < end; i += DEEP) {
#pragma unroll
            for (int d = 0; d < DEEP; d++) {
                if (i + d >= end) break;
                block_product<P, 1>(held[d], x, i + d, acc);
                // The block that takes its place: of this tile, or of the next one.
                bool last = i + d + DEEP >= end;
                u32 follows = last ? gridDim.x * blocks + from + d : i + d + DEEP;
                if (!last || more) held[d].load(rows + (u64)follows * P::BYTES, lane);
                while (part_start(part + 1, blocks) <= i + d) part++;
                if (part_start(part + 1, blocks) != i + d + 1) continue;
                if (lane % 4 == 0)
                    parts[part][lane / 4] = acc[0][0] * unit_of<P>(), parts[part][lane / 4 + 8] = acc[0][2] * unit_of<P>();
                acc[0][0] = acc[0][1] = acc[0][2] = acc[0][3] = 0;
            }
        }
        if constexpr (A::LOW)
            if (share == 0 && place == a.used && low.rank > 0) fall_add(low, tile, fall_adds());
        if (WARPS == 1) __syncwarp();
        else __syncthreads();
        auto& sums = m.sums[turn % 2];
        if (share == 0 && lane < 16) {
            float sum = parts[0][lane];
#pragma unroll
            for (int p = 1; p < PARTS; p++) sum += parts[p][lane];
            if constexpr (A::LOW)
                if (place == a.used && low.rank > 0) sum += fall_adds().rows[lane];
            sums[place][lane] = sum;
        }
        __syncthreads();
        if (warp == turn % (a.used + 1)) {
            u32 to = 16 * tile + lane;
            bool mine = lane < 16 && to < a.inputs;
            for (u32 i = 0; i <= a.used; i++) v = fmaf(m.weights[i], lane < 16 ? sums[i][lane] : 0.0f, v);
            if (mine) a.residual[(u64)t * a.inputs + to] = v;
            if (a.squares.at) {
                float square = sixteen(mine ? v : 0.0f);
                if (lane == 0) a.squares[(u64)t * tiles + tile] = square;
            }
        }
        if (!more) return;
        tile = next, rows += (u64)gridDim.x * blocks * P::BYTES;
        if (warp == (turn + 1) % (a.used + 1)) v = before(a, t, tile);
    }
}

// A block owns 16 rows (x; of many tokens also x + grid …) of a token (y), WARPS warps each of the chosen experts, the shared
// one last; the sum goes to the residual stream.
template <int WARPS, class A> __device__ __forceinline__ void fall_all(const A& a) {
    __shared__ FallScratch m;
    u32 warp = threadIdx.x / 32, place = warp / WARPS, share = warp % WARPS, t = blockIdx.y;
    bool shared = place == a.used;
    const Expert& e = shared ? a.shared : a.routed;
    // What is read before the wait was written before the kernel that has to be waited for began.
    float v = warp == 0 ? before(a, t, blockIdx.x) : 0.0f;
    open_books(a.routed.down_packing, a.shared.down_packing);
    const LowTiles low = fall_ahead(a, t);
    after_previous();
    if (blockIdx.x == 0 && t == 0 && threadIdx.x < 2) a.arrived[threadIdx.x] = 0;
    u32 picked = a.chosen[t * a.used + min(threadIdx.x % 32, a.used - 1)];
#define FALL(P) return fall<P, WARPS>(a, e, low, picked, place, share, v, m)
    switch (e.down_packing) {
        TILE_CASES(FALL)
    }
}
