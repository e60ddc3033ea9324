// What adapters add to packed products, y += unit·B·(A·x), on tensor cores inside the products' own launches. Factors are tiles of
// halves, as `PackH16` has them. The first blocks of a launch make the inner values A·x, sixteen of one adapter each, for all rows
// under it; blocks of outputs wait for them and add B's part behind the sums of their own.
//
// Rows of one adapter are a group. An inner value is summed as any product is, rounded to a half and multiplied in the order of
// the ranks, in every kernel. `unit` is a power of two, so whether its product is fused with a sum changes no bit.
#pragma once
#include "product.cuh"

#define RANK_MAX 64
#define NO_ADAPTER 0xffffffffu

// The factors of one matrix: A [rank][inputs], B [outputs][rank]; the rank a multiple of 32, what it lacks zero.
struct LowTiles {
    Ptr<u8> a, b;  // null: the adapter leaves the matrix as it is
    u32 rank;
    float unit;
};

struct Low {
    Ptr<LowTiles> tiles;  // [adapters][places]
    Ptr<u32> adapter;     // of each group, NO_ADAPTER: nobody's
    Ptr<u32> group;       // of each row of the pass, NO_ADAPTER: it has none
    Ptr<u32> rows;        // which of them are computed; null: all, in order
    Ptr<u16> inner;       // [parts][tokens][RANK_MAX], in the order of half_place
    Ptr<u32> arrived;     // blocks that have written inner values, for each 64 tokens: none before the launch
    u32 places, groups;
    u32 ranks;            // tiles of 16 of the largest rank
    u32 count;            // parts whose inner values are made here
    u32 place[4];         // matrix of each part
    u32 of[4];            // part of each product, NO_ADAPTER: no adapter changes it
};

// The factors of a group for a part; null if there are none.
__device__ __forceinline__ const LowTiles* tiles_of(const Low& l, u32 group, u32 part) {
    u32 adapter = l.adapter[group];
    if (adapter == NO_ADAPTER) return nullptr;
    const LowTiles* f = l.tiles.get() + (u64)adapter * l.places + l.place[part];
    return f->a.at ? f : nullptr;
}

__device__ __forceinline__ u32 group_of(const Low& l, u32 t) { return l.group[l.rows.at ? l.rows[t] : t]; }

// Where the inner values of a token lie.
__device__ __forceinline__ u16* inner_of(const Low& l, u32 tokens, u32 part, u32 t) {
    return l.inner + ((u64)part * tokens + t) * RANK_MAX;
}

// Sixteen inner values of a group, for all its tokens.
struct LowUnit {
    u32 rank, group, part;
    const u8* rows;  // the tile of A; null: there are none
    __device__ __forceinline__ LowUnit(const Low& l, u32 at, u32 inputs) {
        rank = at % l.ranks, group = at / l.ranks % l.groups, part = at / l.ranks / l.groups;
        const LowTiles* f = part < l.count ? tiles_of(l, group, part) : nullptr;
        rows = f && 16 * rank < f->rank ? f->a + (u64)rank * (inputs / PackH16::INPUTS) * PackH16::BYTES : nullptr;
    }
};

__device__ __forceinline__ u32 low_units(const Low& l) { return l.count * l.groups * l.ranks; }

// acc = B's rows of a tile times the inner values of the first `tiles` eights of columns; `row`: those of column 8n + lane / 4.
template <int NT, class Row>
__device__ __forceinline__ void low_product(const LowTiles& f, u32 tile, const Row& row, u32 tiles, float (&acc)[NT][4]) {
    u32 lane = threadIdx.x % 32, steps = f.rank / PackH16::INPUTS;
    const u8* b = f.b + (u64)tile * steps * PackH16::BYTES;
#pragma unroll
    for (int n = 0; n < NT; n++) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0;
#pragma unroll 1
    for (u32 s = 0; s < steps; s++) {
        PackH16 held;
        held.load(b + (u64)s * PackH16::BYTES, (int)lane);
        u32 w[2][4];
        operands(held, 0, w);
#pragma unroll
        for (int n = 0; n < NT; n++) {
            if ((u32)n >= tiles) break;
            const uint4 v = *(const uint4*)(row(n) + PackH16::INPUTS * s + 8 * (lane % 4));
            mma_halves(acc[n], w[0], v.x, v.y);
            mma_halves(acc[n], w[1], v.z, v.w);
        }
    }
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[n][i] *= f.unit;
}

// A group's factors for a part, and B's rows of a tile on their way to the second-level cache, by a warp.
__device__ __forceinline__ LowTiles low_ahead(const Low& l, u32 group, u32 part, u32 tile) {
    const LowTiles* found = part != NO_ADAPTER && group < l.groups ? tiles_of(l, group, part) : nullptr;
    if (!found) return LowTiles{{0}, {0}, 0, 0.0f};
    const LowTiles f = *found;
    u32 bytes = f.rank / PackH16::INPUTS * PackH16::BYTES;
    for (u32 at = 128 * (threadIdx.x % 32); at < bytes; at += 4096) fetch_ahead(f.b + (u64)tile * bytes + at);
    return f;
}

// The first blocks of a warp's part of a tile of A on their way to registers, the others to the second-level cache.
template <int DEEP> __device__ __forceinline__ void low_hold(const u8* rows, u32 blocks, PackH16 (&held)[DEEP]) {
    u32 warp = threadIdx.x / 32, from = part_start(warp, blocks), end = part_start(warp + 1, blocks);
    hold(rows, warp, blocks, held);
    for (u32 at = (from + DEEP) * PackH16::BYTES + 128 * (threadIdx.x % 32); at < end * PackH16::BYTES; at += 4096)
        fetch_ahead(rows + at);
}

// A warp waits for the inner values of all parts.
__device__ __forceinline__ void low_await(const u32* arrived, u32 blocks) {
    if (threadIdx.x % 32 == 0) await(arrived, blocks);
    __syncwarp();
}

// What adapters add to a tile of few tokens, by the eight warps of a block, the number `warp` of which has every eighth group:
// to[n][i][lane] of each column as `acc` of a product, and −0, which changes nothing, where there is nothing to add. `own`: factors of
// group `owned`, which the warp has already; `whose`: group of a column; `row`: as above.
template <int NT, class Whose, class Row>
__device__ __forceinline__ void low_add(const Low& l, u32 part, u32 tile, u32 warp, const LowTiles& own, u32 owned,
                                        const Whose& whose, const Row& row, float (&to)[NT][4][32]) {
    u32 lane = threadIdx.x % 32;
    auto put = [&](u32 group, const float (&acc)[NT][4]) {
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (whose(8 * n + lane % 4 * 2 + i % 2) == group) to[n][i][lane] = acc[n][i];
    };
    float acc[NT][4];
    auto nothing = [&] {
#pragma unroll
        for (int n = 0; n < NT; n++) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = -0.0f;
    };
    if (warp == 0) nothing(), put(NO_ADAPTER, acc);
    for (u32 g = warp; g < l.groups; g += 8) {
        LowTiles f = own;
        if (g != owned) f = low_ahead(l, g, part, tile);
        if (!f.b.at) {
            nothing();
        } else {
            low_await(l.arrived, low_units(l));
            low_product<NT>(f, tile, row, NT, acc);
        }
        put(g, acc);
    }
}

// The same for up to 64 tokens by the warp that has the tile's sums, which it is added to. `whose` [64]: groups of the columns.
template <class Row>
__device__ __forceinline__ void low_wide(const Low& l, u32 part, u32 tile, u32 count, const u32* whose, const Row& row,
                                         float (&total)[8][4]) {
    u32 lane = threadIdx.x % 32;
#pragma unroll 1
    for (u32 g = 0; g < l.groups; g++) {
        bool any = (lane < count && whose[lane] == g) || (lane + 32 < count && whose[lane + 32] == g);
        if (__ballot_sync(FULL, any) == 0) continue;
        const LowTiles* f = tiles_of(l, g, part);
        if (!f) continue;
        float acc[8][4];
        low_product<8>(*f, tile, row, (count + 7) / 8, acc);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 column = 8 * n + lane % 4 * 2 + i % 2;
                if (column < count && whose[column] == g) total[n][i] += acc[n][i];
            }
    }
}
