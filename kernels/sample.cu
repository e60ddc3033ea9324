// The end of a step on the device: the most probable token becomes the next one.
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
