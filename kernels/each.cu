// The experts of few tokens, which seldom share one: every token reads its own. The kernels choose the experts
// themselves, and the results go straight to the residual stream. The same operations in the same order as in
// experts.cu and by `rms_norm`.
#include "expert.cuh"
#include "pick.cuh"

// Experts of a token, the shared one counted.
#define EACH_MAX 9

struct EachArgs {
    Expert routed, shared;
    Ptr<float> logits;    // [tokens][experts + 1]
    Ptr<u16> halves;      // [tokens][inputs]
    Ptr<u16> hh;          // inner values [tokens][used + 1][stride]
    Ptr<float> residual;  // [tokens][inputs]
    u32 inputs, used, experts, stride;
};

// The expert of token t at place `place` in the order of the choice; `weight`: of the lane's own place.
__device__ __forceinline__ u32 picked_at(const EachArgs& a, u32 t, u32 place, float& weight) {
    u32 expert;
    const float* logits = a.logits + (u64)t * (a.experts + 1);
    if (a.experts <= 256) pick<8>(logits, a.experts, a.used, expert, weight);
    else pick<32>(logits, a.experts, a.used, expert, weight);
    return __shfl_sync(FULL, expert, (int)place);
}

// Tiles whose weights a warp has in flight together: what the registers hold.
template <class P> __device__ __forceinline__ constexpr int in_flight() { return sizeof(P) <= 88 ? 4 : 2; }

// 32 rows (x) of gate and up of one expert (y), the shared one last, of token z; a warp owns a part of the inputs.
template <class P>
__device__ __forceinline__ void rise(const EachArgs& a, const Expert& e, u32 expert, bool shared,
                                     float (&sums)[4][PARTS][16]) {
    const int DEEP = in_flight<P>();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = a.inputs / P::INPUTS, t = blockIdx.z;
    u32 first = part_start(warp, blocks), some = first < part_start(warp + 1, blocks);
    u64 tile = (u64)blocks * P::BYTES;
    const u8* gate = e.gate + expert * e.gate_bytes + 2 * blockIdx.x * tile;
    const u8* up = e.up + expert * e.up_bytes + 2 * blockIdx.x * tile;
    P held[DEEP] = {};
#pragma unroll
    for (int d = 0; d < DEEP; d++)
        if (some) held[d].load((d < 2 ? gate : up) + d % 2 * tile + (u64)first * P::BYTES, lane);
    if (shared) after_previous();
    const Columns<1, true> x({a.halves, a.inputs}, &t);
#pragma unroll 1
    for (int i = 0; i < 4; i += DEEP) {
#pragma unroll
        for (int d = 0; d < DEEP; d++) {
            const u8* rows = (i + d < 2 ? gate : up) + (i + d) % 2 * tile;
            float acc[1][4];
            part_product<P, 1, true>(rows, warp, blocks, held[d], x, acc);
            if (lane % 4 == 0)
                sums[i + d][warp][lane / 4] = acc[0][0], sums[i + d][warp][lane / 4 + 8] = acc[0][2];
            if (i + d + DEEP < 4 && some)
                held[d].load((i + d + DEEP < 2 ? gate : up) + (i + d + DEEP) % 2 * tile + (u64)first * P::BYTES, lane);
        }
    }
    __syncthreads();
    if (warp > 0) return;
    float g = sums[lane / 16][0][lane % 16], u = sums[2 + lane / 16][0][lane % 16];
#pragma unroll
    for (int p = 1; p < PARTS; p++) g += sums[lane / 16][p][lane % 16], u += sums[2 + lane / 16][p][lane % 16];
    put_half(silu(g) * u, a.hh, a.stride, t * gridDim.y + blockIdx.y, 32 * blockIdx.x + lane);
}

// This kernel lets the next one start only when it has waited itself: that one reads the router's output before its own
// wait.
KERNEL(__launch_bounds__(256, 2) each_up, EachArgs) {
    __shared__ float sums[4][PARTS][16];
    bool shared = blockIdx.y == a.used;
    u32 expert = 0;
    const Expert& e = shared ? a.shared : a.routed;
    if (!shared) {
        float weight;
        after_previous();
        expert = picked_at(a, blockIdx.z, blockIdx.y, weight);
    }
    if (32 * blockIdx.x >= e.width) return;
    switch (e.gate_packing) {
#if HAS(Q4)
        case Q4: return rise<PackQ4>(a, e, expert, shared, sums);
#endif
#if HAS(IQ3)
        case IQ3: return rise<PackIQ3>(a, e, expert, shared, sums);
#endif
#if HAS(Q5)
        case Q5: return rise<PackQ5>(a, e, expert, shared, sums);
#endif
#if HAS(Q6)
        case Q6: return rise<PackQ6>(a, e, expert, shared, sums);
#endif
#if HAS(B8)
        case B8: return rise<PackB8>(a, e, expert, shared, sums);
#endif
#if HAS(K8)
        case K8: return rise<PackK8>(a, e, expert, shared, sums);
#endif
    }
}

// One tile of 16 rows of an expert by one warp.
template <class P>
__device__ __forceinline__ void fall(const EachArgs& a, const Expert& e, u32 expert, u32 place, float* to) {
    u32 lane = threadIdx.x % 32, blocks = e.width / P::INPUTS, row = blockIdx.y * (a.used + 1) + place;
    const u8* rows = e.down + expert * e.down_bytes + (u64)blockIdx.x * blocks * P::BYTES;
    const int DEEP = sizeof(P) <= 120 ? 2 : 1;
    P held[DEEP] = {};
#pragma unroll
    for (int d = 0; d < DEEP; d++)
        if ((u32)d < blocks) held[d].load(rows + d * P::BYTES, lane);
    after_previous();
    const Columns<1, true> x({a.hh, a.stride}, &row);
    float total[2] = {0, 0}, acc[1][4] = {{0, 0, 0, 0}};
    u32 part = 0;
#pragma unroll 1
    for (u32 i = 0; i < blocks; i += DEEP) {
#pragma unroll
        for (int d = 0; d < DEEP; d++) {
            if (i + d >= blocks) break;
            block_product<P, 1, true>(held[d], x, i + d, acc);
            if (i + d + DEEP < blocks) held[d].load(rows + (u64)(i + d + DEEP) * P::BYTES, lane);
            while (part_start(part + 1, blocks) <= i + d) part++;
            if (part_start(part + 1, blocks) == i + d + 1)
                total[0] += acc[0][0] * (1.0f / WEIGHT_UNIT), total[1] += acc[0][2] * (1.0f / WEIGHT_UNIT),
                    acc[0][0] = acc[0][1] = acc[0][2] = acc[0][3] = 0;
        }
    }
    if (lane % 4 == 0) to[lane / 4] = total[0], to[lane / 4 + 8] = total[1];
}

// A block owns 16 rows (x) of a token (y), each warp one of the chosen experts, the shared one last; the sum goes to the
// residual stream.
KERNEL(__launch_bounds__(32 * EACH_MAX, 2) each_down, EachArgs) {
    __shared__ float sums[EACH_MAX][16];
    u32 lane = threadIdx.x % 32, place = threadIdx.x / 32, t = blockIdx.y, row = 16 * blockIdx.x + lane;
    bool shared = place == a.used, mine = place == 0 && lane < 16 && row < a.inputs;
    const Expert& e = shared ? a.shared : a.routed;
    // Both were written before the kernel that this one has to wait for began.
    float weight, v = mine ? a.residual[(u64)t * a.inputs + row] : 0.0f;
    float gate = sigmoid(a.logits[(u64)t * (a.experts + 1) + a.experts]);
    u32 expert = picked_at(a, t, place, weight);
    if (shared) expert = 0;
    switch (e.down_packing) {
#if HAS(Q4)
        case Q4: fall<PackQ4>(a, e, expert, place, sums[place]); break;
#endif
#if HAS(IQ3)
        case IQ3: fall<PackIQ3>(a, e, expert, place, sums[place]); break;
#endif
#if HAS(Q5)
        case Q5: fall<PackQ5>(a, e, expert, place, sums[place]); break;
#endif
#if HAS(Q6)
        case Q6: fall<PackQ6>(a, e, expert, place, sums[place]); break;
#endif
#if HAS(B8)
        case B8: fall<PackB8>(a, e, expert, place, sums[place]); break;
#endif
#if HAS(K8)
        case K8: fall<PackK8>(a, e, expert, place, sums[place]); break;
#endif
    }
    __syncthreads();
    if (place > 0) return;
    for (u32 i = 0; i <= a.used; i++) {
        float share = __shfl_sync(FULL, weight, (int)i);
        v = fmaf(i < a.used ? share : gate, lane < 16 ? sums[i][lane] : 0.0f, v);
    }
    if (mine) a.residual[(u64)t * a.inputs + row] = v;
}
