// Experts beyond the card's memory. Those from `kept` on lie in the host's memory, which the card can read; each layer
// has slots on the card that hold the ones used last. `offload_choose` looks which experts of a pass lie in no slot and
// gives them the slots whose experts were used longest ago, never one that this pass needs; `offload_copy` brings them.
// Where slots run out, an expert is read from the host's memory by the kernels that multiply by it.
//
// Limits: 1,024 experts; matrices a multiple of 16 bytes. Shared memory: 16 KB.
#include "common.cuh"

#define EXPERTS_MAX 1024
#define NONE 0xffffffffu

struct OffloadArgs {
    Ptr<u32> start;    // [experts + 1]: the pairs of each expert, from the routing
    Ptr<u64> places;   // [experts][3]: where gate, up and down lie now
    Ptr<u32> slot_of;  // [experts]
    Ptr<u32> holds;    // [slots]: the expert in each
    Ptr<u64> used;     // [slots]: the pass that used it last
    Ptr<u64> clock;    // passes so far
    Ptr<u32> moves;    // how many, then expert and slot of each
    Ptr<u64> counts;   // experts used that were there, that were brought, that were read where they lie; of all layers
    u64 home[3];       // gate, up and down of expert `kept` in the host's memory
    u64 room[3];       // of slot 0
    u64 bytes[3];      // of one matrix
    u32 experts, kept, slots, pad;
};

__device__ __forceinline__ void put(const OffloadArgs& a, u32 expert, const u64 (&base)[3], u32 at) {
#pragma unroll
    for (int m = 0; m < 3; m++) a.places[3 * expert + m] = base[m] + at * a.bytes[m];
}

// One block; thread i stands for expert i and for slot i.
KERNEL(__launch_bounds__(EXPERTS_MAX) offload_choose, OffloadArgs) {
    __shared__ u64 last[EXPERTS_MAX];
    __shared__ u32 missing[EXPERTS_MAX], bring[EXPERTS_MAX], moved, there;
    u32 i = threadIdx.x;
    wait_previous();
    u64 now = a.clock[0] + 1;
    bool wanted = i < a.experts && a.start[i + 1] > a.start[i];
    u32 slot = wanted && i >= a.kept ? a.slot_of[i] : NONE;
    bool miss = wanted && i >= a.kept && slot == NONE;
    missing[i] = miss;
    if (i < a.slots) last[i] = a.used[i];
    if (i == 0) moved = there = 0;
    __syncthreads();
    if (slot != NONE) last[slot] = now;
    if (wanted && !miss) atomicAdd(&there, 1u);
    u32 before = 0, all = 0;
    for (u32 e = 0; e < a.experts; e++) {
        u32 one = missing[e];
        all += one;
        if (e < i) before += one;
    }
    if (miss) bring[before] = i;
    __syncthreads();
    if (i < a.slots) {
        bool needed = last[i] == now;
        u32 rank = 0;
        for (u32 s = 0; s < a.slots; s++) rank += last[s] < last[i] || (last[s] == last[i] && s < i);
        if (needed) a.used[i] = now;
        if (!needed && rank < all) {
            u32 expert = bring[rank], old = a.holds[i];
            if (old != NONE) {
                a.slot_of[old] = NONE;
                put(a, old, a.home, old - a.kept);
            }
            a.slot_of[expert] = i, a.holds[i] = expert, a.used[i] = now;
            put(a, expert, a.room, i);
            a.moves[1 + 2 * rank] = expert, a.moves[2 + 2 * rank] = i;
            atomicAdd(&moved, 1u);
        }
    }
    __syncthreads();
    if (i > 0) return;
    a.moves[0] = moved, a.clock[0] = now;
    a.counts[0] += there, a.counts[1] += moved, a.counts[2] += all - moved;
}

// Block y: a move, shared by the blocks of x.
KERNEL(__launch_bounds__(256) offload_copy, OffloadArgs) {
    wait_previous();
    if (blockIdx.y >= a.moves[0]) return;
    u32 expert = a.moves[1 + 2 * blockIdx.y] - a.kept, slot = a.moves[2 + 2 * blockIdx.y];
    u64 stride = 256 * gridDim.x;
#pragma unroll
    for (int m = 0; m < 3; m++) {
        const uint4* from = (const uint4*)(a.home[m] + expert * a.bytes[m]);
        uint4* to = (uint4*)(a.room[m] + slot * a.bytes[m]);
        u64 count = a.bytes[m] / 16;
        // Eight loads in flight: the way to the host's memory is long.
        for (u64 at = 256 * blockIdx.x + threadIdx.x; at < count; at += 8 * stride) {
            uint4 held[8];
#pragma unroll
            for (int k = 0; k < 8; k++)
                if (at + k * stride < count) held[k] = from[at + k * stride];
#pragma unroll
            for (int k = 0; k < 8; k++)
                if (at + k * stride < count) to[at + k * stride] = held[k];
        }
    }
}
