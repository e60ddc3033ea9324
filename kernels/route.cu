// Which experts each token goes to, and for each expert which tokens come, by one block of 1,024 threads.
#include "choose.cuh"

// Pairs that there may be: more tokens go through sort.cu.
#define NEAR 256

KERNEL(__launch_bounds__(1024) route, RouteArgs) {
    __shared__ u32 ahead[32], busy[32], chosen[NEAR];
    u32 e = threadIdx.x, lane = e % 32, warp = e / 32, pairs = a.tokens * a.used;
    after_previous();
    for (u32 t = warp; t < a.tokens; t += 32) {
        u32* to = chosen + t * a.used;
        if (a.experts <= 256) choose<8>(a, t, to);
        else choose<32>(a, t, to);
    }
    __syncthreads();
    u32 mine = 0;
#pragma unroll 8
    for (u32 i = 0; i < pairs; i++) mine += chosen[i] == e;
    if (e >= a.experts) mine = 0;
    // Sums over the experts before this one: within the warp, then over the warps.
    u32 before = mine, rank = mine > 0;
    for (u32 step = 1; step < 32; step *= 2) {
        u32 b = __shfl_sync(FULL, before, (int)((lane - step) & 31)), r = __shfl_sync(FULL, rank, (int)((lane - step) & 31));
        if (lane >= step) before += b, rank += r;
    }
    if (lane == 31) ahead[warp] = before, busy[warp] = rank;
    __syncthreads();
    u32 all = 0;
    for (u32 w = 0; w < 32; w++) {
        if (w < warp) before += ahead[w], rank += busy[w];
        all += busy[w];
    }
    if (e == 0) a.active[0] = all;
    if (e < a.experts) {
        a.start[e] = before - mine;
        if (e + 1 == a.experts) a.start[a.experts] = before;
        if (mine > 0) a.active[rank] = e;
    }
    u32 at = before - mine;
    if (mine > 0)
        for (u32 i = 0; i < pairs; i++)
            if (chosen[i] == e) a.pairs[at++] = i;
}
