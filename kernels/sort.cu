// Routing of many tokens: what route.cu computes, spread over the card, and the list of work for grouped.cu.
#include "choose.cuh"

// The choices: a warp a token, eight a block.
KERNEL(__launch_bounds__(256) route_choose, RouteArgs) {
    __shared__ u32 chosen[8][32];
    u32 warp = threadIdx.x / 32, t = 8 * blockIdx.x + warp;
    wait_previous();
    if (t >= a.tokens) return;
    if (a.experts <= 256) choose<8>(a, t, chosen[warp]);
    else choose<32>(a, t, chosen[warp]);
}

// The pairs of expert x, in order, behind those of the experts before it. A block of 256 threads, each looking at a
// stretch of the pairs.
KERNEL(__launch_bounds__(256) route_sort, RouteArgs) {
    __shared__ u32 sums[8], lows[8];
    u32 e = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, pairs = a.tokens * a.used;
    u32 length = (pairs + 255) / 256, from = min(threadIdx.x * length, pairs), to = min(from + length, pairs);
    wait_previous();
    u32 low = 0, mine = 0;
#pragma unroll 8
    for (u32 i = from; i < to; i++) {
        u32 c = a.chosen[i];
        low += c < e, mine += c == e;
    }
    u32 before = mine;
    for (u32 step = 1; step < 32; step *= 2) {
        u32 b = __shfl_sync(FULL, before, (int)((lane - step) & 31));
        if (lane >= step) before += b;
    }
    for (u32 step = 16; step > 0; step /= 2) low += __shfl_xor_sync(FULL, low, (int)step);
    if (lane == 31) sums[warp] = before;
    if (lane == 0) lows[warp] = low;
    __syncthreads();
    u32 start = 0, all = 0;
    for (u32 w = 0; w < 8; w++) {
        start += lows[w], all += sums[w];
        if (w < warp) before += sums[w];
    }
    if (threadIdx.x == 0) {
        a.start[e] = start;
        if (e + 1 == a.experts) a.start[a.experts] = start + all;
    }
    u32 at = start + before - mine;
    if (mine > 0)
        for (u32 i = from; i < to; i++)
            if (a.chosen[i] == e) a.pairs[at++] = i;
}

// The experts that have tokens, and the list of work: up to 64 pairs of one expert each. One block of 1,024 threads.
struct WorkArgs {
    Ptr<u32> start, active;
    Ptr<uint4> work;
    u32 experts, pad;
};

KERNEL(__launch_bounds__(1024) route_work, WorkArgs) {
    __shared__ u32 busy[32], tiles[32];
    u32 e = threadIdx.x, lane = e % 32, warp = e / 32;
    wait_previous();
    u32 first = e < a.experts ? a.start[e] : 0, count = e < a.experts ? a.start[e + 1] - first : 0;
    u32 mine = (count + 63) / 64, rank = count > 0, at = mine;
    for (u32 step = 1; step < 32; step *= 2) {
        u32 r = __shfl_sync(FULL, rank, (int)((lane - step) & 31)), b = __shfl_sync(FULL, at, (int)((lane - step) & 31));
        if (lane >= step) rank += r, at += b;
    }
    if (lane == 31) busy[warp] = rank, tiles[warp] = at;
    __syncthreads();
    u32 all = 0, list = 0;
    for (u32 w = 0; w < 32; w++) {
        if (w < warp) rank += busy[w], at += tiles[w];
        all += busy[w], list += tiles[w];
    }
    if (e == 0) a.active[0] = all, a.work[0] = make_uint4(list, 0, 0, 0);
    if (count == 0) return;
    a.active[rank] = e;
    // Shares of one size, in sixteens.
    u32 share = ((count + mine - 1) / mine + 15) / 16 * 16;
    for (u32 i = 0; i < mine; i++) {
        u32 done = min(i * share, count);
        a.work[1 + at - mine + i] = make_uint4(e, first + done, min(share, count - done), 0);
    }
}
