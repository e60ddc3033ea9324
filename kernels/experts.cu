// The experts: SiLU(gate·n)·(up·n) for every pair of token and expert, then down. The results of the pairs are summed
// by `norm`, in the order of the choices.
//
// Pairs 0 .. tokens·used − 1 are the routed ones (token·used + choice), tokens·used + t the shared expert of token t.
// y: the expert, in the order of `active`; the last one is the shared expert. _one: one token; _1: eight at a time;
// _joined: eight at a time, with what the tokens' adapters add; _dense: one token where there is a shared expert alone.
// Limits: widths a multiple of 32 and of the packing's block. Shared memory: 18 KB at most.
#include "expert.cuh"
#include "lora.cuh"

struct ExpertsArgs {
    Expert routed, shared;
    Ptr<u32> active, start, pairs;
    Ptr<float> x;       // [tokens][inputs]
    Ptr<u16> halves;
    Ptr<float> h;       // [pairs][stride]: inner values
    Ptr<u16> hh;        // as halves
    Ptr<float> y;       // [pairs][inputs]
    Ptr<float> weight;  // [tokens][used + 1], read by experts_down_each
    Ptr<float> residual;  // [tokens][inputs], likewise
    Ptr<u32> chosen;      // [tokens][used], likewise
    Ptr<uint4> work;      // read by grouped.cu
    u32 inputs, tokens, used, stride;
    Joint joint;          // read by _joined
};

// What one block works on: an expert's matrices and its list of pairs.
struct Work {
    const u8 *gate, *up, *down;
    u32 packing, up_packing, width, first, count;
    u32 expert;  // 0 for the shared one
    bool shared;
};

__device__ __forceinline__ bool find(const ExpertsArgs& a, Work& w, bool down) {
    w.shared = blockIdx.y + 1 == gridDim.y;
    if (w.shared) {
        w.gate = a.shared.gate, w.up = a.shared.up, w.down = a.shared.down;
        w.packing = down ? a.shared.down_packing : a.shared.gate_packing, w.up_packing = a.shared.up_packing;
        w.width = a.shared.width, w.first = a.tokens * a.used, w.count = a.tokens, w.expert = 0;
        return true;
    }
    if (blockIdx.y >= a.active[0]) return false;
    u32 expert = w.expert = a.active[1 + blockIdx.y];
    if (down) w.down = down_of(a.routed, expert);
    else w.gate = gate_of(a.routed, expert), w.up = up_of(a.routed, expert);
    w.packing = down ? a.routed.down_packing : a.routed.gate_packing, w.up_packing = a.routed.up_packing;
    w.width = a.routed.width, w.first = a.start[expert], w.count = a.start[expert + 1] - w.first;
    return true;
}

// Pair at place i of the block's list.
__device__ __forceinline__ u32 pair_at(const ExpertsArgs& a, const Work& w, u32 i) {
    i = min(i, w.count - 1);
    return w.shared ? w.first + i : a.pairs[w.first + i];
}

__device__ __forceinline__ u32 token_of(const ExpertsArgs& a, const Work& w, u32 pair) {
    return w.shared ? pair - w.first : pair / a.used;
}

// Shared memory of a block; one for all packings, which never meet in a block.
template <int NT> struct Scratch {
    union {
        float sums[PARTS][4][NT][4][32];  // part, tile (gate 0, gate 1, up 0, up 1), token tile, register, lane
        float values[32];
    };
    u32 token[32], pair[32];
};

// 32 rows of one matrix, gate or up (x), for the block's tokens; warps share the inputs by parts.
template <class P, int NT, bool ONE>
__device__ __forceinline__ void up_rows(const ExpertsArgs& a, const u8* matrix, bool up, const Columns<NT, ONE>& x,
                                        Scratch<NT>& m) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = a.inputs / P::INPUTS;
#pragma unroll 1
    for (u32 i = 0; i < 2; i++) {
        const u8* tile = matrix + (u64)(2 * blockIdx.x + i) * blocks * P::BYTES;
        float acc[NT][4];
        P held[1] = {};
        hold(tile, warp, blocks, held);
        part_product<P, NT>(tile, warp, blocks, held, x, acc);
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int r = 0; r < 4; r += ONE ? 2 : 1) m.sums[warp][2 * up + i][n][r][lane] = acc[n][r];
    }
}

// 32 rows of gate and up (x), which need not be packed alike, for the block's tokens.
template <int NT, bool ONE, bool JOINED>
__device__ __forceinline__ void up(const ExpertsArgs& a, const Work& w, Scratch<NT>& m) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    open_books(w.packing, w.up_packing);
    for (u32 first = 0; first < w.count; first += 8 * NT) {
        __syncthreads();
        if (threadIdx.x < 8 * NT) {
            m.pair[threadIdx.x] = pair_at(a, w, first + threadIdx.x);
            m.token[threadIdx.x] = token_of(a, w, m.pair[threadIdx.x]);
        }
        __syncthreads();
        const Columns<NT, ONE> x({a.halves, a.inputs}, m.token);
#pragma unroll 1
        for (u32 rise = 0; rise < 2; rise++) {
#define UP_ROWS(P) up_rows<P, NT, ONE>(a, rise ? w.up : w.gate, rise, x, m); break
            switch (rise ? w.up_packing : w.packing) { TILE_CASES(UP_ROWS) }
        }
        __syncthreads();
        // Warp = token of the tile, lane = row.
        u32 row = lane % 16, from = 4 * (row % 8) + warp / 2, r = row / 8 * 2 + warp % 2;
        for (u32 n = 0; n < NT; n++) {
            if (ONE && warp > 0) break;
            float g = m.sums[0][lane / 16][n][r][from], u = m.sums[0][2 + lane / 16][n][r][from];
            for (int p = 1; p < PARTS; p++)
                g += m.sums[p][lane / 16][n][r][from], u += m.sums[p][2 + lane / 16][n][r][from];
            if (first + 8 * n + warp < w.count) {
                u32 to = m.pair[8 * n + warp];
                if (JOINED)
                    join(a.joint, m.token[8 * n + warp], to, w.shared, w.expert, w.width, 32 * blockIdx.x + lane, g, u);
                float v = silu(g) * u;
                a.h[(u64)to * a.stride + 32 * blockIdx.x + lane] = v;
                put_half(v, a.hh, a.stride, to, 32 * blockIdx.x + lane);
            }
        }
    }
}

// The same for matrices of floats: eight warps take the 32 rows in turn.
template <int PACKING, int NT, bool JOINED>
__device__ __forceinline__ void up_floats(const ExpertsArgs& a, const Work& w, Scratch<NT>& m) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u8 *gate = w.gate, *rise = w.up;
    for (u32 i = 0; i < w.count; i++) {
        u32 pair = pair_at(a, w, i), token = token_of(a, w, pair);
        __syncthreads();
        for (u32 r = warp; r < 32; r += 8) {
            float g[2], u[2];
            for (u32 p = 0; p < 2; p++) {
                float acc[1];
                float_part<PACKING, 1>(gate, 32 * blockIdx.x + r, a.inputs, p, a.x, &token, acc);
                g[p] = acc[0];
                float_part<PACKING, 1>(rise, 32 * blockIdx.x + r, a.inputs, p, a.x, &token, acc);
                u[p] = acc[0];
            }
            float gate = g[0] + g[1], up = u[0] + u[1];
            if (JOINED && lane == 0)
                join(a.joint, token, pair, w.shared, w.expert, w.width, 32 * blockIdx.x + r, gate, up);
            if (lane == 0) m.values[r] = silu(gate) * up;
        }
        __syncthreads();
        if (warp == 0) {
            a.h[(u64)pair * a.stride + 32 * blockIdx.x + lane] = m.values[lane];
            put_half(m.values[lane], a.hh, a.stride, pair, 32 * blockIdx.x + lane);
        }
    }
}

// 16 rows of the shared expert's gate and up (x) for a single token, whose weights are on their way before the wait; a warp owns
// a part of the inputs.
struct DenseScratch {
    float sums[2][PARTS][16];
    uint4 own[8][32];
};

template <class P> __device__ __forceinline__ void dense_up(const ExpertsArgs& a, DenseScratch& m) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = a.inputs / P::INPUTS;
    u64 from = (u64)blockIdx.x * blocks * P::BYTES;
    const u8* const tiles[2] = {a.shared.gate + from, a.shared.up + from};
    P held[1] = {};
    hold(tiles[0], warp, blocks, held);
    open_books(a.shared.gate_packing, F32);
    __syncthreads();
    after_previous();
#pragma unroll 1
    for (int d = 0; d < 2; d++) {
        float acc[1][4];
        part_product<P, 1>(tiles[d], warp, blocks, held, Fetched(a.halves, m.own[warp]), acc);
        if (d == 0) hold(tiles[1], warp, blocks, held);
        if (lane % 4 == 0) m.sums[d][warp][lane / 4] = acc[0][0], m.sums[d][warp][lane / 4 + 8] = acc[0][2];
    }
    __syncthreads();
    if (threadIdx.x >= 16) return;
    float g = m.sums[0][0][lane], u = m.sums[1][0][lane];
    for (int p = 1; p < PARTS; p++) g += m.sums[0][p][lane], u += m.sums[1][p][lane];
    float v = silu(g) * u;
    a.h[16 * blockIdx.x + lane] = v;
    put_half(v, a.hh, a.stride, 0, 16 * blockIdx.x + lane);
}

// 128 rows of down (x): each warp a tile of 16 rows, all inputs.
template <class P, int NT> __device__ __forceinline__ void down(const ExpertsArgs& a, const Work& w, u32* pair) {
    u32 lane = threadIdx.x % 32, tile = 8 * blockIdx.x + threadIdx.x / 32, blocks = w.width / P::INPUTS;
    const u8* rows = w.down + (u64)tile * blocks * P::BYTES;
    bool mine = tile * 16 < a.inputs;
    open_books(w.packing, F32);
    for (u32 first = 0; first < w.count; first += 8 * NT) {
        __syncthreads();
        if (threadIdx.x < 8 * NT) pair[threadIdx.x] = pair_at(a, w, first + threadIdx.x);
        __syncthreads();
        if (!mine) continue;
        P held[1] = {};
        hold(rows, 0, blocks, held);
        float total[NT][4];
        const Columns<NT, false> x({a.hh, a.stride}, pair);
        tile_product<P, NT, false>(rows, blocks, held, x, total);
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 at = 8 * n + lane % 4 * 2 + i % 2, row = tile * 16 + lane / 4 + i / 2 * 8;
                if (first + at < w.count && row < a.inputs) a.y[(u64)pair[at] * a.inputs + row] = total[n][i];
            }
    }
}

template <int PACKING> __device__ __forceinline__ void down_floats(const ExpertsArgs& a, const Work& w) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u8* rows = w.down;
    for (u32 i = 0; i < w.count; i++) {
        u32 pair = pair_at(a, w, i), zero = 0;
        for (u32 r = 128 * blockIdx.x + warp; r < min(128 * blockIdx.x + 128, a.inputs); r += 8) {
            float sum[2];
            for (u32 p = 0; p < 2; p++) {
                float acc[1];
                float_part<PACKING, 1>(rows, r, w.width, p, a.h + (u64)pair * a.stride, &zero, acc);
                sum[p] = acc[0];
            }
            if (lane == 0) a.y[(u64)pair * a.inputs + r] = sum[0] + sum[1];
        }
    }
}

// Few tokens: a block owns 16 rows (x) of one token (y), each warp one of its experts, the shared one last; the sum
// goes straight to the residual stream. The same operations in the same order as `down` and `rms_norm`.
template <class P>
__device__ __forceinline__ void down_tile(const ExpertsArgs& a, const u8* matrix, u32 width, u32 pair, float* to) {
    u32 lane = threadIdx.x % 32, tile = blockIdx.x, blocks = width / P::INPUTS;
    const u8* rows = matrix + (u64)tile * blocks * P::BYTES;
    P held[1] = {};
    hold(rows, 0, blocks, held);
    float total[1][4];
    const Columns<1, true> x({a.hh, a.stride}, &pair);
    tile_product<P, 1, true>(rows, blocks, held, x, total);
    if (lane % 4 == 0) to[lane / 4] = total[0][0], to[lane / 4 + 8] = total[0][2];
}

template <int PACKING>
__device__ __forceinline__ void down_rows(const ExpertsArgs& a, const u8* matrix, u32 width, u32 pair, float* to) {
    u32 zero = 0;
    for (u32 r = 0; r < 16; r++) {
        float first[1], second[1];
        u32 row = min(16 * blockIdx.x + r, a.inputs - 1);
        float_part<PACKING, 1>(matrix, row, width, 0, a.h + (u64)pair * a.stride, &zero, first);
        float_part<PACKING, 1>(matrix, row, width, 1, a.h + (u64)pair * a.stride, &zero, second);
        if (threadIdx.x % 32 == 0) to[r] = first[0] + second[0];
    }
}

KERNEL(__launch_bounds__(512) experts_down_each, ExpertsArgs) {
    __shared__ float sums[16][16];
    u32 e = threadIdx.x / 32, t = blockIdx.y;
    open_books(a.routed.down_packing, a.shared.down_packing);
    after_previous();
    bool shared = e == a.used;
    u32 expert = shared ? 0 : a.chosen[(u64)t * a.used + e];
    const u8* matrix = shared ? a.shared.down.get() : down_of(a.routed, expert);
    u32 packing = shared ? a.shared.down_packing : a.routed.down_packing;
    u32 width = shared ? a.shared.width : a.routed.width;
    u32 pair = shared ? a.tokens * a.used + t : t * a.used + e;
#define DOWN_ROWS(P) down_rows<P>(a, matrix, width, pair, sums[e]); break
#define DOWN_TILE(P) down_tile<P>(a, matrix, width, pair, sums[e]); break
    switch (packing) {
        FLOAT_CASES(DOWN_ROWS)
        TILE_CASES(DOWN_TILE)
    }
    __syncthreads();
    u32 row = 16 * blockIdx.x + threadIdx.x;
    if (threadIdx.x >= 16 || row >= a.inputs) return;
    float v = a.residual[(u64)t * a.inputs + row];
    for (u32 i = 0; i <= a.used; i++) v = fmaf(a.weight[(u64)t * (a.used + 1) + i], sums[i][threadIdx.x], v);
    a.residual[(u64)t * a.inputs + row] = v;
}

// Floats of gate and up are of one kind; other pairs are refused when a model is loaded.
template <int NT, bool ONE, bool JOINED> __device__ __forceinline__ void up_any(const ExpertsArgs& a) {
    __shared__ Scratch<NT> m;
    Work w;
    after_previous();
    if (!find(a, w, false) || 32 * blockIdx.x >= w.width) return;
#define UP_FLOATS(P) return up_floats<P, NT, JOINED>(a, w, m)
    switch (w.packing) {
        FLOAT_CASES(UP_FLOATS)
        default: return up<NT, ONE, JOINED>(a, w, m);
    }
}

template <int NT> __device__ __forceinline__ void down_any(const ExpertsArgs& a) {
    __shared__ u32 pair[8 * NT];
    Work w;
    after_previous();
    if (!find(a, w, true)) return;
#define DOWN_FLOATS(P) return down_floats<P>(a, w)
#define DOWN(P) return down<P, NT>(a, w, pair)
    switch (w.packing) {
        FLOAT_CASES(DOWN_FLOATS)
        TILE_CASES(DOWN)
    }
}

KERNEL(__launch_bounds__(256, 3) experts_up_dense, ExpertsArgs) {
    __shared__ DenseScratch m;
#define DENSE_UP(P) return dense_up<P>(a, m)
    switch (a.shared.gate_packing) { TILE_CASES(DENSE_UP) }
}
KERNEL(__launch_bounds__(256, 4) experts_up_one, ExpertsArgs) { up_any<1, true, false>(a); }
KERNEL(__launch_bounds__(256, 3) experts_up_1, ExpertsArgs) { up_any<1, false, false>(a); }
KERNEL(__launch_bounds__(256, 2) experts_up_joined, ExpertsArgs) { up_any<1, false, true>(a); }
KERNEL(__launch_bounds__(256, 2) experts_down_1, ExpertsArgs) { down_any<1>(a); }
