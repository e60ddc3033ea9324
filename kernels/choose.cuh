// Which experts a token goes to.
#pragma once
#include "common.cuh"

// Softmax over all experts, the `used` largest (the lowest index among equals), renormalised; the shared expert's
// gate is the sigmoid of the router's last output. Then the pairs (token, choice) sorted by expert, tokens in order.
// Experts to 1,024, used to 32.
struct RouteArgs {
    Ptr<float> logits;  // [tokens][experts + 1]
    Ptr<float> weight;  // [tokens][used + 1], the shared gate last
    Ptr<u32> chosen;    // [tokens][used]
    Ptr<u32> active;    // [0]: how many experts have tokens; then those, ascending
    Ptr<u32> start;     // [experts + 1]: where the pairs of an expert begin
    Ptr<u32> pairs;     // [tokens·used]: token·used + choice
    u32 tokens, experts, used, pad;
};

// Floats as integers in the same order.
__device__ __forceinline__ u32 ordered(float v) {
    u32 u = __float_as_uint(v);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

__device__ __forceinline__ float from_ordered(u32 u) {
    return __uint_as_float(u & 0x80000000u ? u & 0x7fffffffu : ~u);
}

// One warp chooses for token t; a lane holds N of the experts.
template <int N> __device__ __forceinline__ void choose(const RouteArgs& a, u32 t, u32* chosen) {
    u32 lane = threadIdx.x % 32;
    const float* logits = a.logits + (u64)t * (a.experts + 1);
    u32 p[N];
#pragma unroll
    for (int i = 0; i < N; i++) p[i] = lane + 32 * i < a.experts ? ordered(logits[lane + 32 * i]) : 0;
    float top = 0, picked = 0, mine = 0;
    for (u32 n = 0; n < a.used; n++) {
        u32 best = 0, place = 0xffffffffu;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (p[i] > best) best = p[i], place = lane + 32 * i;
        u32 highest = __reduce_max_sync(FULL, best);
        place = __reduce_min_sync(FULL, best == highest ? place : 0xffffffffu);
#pragma unroll
        for (int i = 0; i < N; i++)
            if (place == lane + 32 * i) p[i] = 0;
        float logit = from_ordered(highest);
        if (n == 0) top = logit;
        // The softmax's denominator divides out when the chosen are renormalised.
        float e = expf(logit - top);
        picked += e;
        if (lane == n) mine = e, chosen[n] = a.chosen[(u64)t * a.used + n] = place;
    }
    if (lane < a.used) a.weight[(u64)t * (a.used + 1) + lane] = mine / picked;
    if (lane == 0) a.weight[(u64)t * (a.used + 1) + a.used] = sigmoid(logits[a.experts]);
}
