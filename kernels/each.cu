// The experts of few tokens, which seldom share one: every token reads its own. Those that read gate and up choose them
// and write the choice down, and the results go straight to the residual stream. The same operations in the same order as in
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
    Ptr<u32> chosen;      // [tokens][used], in the order of the choice
    Ptr<u16> hh;          // inner values [tokens][used + 1][stride]
    Ptr<float> residual;  // [tokens][inputs]
    Ptr<float> squares;   // [tokens][inputs / 16] or null: sums of the squares of the residual stream, for the next norm
    u32 inputs, used, experts, stride, tokens, router_packing;
};

// Shared memory of a block: sums of gate and up by parts, of two tiles, of which one is joined while the next is multiplied; or
// of four rows of the router by halves.
struct EachScratch {
    union {
        float sums[2][2][PARTS][16];
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

// The expert of token t at a place of the choice, by a warp.
__device__ __forceinline__ u32 choose(const EachArgs& a, u32 t, u32 place) {
    const float* logits = a.logits + (u64)t * (a.experts + 1);
    return a.experts <= 256 ? pick_one<8>(logits, a.experts, place) : pick_one<32>(logits, a.experts, place);
}

// 16 rows (tile; of MANY tokens also each that is as many further as there are blocks) of gate and up of one expert for token t,
// to its place in the order of the choice; a warp owns a part of the inputs. The weights of the shared expert are on their way
// before the wait, those of the next tile while the sums of one are joined.
template <class P, bool ROUTED, bool MANY>
__device__ __forceinline__ void rise(const EachArgs& a, const Expert& e, u32 tile, u32 t, u32 place, EachScratch& m) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = a.inputs / P::INPUTS;
    u32 at = part_start(warp, blocks), end = part_start(warp + 1, blocks);
    P held[2] = {};
    const u8 *gate = e.gate, *up = e.up;
    auto rows = [&](int d) { return (d == 0 ? gate : up) + (u64)tile * blocks * P::BYTES; };
    auto hold_first = [&] {
#pragma unroll
        for (int d = 0; d < 2; d++)
            if (at < end) held[d].load(rows(d) + (u64)at * P::BYTES, lane);
    };
    if (!ROUTED) hold_first();
    bool normed = a.norm.squares.at;
    const WarpHalves own(a.norm, normed ? at * P::INPUTS : 0, normed ? end * P::INPUTS : 0);
    after_previous();
    // Every warp chooses: one for all of them would be no sooner.
    if (ROUTED) {
        u32 expert = choose(a, t, place);
        if (threadIdx.x == 0 && tile == 0) a.chosen[t * a.used + place] = expert;
        gate += expert * e.gate_bytes, up += expert * e.up_bytes;
        hold_first();
    }
    if (normed) own.make(a.norm, a.x, a.inputs, (u16*)m.halves);
    const Columns<1, true> x(normed ? (const u16*)m.halves : a.halves + (u64)t * a.inputs);
#pragma unroll 1
    for (u32 turn = 0;; turn++) {
        float acc[2][4];
        const u8* const tiles[2] = {rows(0), rows(1)};
        pair_product<P>(tiles, warp, blocks, held, x, acc);
        u32 to = 16 * tile;
        tile += gridDim.x;
        bool more = MANY && 16 * tile < e.width;
        if (more) hold_first();
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

template <bool ROUTED, bool MANY>
__device__ __forceinline__ void rise_any(const EachArgs& a, const Expert& e, u32 tile, u32 t, u32 place, EachScratch& m) {
    switch (e.gate_packing) {
#if HAS(Q4)
        case Q4: return rise<PackQ4, ROUTED, MANY>(a, e, tile, t, place, m);
#endif
#if HAS(IQ3)
        case IQ3: return rise<PackIQ3, ROUTED, MANY>(a, e, tile, t, place, m);
#endif
#if HAS(Q5)
        case Q5: return rise<PackQ5, ROUTED, MANY>(a, e, tile, t, place, m);
#endif
#if HAS(Q6)
        case Q6: return rise<PackQ6, ROUTED, MANY>(a, e, tile, t, place, m);
#endif
#if HAS(B8)
        case B8: return rise<PackB8, ROUTED, MANY>(a, e, tile, t, place, m);
#endif
#if HAS(K8)
        case K8: return rise<PackK8, ROUTED, MANY>(a, e, tile, t, place, m);
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
        return rise_any<false, false>(a, a.shared, i % tiles, i / tiles, a.used, m);
    }
    if (a.tokens == 1) router_any<1>(a, m);
    else router_any<4>(a, m);
}

// 16 rows (x; of many tokens also x + grid …) of gate and up of the expert at a place of the choice (y) of a token (z).
KERNEL(__launch_bounds__(256, 2) each_up_one, EachArgs) {
    __shared__ EachScratch m;
    rise_any<true, false>(a, a.routed, blockIdx.x, blockIdx.z, blockIdx.y, m);
}
KERNEL(__launch_bounds__(256, 2) each_up, EachArgs) {
    __shared__ EachScratch m;
    rise_any<true, true>(a, a.routed, blockIdx.x, blockIdx.z, blockIdx.y, m);
}

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

// Tiles of 16 rows of the expert at a place of the choice, by warp `share` of its WARPS; a single one where there are two, else
// also each that is as many further as there are blocks, its weights on their way while one is added up. `picked`: the experts
// of the token, a lane each. One warp adds them to `v`, what the residual stream has for it.
template <class P, int WARPS>
__device__ __forceinline__ void fall(const EachArgs& a, const Expert& e, u32 picked, u32 place, u32 share, float v, FallScratch& m) {
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
                block_product<P, 1, true>(held[d], x, i + d, acc);
                // The block that takes its place: of this tile, or of the next one.
                bool last = i + d + DEEP >= end;
                u32 follows = last ? gridDim.x * blocks + from + d : i + d + DEEP;
                if (!last || more) held[d].load(rows + (u64)follows * P::BYTES, lane);
                while (part_start(part + 1, blocks) <= i + d) part++;
                if (part_start(part + 1, blocks) != i + d + 1) continue;
                if (lane % 4 == 0)
                    parts[part][lane / 4] = acc[0][0] * (1.0f / WEIGHT_UNIT), parts[part][lane / 4 + 8] = acc[0][2] * (1.0f / WEIGHT_UNIT);
                acc[0][0] = acc[0][1] = acc[0][2] = acc[0][3] = 0;
            }
        }
        if (WARPS == 1) __syncwarp();
        else __syncthreads();
        auto& sums = m.sums[turn % 2];
        if (share == 0 && lane < 16) {
            float sum = parts[0][lane];
#pragma unroll
            for (int p = 1; p < PARTS; p++) sum += parts[p][lane];
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
template <int WARPS> __device__ __forceinline__ void fall_all(const EachArgs& a) {
    __shared__ FallScratch m;
    u32 warp = threadIdx.x / 32, place = warp / WARPS, share = warp % WARPS, t = blockIdx.y;
    bool shared = place == a.used;
    const Expert& e = shared ? a.shared : a.routed;
    // What is read before the wait was written before the kernel that has to be waited for began.
    float v = warp == 0 ? before(a, t, blockIdx.x) : 0.0f;
    after_previous();
    u32 picked = a.chosen[t * a.used + min(threadIdx.x % 32, a.used - 1)];
    switch (e.down_packing) {
#if HAS(Q4)
        case Q4: return fall<PackQ4, WARPS>(a, e, picked, place, share, v, m);
#endif
#if HAS(IQ3)
        case IQ3: return fall<PackIQ3, WARPS>(a, e, picked, place, share, v, m);
#endif
#if HAS(Q5)
        case Q5: return fall<PackQ5, WARPS>(a, e, picked, place, share, v, m);
#endif
#if HAS(Q6)
        case Q6: return fall<PackQ6, WARPS>(a, e, picked, place, share, v, m);
#endif
#if HAS(B8)
        case B8: return fall<PackB8, WARPS>(a, e, picked, place, share, v, m);
#endif
#if HAS(K8)
        case K8: return fall<PackK8, WARPS>(a, e, picked, place, share, v, m);
#endif
    }
}

// Of a single token there are fewer blocks than multiprocessors: two warps an expert.
KERNEL(__launch_bounds__(64 * EACH_MAX, 1) each_down_one, EachArgs) { fall_all<2>(a); }
KERNEL(__launch_bounds__(32 * EACH_MAX, 2) each_down, EachArgs) { fall_all<1>(a); }
