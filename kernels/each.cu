// The experts of few tokens, which seldom share one: every token reads its own. The kernels choose the experts
// themselves, and the results go straight to the residual stream. The same operations in the same order as in
// experts.cu and by `rms_norm`.
#include "expert.cuh"
#include "norm.cuh"
#include "pick.cuh"

// Experts of a token, the shared one counted.
#define EACH_MAX 9

struct EachArgs {
    Expert routed, shared;
    Ptr<u8> router;       // [experts + 1][inputs], floats
    Ptr<float> x;         // [tokens][inputs]
    Ptr<u16> halves;      // the same; not read where x is yet to be normalised
    Normed norm;          // of x, of a single token
    Ptr<float> logits;    // [tokens][experts + 1]
    Ptr<u16> hh;          // inner values [tokens][used + 1][stride]
    Ptr<float> residual;  // [tokens][inputs]
    Ptr<float> squares;   // [tokens][inputs / 16] or null: sums of the squares of the residual stream, for the next norm
    u32 inputs, used, experts, stride, tokens, router_packing;
};

// Shared memory of a block: sums of gate and up by parts, or of four rows of the router by halves.
struct EachScratch {
    union {
        float sums[2][PARTS][16];
        float floats[8][4];
    };
    uint4 halves[NORMED_INPUTS_MAX / 8];  // of a token that is normalised here
};

// acc[d] = part `p` of a tile of gate and of one of up times a token, side by side; `held` has their first blocks.
template <class P>
__device__ __forceinline__ void pair_product(const u8* const (&tiles)[2], u32 p, u32 blocks, P (&held)[2],
                                             const Columns<1, true>& x, float (&acc)[2][4]) {
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
        for (int i = 0; i < 4; i++) acc[d][i] *= 1.0f / WEIGHT_UNIT;
}

// A block's bytes on their way to the second-level cache, by a warp.
template <class P> __device__ __forceinline__ void fetch_block(const u8* at) {
    for (u32 i = 128 * (threadIdx.x % 32); i < P::BYTES; i += 4096) fetch_ahead(at + i);
}

// 16 rows (tile) of gate and up of one expert for token t, to its place in the order of the choice; a warp owns a part of the
// inputs. `ahead`: the weights are on their way before the wait, which is then made here. Those of tile `next` follow them, if
// there is one.
template <class P>
__device__ __forceinline__ void rise(const EachArgs& a, const u8* gate, const u8* up, u32 tile, u32 next, u32 t, u32 place,
                                     bool ahead, EachScratch& m) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = a.inputs / P::INPUTS;
    u32 at = part_start(warp, blocks), end = part_start(warp + 1, blocks);
    const u8* const rows[2] = {gate + (u64)tile * blocks * P::BYTES, up + (u64)tile * blocks * P::BYTES};
    P held[2] = {};
#pragma unroll
    for (int d = 0; d < 2; d++)
        if (at < end) held[d].load(rows[d] + (u64)at * P::BYTES, lane);
    if (at < end && next > tile)
        for (int d = 0; d < 2; d++) fetch_block<P>(rows[d] + ((u64)(next - tile) * blocks + at) * P::BYTES);
    bool normed = a.norm.squares.at;
    const WarpHalves own(a.norm, normed ? at * P::INPUTS : 0, normed ? end * P::INPUTS : 0);
    if (ahead) after_previous();
    if (normed) own.make(a.norm, a.x, a.inputs, (u16*)m.halves);
    float acc[2][4];
    const u16* halves = normed ? (const u16*)m.halves : a.halves + (u64)t * a.inputs;
    pair_product<P>(rows, warp, blocks, held, Columns<1, true>(halves), acc);
#pragma unroll
    for (int d = 0; d < 2; d++)
        if (lane % 4 == 0) m.sums[d][warp][lane / 4] = acc[d][0], m.sums[d][warp][lane / 4 + 8] = acc[d][2];
    __syncthreads();
    if (threadIdx.x >= 16) return;
    float g = m.sums[0][0][lane], u = m.sums[1][0][lane];
#pragma unroll
    for (int p = 1; p < PARTS; p++) g += m.sums[0][p][lane], u += m.sums[1][p][lane];
    put_half(silu(g) * u, a.hh, a.stride, t * (a.used + 1) + place, 16 * tile + lane);
}

__device__ __forceinline__ void rise_any(const EachArgs& a, const Expert& e, u32 expert, u32 tile, u32 next, u32 t, u32 place,
                                         bool ahead, EachScratch& m) {
    if (16 * next >= e.width) next = tile;
    const u8 *gate = e.gate + expert * e.gate_bytes, *up = e.up + expert * e.up_bytes;
    switch (e.gate_packing) {
#if HAS(Q4)
        case Q4: return rise<PackQ4>(a, gate, up, tile, next, t, place, ahead, m);
#endif
#if HAS(IQ3)
        case IQ3: return rise<PackIQ3>(a, gate, up, tile, next, t, place, ahead, m);
#endif
#if HAS(Q5)
        case Q5: return rise<PackQ5>(a, gate, up, tile, next, t, place, ahead, m);
#endif
#if HAS(Q6)
        case Q6: return rise<PackQ6>(a, gate, up, tile, next, t, place, ahead, m);
#endif
#if HAS(B8)
        case B8: return rise<PackB8>(a, gate, up, tile, next, t, place, ahead, m);
#endif
#if HAS(K8)
        case K8: return rise<PackK8>(a, gate, up, tile, next, t, place, ahead, m);
#endif
    }
}

// Four rows of the router for all tokens: two warps a row, each one half of the inputs.
template <int PACKING, int TOKENS> __device__ __forceinline__ void router_rows(const EachArgs& a, EachScratch& m) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows = a.experts + 1, token[TOKENS];
    const FloatPart<PACKING, 8> part(a.router, min(4 * blockIdx.x + warp / 2, rows - 1), a.inputs, warp % 2);
    after_previous();
    float acc[TOKENS];
#pragma unroll
    for (int n = 0; n < TOKENS; n++) token[n] = min((u32)n, a.tokens - 1);
    if (TOKENS == 1 && a.norm.squares.at) part.template times<TOKENS>(NormedRow(a.norm, a.x, a.inputs), token, acc);
    else part.template times<TOKENS>(PlainRows{a.x, a.inputs}, token, acc);
    if (lane == 0)
        for (int n = 0; n < TOKENS; n++) m.floats[warp][n] = acc[n];
    __syncthreads();
    u32 r = threadIdx.x % 4, n = threadIdx.x / 4, row = 4 * blockIdx.x + r;
    if (n < a.tokens && row < rows) a.logits[(u64)n * rows + row] = m.floats[2 * r][n] + m.floats[2 * r + 1][n];
}

template <int TOKENS> __device__ __forceinline__ void router_any(const EachArgs& a, EachScratch& m) {
    switch (a.router_packing) {
#if HAS(F32)
        case F32: return router_rows<F32, TOKENS>(a, m);
#endif
#if HAS(F16)
        case F16: return router_rows<F16, TOKENS>(a, m);
#endif
#if HAS(BF16)
        case BF16: return router_rows<BF16, TOKENS>(a, m);
#endif
    }
}

// What waits for no choice: the router's logits (the first blocks), and gate and up of the shared expert, 16 rows of a token a
// block.
KERNEL(__launch_bounds__(256, 2) each_route, EachArgs) {
    __shared__ EachScratch m;
    u32 routing = a.experts / 4 + 1, tiles = (a.shared.width + 15) / 16;
    if (blockIdx.x >= routing) {
        u32 i = blockIdx.x - routing;
        return rise_any(a, a.shared, 0, i % tiles, i % tiles, i / tiles, a.used, true, m);
    }
    if (a.tokens == 1) router_any<1>(a, m);
    else router_any<4>(a, m);
}

// 16 rows (x; of MANY tokens also x + grid …) of gate and up of the expert at a place of the choice (y) of a token (z). This
// kernel lets the next one start only when it has waited itself: that one reads the router's output before its own wait.
template <bool MANY> __device__ __forceinline__ void rise_all(const EachArgs& a, EachScratch& m) {
    after_previous();
    const float* logits = a.logits + (u64)blockIdx.z * (a.experts + 1);
    u32 expert = a.experts <= 256 ? pick_one<8>(logits, a.experts, blockIdx.y) : pick_one<32>(logits, a.experts, blockIdx.y);
    if (!MANY) return rise_any(a, a.routed, expert, blockIdx.x, blockIdx.x, blockIdx.z, blockIdx.y, false, m);
    for (u32 tile = blockIdx.x; 16 * tile < a.routed.width; tile += gridDim.x) {
        if (tile > blockIdx.x) __syncthreads();
        rise_any(a, a.routed, expert, tile, tile + gridDim.x, blockIdx.z, blockIdx.y, false, m);
    }
}

KERNEL(__launch_bounds__(256, 2) each_up_one, EachArgs) {
    __shared__ EachScratch m;
    rise_all<false>(a, m);
}
KERNEL(__launch_bounds__(256, 2) each_up, EachArgs) {
    __shared__ EachScratch m;
    rise_all<true>(a, m);
}

// The expert of token t at place `place` in the order of the choice; `weight`: of the lane's own place.
__device__ __forceinline__ u32 picked_at(const EachArgs& a, u32 t, u32 place, float& weight) {
    u32 expert;
    const float* logits = a.logits + (u64)t * (a.experts + 1);
    if (a.experts <= 256) pick<8>(logits, a.experts, a.used, expert, weight);
    else pick<32>(logits, a.experts, a.used, expert, weight);
    return __shfl_sync(FULL, expert, (int)place);
}

// Parts of a tile of 16 rows of an expert, to `parts`, by warp `share` of the WARPS of its place. Weights of tile `next` follow,
// if there is one.
template <class P, int WARPS>
__device__ __forceinline__ void fall(const EachArgs& a, const Expert& e, u32 expert, u32 place, u32 share, u32 tile, u32 next,
                                     float (*parts)[16]) {
    u32 lane = threadIdx.x % 32, blocks = e.width / P::INPUTS, row = blockIdx.y * (a.used + 1) + place;
    u32 part = share * PARTS / WARPS, from = part_start(part, blocks), end = part_start(part + PARTS / WARPS, blocks);
    const u8* rows = e.down + expert * e.down_bytes + (u64)tile * blocks * P::BYTES;
    const int DEEP = WARPS == 1 && sizeof(P) <= 120 ? 2 : 1;
    P held[DEEP] = {};
#pragma unroll
    for (int d = 0; d < DEEP; d++)
        if (from + d < end) held[d].load(rows + (from + d) * P::BYTES, lane);
    for (u32 i = from; next > tile && i < end; i++) fetch_block<P>(rows + ((u64)(next - tile) * blocks + i) * P::BYTES);
    // A part without blocks adds nothing.
    for (u32 i = lane; i < 16 * PARTS / WARPS; i += 32) parts[part + i / 16][i % 16] = 0;
    __syncwarp();
    after_previous();
    const Columns<1, true> x({a.hh, a.stride}, &row);
    float acc[1][4] = {{0, 0, 0, 0}};
#pragma unroll 1
    for (u32 i = from; i < end; i += DEEP) {
#pragma unroll
        for (int d = 0; d < DEEP; d++) {
            if (i + d >= end) break;
            block_product<P, 1, true>(held[d], x, i + d, acc);
            if (i + d + DEEP < end) held[d].load(rows + (u64)(i + d + DEEP) * P::BYTES, lane);
            while (part_start(part + 1, blocks) <= i + d) part++;
            if (part_start(part + 1, blocks) != i + d + 1) continue;
            if (lane % 4 == 0)
                parts[part][lane / 4] = acc[0][0] * (1.0f / WEIGHT_UNIT), parts[part][lane / 4 + 8] = acc[0][2] * (1.0f / WEIGHT_UNIT);
            acc[0][0] = acc[0][1] = acc[0][2] = acc[0][3] = 0;
        }
    }
}

template <int WARPS>
__device__ __forceinline__ void fall_any(const EachArgs& a, const Expert& e, u32 expert, u32 place, u32 share, u32 tile, u32 next,
                                         float (*parts)[16]) {
    switch (e.down_packing) {
#if HAS(Q4)
        case Q4: return fall<PackQ4, WARPS>(a, e, expert, place, share, tile, next, parts);
#endif
#if HAS(IQ3)
        case IQ3: return fall<PackIQ3, WARPS>(a, e, expert, place, share, tile, next, parts);
#endif
#if HAS(Q5)
        case Q5: return fall<PackQ5, WARPS>(a, e, expert, place, share, tile, next, parts);
#endif
#if HAS(Q6)
        case Q6: return fall<PackQ6, WARPS>(a, e, expert, place, share, tile, next, parts);
#endif
#if HAS(B8)
        case B8: return fall<PackB8, WARPS>(a, e, expert, place, share, tile, next, parts);
#endif
#if HAS(K8)
        case K8: return fall<PackK8, WARPS>(a, e, expert, place, share, tile, next, parts);
#endif
    }
}

// A block owns 16 rows (x; of many tokens also x + grid …) of a token (y), WARPS warps each of the chosen experts, the shared
// one last; the sum goes to the residual stream.
template <int WARPS> __device__ __forceinline__ void fall_all(const EachArgs& a) {
    __shared__ float parts[EACH_MAX][PARTS][16], sums[EACH_MAX][16];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, place = warp / WARPS, share = warp % WARPS, t = blockIdx.y;
    bool shared = place == a.used;
    const Expert& e = shared ? a.shared : a.routed;
    // What is read here was written before the kernel that this one has to wait for began; so was the residual stream.
    float weight, gate = sigmoid(a.logits[(u64)t * (a.experts + 1) + a.experts]);
    u32 expert = picked_at(a, t, place, weight), tiles = (a.inputs + 15) / 16;
    if (shared) expert = 0;
    // A single token's tiles have a block each.
    u32 step = WARPS > 1 ? tiles : gridDim.x;
    for (u32 tile = blockIdx.x; tile < tiles; tile += step) {
        u32 row = 16 * tile + lane, next = tile + step;
        bool mine = warp == 0 && lane < 16 && row < a.inputs;
        float v = mine ? a.residual[(u64)t * a.inputs + row] : 0.0f;
        fall_any<WARPS>(a, e, expert, place, share, tile, next < tiles ? next : tile, parts[place]);
        __syncthreads();
        if (share == 0 && lane < 16) {
            float sum = parts[place][0][lane];
#pragma unroll
            for (int p = 1; p < PARTS; p++) sum += parts[place][p][lane];
            sums[place][lane] = sum;
        }
        __syncthreads();
        if (warp > 0) continue;
        for (u32 i = 0; i <= a.used; i++) {
            float part = __shfl_sync(FULL, weight, (int)i);
            v = fmaf(i < a.used ? part : gate, lane < 16 ? sums[i][lane] : 0.0f, v);
        }
        if (mine) a.residual[(u64)t * a.inputs + row] = v;
        if (!a.squares.at) continue;
        float square = sixteen(mine ? v : 0.0f);
        if (lane == 0) a.squares[(u64)t * tiles + tile] = square;
    }
}

// Of a single token there are fewer blocks than multiprocessors: two warps an expert.
KERNEL(__launch_bounds__(64 * EACH_MAX, 1) each_down_one, EachArgs) { fall_all<2>(a); }
KERNEL(__launch_bounds__(32 * EACH_MAX, 2) each_down, EachArgs) { fall_all<1>(a); }
