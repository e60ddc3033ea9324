// The end of a step on the device: the most probable token becomes the next one, or the largest logits of each row are
// found, so that the host can choose without the others.
#include "common.cuh"

// Groups that a row is cut into, a warp each.
#define GROUPS 1024

// The logits first .. of a group, up to `end`.
struct LogitGroup {
    u32 first, end;
    __device__ __forceinline__ LogitGroup(u32 group, u32 vocab) {
        u32 each = (vocab + GROUPS - 1) / GROUPS;
        first = min(group * each, vocab), end = min(first + each, vocab);
    }
};

// token[t] = index of the largest of logits[t], the lowest among equals and where none is a number; then position[t] and span
// start move on by one.
struct ArgmaxArgs {
    Ptr<float> logits;  // [tokens][vocab]
    Ptr<uint2> largest; // [tokens][GROUPS]: key of each group's largest logit, and its index
    Ptr<u32> token;     // [tokens]
    Ptr<u32> position;  // [tokens]
    Ptr<u32> history;   // [steps][tokens] or null
    Ptr<u32> step;      // [tokens]: steps done so far
    u32 vocab, steps_max;
};

// The larger of two, the one with the lower index among equals.
__device__ __forceinline__ uint2 larger(const uint2& a, const uint2& b) {
    return b.x > a.x || (b.x == a.x && b.y < a.y) ? b : a;
}
// Of a warp's, on every lane.
__device__ __forceinline__ uint2 warp_largest(const uint2& v) {
    u32 key = __reduce_max_sync(FULL, v.x);
    return make_uint2(key, __reduce_min_sync(FULL, v.x == key ? v.y : 0xffffffffu));
}

// Eight groups a block.
KERNEL(__launch_bounds__(256) argmax_groups, ArgmaxArgs) {
    u32 lane = threadIdx.x % 32, group = blockIdx.x * 8 + threadIdx.x / 32, row = blockIdx.y;
    const LogitGroup g(group, a.vocab);
    after_previous();
    const float* logits = a.logits + (u64)row * a.vocab;
    uint2 best = make_uint2(0, 0xffffffffu);
#pragma unroll 8
    for (u32 i = g.first + lane; i < g.end; i += 32) {
        float logit = logits[i];
        best = larger(best, make_uint2(logit == logit ? key_of(logit) : 0, i));
    }
    best = warp_largest(best);
    if (lane == 0) a.largest[(u64)row * GROUPS + group] = best;
}

// A block a row.
KERNEL(__launch_bounds__(GROUPS) argmax, ArgmaxArgs) {
    __shared__ uint2 warps[32];
    u32 lane = threadIdx.x % 32, row = blockIdx.x;
    after_previous();
    uint2 best = warp_largest(a.largest[(u64)row * GROUPS + threadIdx.x]);
    if (lane == 0) warps[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    best = warp_largest(warps[lane]);
    if (lane != 0) return;
    a.token[row] = best.y;
    a.position[row] += 1;
    if (a.history.at) {
        u32 done = a.step[row];
        if (done < a.steps_max) a.history[(u64)done * gridDim.x + row] = best.y;
        a.step[row] = done + 1;
    }
}

// The largest logits of rows. A row is cut into groups; `LIKELY` of them have a logit no smaller than the LIKELY-th largest
// of the groups' maxima, so every logit that is no smaller than this bound is one of the row's largest, and they are LIKELY
// at least: a few more as a rule. `likely_max` finds the maxima and what each group weighs at the row's temperature,
// `likely_collect` the bound and the list. The order within the list is that of arrival.
#define LIKELY 128
#define LISTED_MAX 512

struct LikelyArgs {
    Ptr<float> logits;       // [rows][vocab]
    Ptr<float> temperature;  // [rows], above 0
    Ptr<u32> maxes;          // [rows][GROUPS], keys
    Ptr<float> sums;         // [rows][GROUPS]: of e^((logit - maximum of the group) / temperature)
    Ptr<u32> list;           // [rows][4 + 2 * LISTED_MAX]: how many there are (LISTED_MAX are written at most), key of the
                             // bound, sum of e^((logit - maximum of the row) / temperature), nothing; ids; logits
    u32 vocab, pad;
};

// NaN and +inf, which come from a broken computation, above all others. 0 is no logit's.
__device__ __forceinline__ u32 logit_key(float f) { return f < INFINITY ? key_of(f) : 0xffffffffu; }

// A warp a group, eight a block.
KERNEL(__launch_bounds__(256) likely_max, LikelyArgs) {
    u32 lane = threadIdx.x % 32, group = blockIdx.x * 8 + threadIdx.x / 32, row = blockIdx.y;
    const LogitGroup g(group, a.vocab);
    after_previous();
    const float* logits = a.logits + (u64)row * a.vocab;
    u32 key = 0;
    for (u32 i = g.first + lane; i < g.end; i += 32) {
        u32 own = logit_key(logits[i]);
        key = own > key ? own : key;
    }
    key = __reduce_max_sync(FULL, key);
    float largest = of_key(key), inverse = 1.0f / a.temperature[row], sum = 0;
    // Of what is all -inf nothing is left to weigh.
    if (largest > -INFINITY)
        for (u32 i = g.first + lane; i < g.end; i += 32) sum += expf((logits[i] - largest) * inverse);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(FULL, sum, step);
    if (lane != 0) return;
    a.maxes[(u64)row * GROUPS + group] = key;
    a.sums[(u64)row * GROUPS + group] = sum;
    if (group == 0) a.list[(u64)row * (4 + 2 * LISTED_MAX)] = 0;
}

// As many blocks a row as there are; each finds the bound for itself.
KERNEL(__launch_bounds__(GROUPS) likely_collect, LikelyArgs) {
    __shared__ u32 keys[32];
    __shared__ float parts[32];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.y;
    u32 each = (a.vocab + gridDim.x - 1) / gridDim.x, first = blockIdx.x * each;
    u32 end = first + each < a.vocab ? first + each : a.vocab;
    after_previous();
    const float* logits = a.logits + (u64)row * a.vocab;
    u32* list = a.list + (u64)row * (4 + 2 * LISTED_MAX);
    u32 own = a.maxes[(u64)row * GROUPS + threadIdx.x], bound = 0;
    for (int bit = 31; bit >= 0; bit--) {
        u32 tried = bound | 1u << bit;
        if (__syncthreads_count(own >= tried) >= LIKELY) bound = tried;
    }
    if (blockIdx.x == 0) {
        u32 key = __reduce_max_sync(FULL, own);
        if (lane == 0) keys[warp] = key;
        __syncthreads();
        float largest = of_key(__reduce_max_sync(FULL, keys[lane]));
        float sum = a.sums[(u64)row * GROUPS + threadIdx.x];
        if (sum > 0) sum *= expf((of_key(own) - largest) / a.temperature[row]);
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(FULL, sum, step);
        if (lane == 0) parts[warp] = sum;
        __syncthreads();
        sum = parts[lane];
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(FULL, sum, step);
        if (threadIdx.x == 0) list[1] = bound, list[2] = __float_as_uint(sum);
    }
    for (u32 i = first + threadIdx.x; i < end; i += GROUPS) {
        float logit = logits[i];
        if (logit_key(logit) < bound) continue;
        u32 at = atomicAdd(&list[0], 1u);
        if (at < LISTED_MAX) list[4 + at] = i, list[4 + LISTED_MAX + at] = __float_as_uint(logit);
    }
}
