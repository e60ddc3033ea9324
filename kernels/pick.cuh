// Which experts a token goes to, found by whoever reads them.
#pragma once
#include "product.cuh"

// The logits of a token's router in a warp, a lane N of the experts.
template <int N> struct Choice {
    u32 key[N];

    __device__ __forceinline__ Choice(const float* logits, u32 experts) {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < N; i++) key[i] = lane + 32 * i < experts ? key_of(logits[lane + 32 * i]) : 0;
    }

    // Takes the largest out, the lowest index among equals: which it is, and its logit.
    __device__ __forceinline__ u32 take(float& logit) {
        u32 best[N], at[N];
#pragma unroll
        for (int i = 0; i < N; i++) best[i] = key[i], at[i] = i;
        // By pairs, so that few comparisons wait for each other.
#pragma unroll
        for (int step = 1; step < N; step *= 2)
#pragma unroll
            for (int i = 0; i < N; i += 2 * step)
                if (best[i + step] > best[i]) best[i] = best[i + step], at[i] = at[i + step];
        u32 highest = __reduce_max_sync(FULL, best[0]), lane = threadIdx.x % 32;
        u32 place = __reduce_min_sync(FULL, best[0] == highest ? lane + 32 * at[0] : 0xffffffffu);
#pragma unroll
        for (int i = 0; i < N; i++)
            if (place == lane + 32 * i) key[i] = 0;
        logit = of_key(highest);
        return place;
    }
};

// One warp chooses: lane n < used gets the n-th largest and its weight, renormalised over the chosen, as `route` does.
template <int N>
__device__ __forceinline__ void pick(const float* logits, u32 experts, u32 used, u32& expert, float& weight) {
    Choice<N> choice(logits, experts);
    float top = 0, picked = 0, mine = 0;
    expert = 0;
    for (u32 n = 0; n < used; n++) {
        float logit;
        u32 place = choice.take(logit);
        if (n == 0) top = logit;
        float e = expf(logit - top);
        picked += e;
        if (threadIdx.x % 32 == n) mine = e, expert = place;
    }
    weight = mine / picked;
}

// The expert at place `n` in the order of the choice.
template <int N> __device__ __forceinline__ u32 pick_one(const float* logits, u32 experts, u32 n) {
    Choice<N> choice(logits, experts);
    float logit;
    for (; n > 0; n--) choice.take(logit);
    return choice.take(logit);
}
