// Which experts a token goes to, found by whoever reads them.
#pragma once
#include "product.cuh"

// One warp chooses, a lane N of the experts: lane n < used gets the n-th largest (the lowest index among equals) and its
// weight, renormalised over the chosen, as `route` does.
template <int N>
__device__ __forceinline__ void pick(const float* logits, u32 experts, u32 used, u32& expert, float& weight) {
    u32 lane = threadIdx.x % 32;
    u32 p[N];
#pragma unroll
    for (int i = 0; i < N; i++) p[i] = lane + 32 * i < experts ? key_of(logits[lane + 32 * i]) : 0;
    float top = 0, picked = 0, mine = 0;
    expert = 0;
    for (u32 n = 0; n < used; n++) {
        u32 best = 0, place = 0xffffffffu;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (p[i] > best) best = p[i], place = lane + 32 * i;
        u32 highest = __reduce_max_sync(FULL, best);
        place = __reduce_min_sync(FULL, best == highest ? place : 0xffffffffu);
#pragma unroll
        for (int i = 0; i < N; i++)
            if (place == lane + 32 * i) p[i] = 0;
        float logit = of_key(highest);
        if (n == 0) top = logit;
        float e = expf(logit - top);
        picked += e;
        if (lane == n) mine = e, expert = place;
    }
    weight = mine / picked;
}
