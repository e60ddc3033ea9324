// The experts over many tokens: what experts.cu computes, with its bits, but a block multiplies 64 rows of gate and up,
// or 128 of down, by up to 64 of the tokens that chose its expert. Matrices of floats are left to experts.cu.
// _joined, _low: with what the tokens' adapters add, to the shared expert also by tiles of halves (low.cuh).
//
// y: the shared expert's tokens, 64 each, then a place of the list that `route_work` made.
// Limits: as in experts.cu. Shared memory: 34 KB.
#include "expert.cuh"
#include "lora.cuh"
#include "wide.cuh"

struct GroupedArgs {
    Expert routed, shared;
    Ptr<uint4> work;  // [0].x: how many follow; expert, first of its pairs, how many of them
    Ptr<u32> pairs;
    Ptr<u16> halves;
    Ptr<u16> hh;
    Ptr<float> y;  // [pairs][inputs]
    u32 inputs, tokens, used, stride;
    u32 lists, pad;  // places of the list that have blocks
    Joint joint;     // read by _joined
    Ptr<float> h;    // inner values as floats, written by it
    // What adapters add to the shared expert, 0 groups: nothing; `of`: parts of gate, up and down. The inner values of the first two
    // are there, those of down are made here.
    Low low;
};

// What one block works on.
struct Group {
    const u8 *gate, *up, *down;
    u32 packing, up_packing, width, first, count;
    u32 expert;  // 0 for the shared one
    bool shared;
};

__device__ __forceinline__ bool find_group(const GroupedArgs& a, Group& w, bool down) {
    // The shared expert has the longest lists: it goes first.
    u32 ahead = gridDim.y - a.lists;
    w.shared = blockIdx.y < ahead;
    const Expert& e = w.shared ? a.shared : a.routed;
    w.expert = 0;
    if (w.shared) {
        u32 at = blockIdx.y * WIDE_TOKENS;
        w.first = a.tokens * a.used + at, w.count = min((u32)WIDE_TOKENS, a.tokens - at);
    } else {
        if (blockIdx.y - ahead >= a.work[0].x) return false;
        uint4 place = a.work[1 + blockIdx.y - ahead];
        w.expert = place.x, w.first = place.y, w.count = place.z;
    }
    if (down) w.down = down_of(e, w.expert);
    else w.gate = gate_of(e, w.expert), w.up = up_of(e, w.expert);
    w.packing = down ? e.down_packing : e.gate_packing, w.up_packing = e.up_packing;
    w.width = e.width;
    return true;
}

union GroupedScratch {
    Stage stages[STAGES];
    float sums[2][64][WIDE_TOKENS + 1];  // gate and up of row, token
};

// Four warps multiply by rows of the gate, four by rows of up: beside each other where both are packed alike, else after
// each other.
template <bool JOINED>
__device__ __forceinline__ void group_up(const GroupedArgs& a, const Group& w, GroupedScratch& m, const u32* pair,
                                         const u32* token, const u32* whose) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, tile = 4 * blockIdx.x + warp % 4;
    u32 own = 16 * tile < w.width ? tile : 0, turns = w.packing == w.up_packing ? 1 : 2;
    float total[8][4] = {};
#pragma unroll 1
    for (u32 turn = 0; turn < turns; turn++) {
        bool up = turns == 1 ? warp >= 4 : turn == 1, mine = 16 * tile < w.width && up == (warp >= 4);
        const u8* matrix = up ? w.up : w.gate;
#define GROUP_UP(P)                                                                                            \
    wide_product<P>(matrix + (u64)own * (a.inputs / P::INPUTS) * P::BYTES, mine, {a.halves, a.inputs}, a.inputs, \
                    token, w.count, m.stages, total);                                                          \
    break
        switch (turn == 0 ? w.packing : w.up_packing) { TILE_CASES(GROUP_UP) }
    }
    if (JOINED && w.shared && a.low.groups > 0) {
        u32 part = a.low.of[warp / 4];
        auto row = [&](int n) { return inner_of(a.low, a.tokens, part, token[8 * n + lane / 4]); };
        if (part != NO_ADAPTER && 16 * tile < w.width) low_wide(a.low, part, tile, w.count, whose, row, total);
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            m.sums[warp / 4][16 * (warp % 4) + lane / 4 + i / 2 * 8][8 * n + lane % 4 * 2 + i % 2] = total[n][i];
    __syncthreads();
    // A warp takes 32 rows of one token at a time.
    for (u32 at = warp; at < 2 * w.count; at += 8) {
        u32 half = at % 2, t = at / 2;
        if (64 * blockIdx.x + 32 * half >= w.width) continue;
        float gate = m.sums[0][32 * half + lane][t], up = m.sums[1][32 * half + lane][t];
        u32 row = 64 * blockIdx.x + 32 * half + lane;
        if (JOINED && a.joint.who.factors.at) join(a.joint, token[t], pair[t], w.shared, w.expert, w.width, row, gate, up);
        float v = silu(gate) * up;
        if (JOINED) a.h[(u64)pair[t] * a.stride + row] = v;
        put_half(v, a.hh, a.stride, pair[t], row);
    }
}

// What adapters add to a warp's 16 rows of the shared expert's down, behind their sums. The inner values are made by all warps of the
// block, sixteen for eight tokens at a time.
__device__ __forceinline__ void group_add(const GroupedArgs& a, const Group& w, u32 tile, bool mine, GroupedScratch& m,
                                          const u32* pair, const u32* whose, float (&total)[8][4]) {
    u32 part = a.low.of[2], lane = threadIdx.x % 32, eights = (w.count + 7) / 8, blocks = w.width / PackH16::INPUTS;
    if (part == NO_ADAPTER) return;
    auto inner = [&](u32 column) { return (u16*)m.stages + RANK_MAX * column; };
    for (u32 at = threadIdx.x / 32; at < a.low.groups * a.low.ranks * eights; at += 8) {
        u32 n = at % eights, rank = at / eights % a.low.ranks, g = at / eights / a.low.ranks;
        const LowTiles* f = tiles_of(a.low, g, part);
        bool any = 8 * n + lane / 4 < w.count && whose[8 * n + lane / 4] == g;
        if (__ballot_sync(FULL, any) == 0 || !f || 16 * rank >= f->rank) continue;
        const u8* rows = f->a + (u64)rank * blocks * PackH16::BYTES;
        PackH16 held[1] = {};
        float sums[1][4];
        const Columns<1, false> x({a.hh, a.stride}, pair + 8 * n);
        hold(rows, 0, blocks, held);
        tile_product<PackH16, 1, false>(rows, blocks, held, x, sums);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 column = 8 * n + lane % 4 * 2 + i % 2, r = 16 * rank + lane / 4 + i / 2 * 8;
            if (column < w.count && whose[column] == g) inner(column)[half_place(r)] = to_half(sums[0][i]);
        }
    }
    __syncthreads();
    auto row = [&](int n) { return (const u16*)inner(8 * n + lane / 4); };
    if (mine) low_wide(a.low, part, tile, w.count, whose, row, total);
}

template <class P, bool LOW>
__device__ __forceinline__ void group_down(const GroupedArgs& a, const Group& w, GroupedScratch& m, const u32* pair,
                                           const u32* whose) {
    u32 lane = threadIdx.x % 32, tile = 8 * blockIdx.x + threadIdx.x / 32;
    bool mine = 16 * tile < a.inputs;
    const u8* rows = w.down + (u64)(mine ? tile : 0) * (w.width / P::INPUTS) * P::BYTES;
    float total[8][4] = {};
    wide_product<P>(rows, mine, {a.hh, a.stride}, w.width, pair, w.count, m.stages, total);
    if (LOW && w.shared) group_add(a, w, tile, mine, m, pair, whose, total);
    if (!mine) return;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 t = 8 * n + lane % 4 * 2 + i % 2, row = 16 * tile + lane / 4 + i / 2 * 8;
            if (t < w.count && row < a.inputs) a.y[(u64)pair[t] * a.inputs + row] = total[n][i];
        }
}

template <bool DOWN, bool JOINED> __device__ __forceinline__ void grouped(const GroupedArgs& a) {
    __shared__ GroupedScratch m;
    __shared__ u32 pair[WIDE_TOKENS], token[WIDE_TOKENS], whose[JOINED ? WIDE_TOKENS : 1];
    Group w;
    wait_previous();
    if (!find_group(a, w, DOWN) || (!DOWN && 64 * blockIdx.x >= w.width)) return;
    if (threadIdx.x < WIDE_TOKENS) {
        u32 i = min(threadIdx.x, w.count - 1), p = w.shared ? w.first + i : a.pairs[w.first + i];
        pair[threadIdx.x] = p;
        token[threadIdx.x] = w.shared ? p - a.tokens * a.used : p / a.used;
        if (JOINED && w.shared && a.low.groups > 0) whose[threadIdx.x] = group_of(a.low, token[threadIdx.x]);
    }
    open_books(w.packing, DOWN ? w.packing : w.up_packing);
    __syncthreads();
    if constexpr (DOWN) {
#define GROUP_DOWN(P) return group_down<P, JOINED>(a, w, m, pair, whose)
        switch (w.packing) { TILE_CASES(GROUP_DOWN) }
    } else {
        group_up<JOINED>(a, w, m, pair, token, whose);
    }
}

KERNEL(__launch_bounds__(256, 2) grouped_up, GroupedArgs) { grouped<false, false>(a); }
KERNEL(__launch_bounds__(256, 2) grouped_up_joined, GroupedArgs) { grouped<false, true>(a); }
KERNEL(__launch_bounds__(256, 2) grouped_down, GroupedArgs) { grouped<true, false>(a); }
KERNEL(__launch_bounds__(256, 2) grouped_down_low, GroupedArgs) { grouped<true, true>(a); }
