// The end of a step on the device: the most probable token becomes the next one, or the largest logits of each row are
// found, so that the host can choose without the others.
#include "common.cuh"

// token[t] = index of the largest of logits[t], the lowest among equals; then position[t] and span start move on by
// one. One block of 1,024 threads a row.
struct ArgmaxArgs {
    Ptr<float> logits;  // [tokens][vocab]
    Ptr<u32> token;     // [tokens]
    Ptr<u32> position;  // [tokens]
    Ptr<u32> history;   // [steps][tokens] or null
    Ptr<u32> step;      // steps done so far, moved on by the first block
    u32 vocab, steps_max;
};

KERNEL(__launch_bounds__(1024) argmax, ArgmaxArgs) {
    __shared__ float values[32];
    __shared__ u32 places[32];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    after_previous();
    const float* row = a.logits + (u64)blockIdx.x * a.vocab;
    float best = -INFINITY;
    u32 place = 0;
    for (u32 i = threadIdx.x; i < a.vocab; i += 1024)
        if (row[i] > best) best = row[i], place = i;
    for (int phase = 0; phase < 2; phase++) {
        for (int step = 16; step > 0; step /= 2) {
            float other = __shfl_xor_sync(FULL, best, step);
            u32 there = __shfl_xor_sync(FULL, place, step);
            if (other > best || (other == best && there < place)) best = other, place = there;
        }
        if (phase == 1) break;
        if (lane == 0) values[warp] = best, places[warp] = place;
        __syncthreads();
        best = values[lane], place = places[lane];
    }
    if (threadIdx.x != 0) return;
    a.token[blockIdx.x] = place;
    a.position[blockIdx.x] += 1;
    if (a.history.at) {
        u32 done = a.step[blockIdx.x];
        if (done < a.steps_max) a.history[(u64)done * gridDim.x + blockIdx.x] = place;
        a.step[blockIdx.x] = done + 1;
    }
}

// The largest logits of rows. A row is cut into groups; `LIKELY` of them have a logit no smaller than the LIKELY-th largest
// of the groups' maxima, so every logit that is no smaller than this bound is one of the row's largest, and they are LIKELY
// at least: a few more as a rule. `likely_max` finds the maxima and what each group weighs at the row's temperature,
// `likely_collect` the bound and the list. The order within the list is that of arrival.
#define GROUPS 1024
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
    u32 each = (a.vocab + GROUPS - 1) / GROUPS, first = group * each;
    u32 end = first + each < a.vocab ? first + each : a.vocab;
    after_previous();
    const float* logits = a.logits + (u64)row * a.vocab;
    u32 key = 0;
    for (u32 i = first + lane; i < end; i += 32) {
        u32 own = logit_key(logits[i]);
        key = own > key ? own : key;
    }
    key = __reduce_max_sync(FULL, key);
    float largest = of_key(key), inverse = 1.0f / a.temperature[row], sum = 0;
    // Of what is all -inf nothing is left to weigh.
    if (largest > -INFINITY)
        for (u32 i = first + lane; i < end; i += 32) sum += expf((logits[i] - largest) * inverse);
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
