// A whole pass of up to eight rows in one launch: blocks that all run at the same time go through a list of stages,
// with a barrier between two of them, and copy the weights of later stages while they work and wait. The numbers are
// those of the kernels that are launched one by one.
//
// decode_one: one row; decode_few: up to eight, of one or several sequences. Blocks of 256 threads, as many as fit on
// the card; shared memory as the launch says (ffi/src/kernels/persistent.rs), never above 99 KB where a card has no more.
#include "attend.cuh"
#include "cache.cuh"
#include "dense.cuh"
#include "embed.cuh"
#include "expert.cuh"
#include "gdn.cuh"
#include "pick.cuh"

struct ReachArgs {
    Expert routed, shared;
    Ptr<float> logits;            // [rows][experts + 1]
    Ptr<float> h;                 // inner values of the routed [rows][used + 1][stride]
    Ptr<float> gate, up;          // of the shared expert [rows][its width], not yet multiplied
    Ptr<float> residual;          // [rows][inputs]
    u32 inputs, used, experts, stride;
};

// Sixteen rows of gate and up of one chosen expert a block, one matrix after the other; the two that come next are on
// their way.
template <class P>
__device__ __forceinline__ void rise_rows(const ReachArgs& a, const Frame& f, u32 rows, const DenseScratch& m) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = a.inputs / P::INPUTS, tiles = a.routed.width / 16;
    u32 units = rows * a.used * tiles, first = part_start(warp, blocks), zero = 0;
    bool some = first < part_start(warp + 1, blocks);
    u64 bytes = (u64)blocks * P::BYTES;
    u32 count = blockIdx.x < units ? 2 * ((units - blockIdx.x + gridDim.x - 1) / gridDim.x) : 0;
    auto unit = [&](u32 n) { return blockIdx.x + n / 2 * gridDim.x; };
    auto matrix = [&](u32 n) {
        u32 u = unit(n), expert = f.chosen[u / tiles / a.used][u / tiles % a.used];
        const u8* of = n % 2 == 0 ? a.routed.gate + expert * a.routed.gate_bytes : a.routed.up + expert * a.routed.up_bytes;
        return of + u % tiles * bytes;
    };
    P held = {}, next = {};
    if (count > 0 && some) {
        held.load(matrix(0) + first * P::BYTES, (int)lane);
        next.load(matrix(1) + first * P::BYTES, (int)lane);
    }
#pragma unroll 1
    for (u32 n = 0; n < count; n++) {
        u32 u = unit(n), t = u / tiles / a.used, place = u / tiles % a.used;
        float acc[1][4], *sums = m.sums + n % 4 * PARTS * 16;
        const Columns<1, true> x({m.q + t * a.inputs, m.side + t * (a.inputs / 32), a.inputs}, &zero);
        part_product<P, 1, true>(matrix(n), warp, blocks, held, x, acc);
        if (lane % 4 == 0) sums[16 * warp + lane / 4] = acc[0][0], sums[16 * warp + lane / 4 + 8] = acc[0][2];
        held = next;
        if (n + 2 < count && some) next.load(matrix(n + 2) + first * P::BYTES, (int)lane);
        if (n % 2 == 0) continue;
        __syncthreads();
        if (threadIdx.x >= 16) continue;
        const float* gates = sums - PARTS * 16;
        float v = sums[lane], g = gates[lane];
#pragma unroll
        for (int p = 1; p < PARTS; p++) g += gates[16 * p + lane], v += sums[16 * p + lane];
        a.h[((u64)t * (a.used + 1) + place) * a.stride + 16 * (u % tiles) + lane] = silu(g) * v;
    }
}

// Every block chooses for itself, a warp a row, and keeps the choice for the next stage.
__device__ __forceinline__ void up(const ReachArgs& a, const PersistArgs& p, Frame& f, u8* scratch, Barrier& edge) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    edge.wait();
    if (warp < p.rows) {
        const float* logits = a.logits + (u64)warp * (a.experts + 1);
        u32 expert;
        float weight;
        if (a.experts <= 256) pick<8>(logits, a.experts, a.used, expert, weight);
        else pick<32>(logits, a.experts, a.used, expert, weight);
        if (lane < a.used) f.chosen[warp][lane] = expert, f.share[warp][lane] = weight;
        if (lane == 0) f.share[warp][a.used] = sigmoid(logits[a.experts]);
    }
    __syncthreads();
    const DenseScratch m(scratch, p, a.inputs);
    switch (a.routed.gate_packing) {
#if HAS(Q4)
        case Q4: return rise_rows<PackQ4>(a, f, p.rows, m);
#endif
#if HAS(IQ3)
        case IQ3: return rise_rows<PackIQ3>(a, f, p.rows, m);
#endif
#if HAS(Q5)
        case Q5: return rise_rows<PackQ5>(a, f, p.rows, m);
#endif
#if HAS(Q6)
        case Q6: return rise_rows<PackQ6>(a, f, p.rows, m);
#endif
#if HAS(B8)
        case B8: return rise_rows<PackB8>(a, f, p.rows, m);
#endif
#if HAS(K8)
        case K8: return rise_rows<PackK8>(a, f, p.rows, m);
#endif
    }
}

// A warp quantises inner values of one expert, from `k` to before `end`, as whoever made them would have.
template <bool SHARED>
__device__ __forceinline__ void inner_row(const ReachArgs& a, u32 t, u32 place, u32 k, u32 end, u32 width, u8* q) {
    float4* side = (float4*)(q + width);
    const int AT_ONCE = SHARED ? 2 : 4;
#pragma unroll 1
    for (k += threadIdx.x % 32 * 4; k - threadIdx.x % 32 * 4 < end; k += AT_ONCE * 128) {
        // All loads before the first store, which the compiler must take for one to the same place.
        float4 v[AT_ONCE], u[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            v[i] = u[i] = make_float4(0, 0, 0, 0);
            if (k + 128 * i >= end) continue;
            if (SHARED) {
                v[i] = *(const float4*)(a.gate + (u64)t * width + k + 128 * i);
                u[i] = *(const float4*)(a.up + (u64)t * width + k + 128 * i);
            } else {
                v[i] = *(const float4*)(a.h + ((u64)t * (a.used + 1) + place) * a.stride + k + 128 * i);
            }
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (SHARED) {
                v[i] = make_float4(silu(v[i].x) * u[i].x, silu(v[i].y) * u[i].y, silu(v[i].z) * u[i].z, silu(v[i].w) * u[i].w);
            }
            quantize_four(v[i], q, side, k + 128 * i, end);
        }
    }
    __syncwarp();
}

// Sixteen rows of a chosen expert by one warp, whose weights are on their way before the wait.
template <class P>
__device__ __forceinline__ void fall_rows(const ReachArgs& a, u32 expert, u32 t, u32 tile, u32 place, u8* q, float* to,
                                          Barrier& edge) {
    u32 lane = threadIdx.x % 32, width = a.routed.width, blocks = width / P::INPUTS, zero = 0, part = 0;
    const u8* rows = a.routed.down + expert * a.routed.down_bytes + (u64)tile * blocks * P::BYTES;
    P held = {}, next = {};
    held.load(rows, (int)lane);
    if (1 < blocks) next.load(rows + P::BYTES, (int)lane);
    edge.wait();
    inner_row<false>(a, t, place, 0, width, width, q);
    const Columns<1, true> x({q, (const float4*)(q + width), width}, &zero);
    float total[2] = {0, 0}, acc[1][4] = {{0, 0, 0, 0}};
#pragma unroll 1
    for (u32 i = 0; i < blocks; i++) {
        block_product<P, 1, true>(held, x, i, acc);
        held = next;
        if (i + 2 < blocks) next.load(rows + (u64)(i + 2) * P::BYTES, (int)lane);
        while (part_start(part + 1, blocks) <= i) part++;
        if (part_start(part + 1, blocks) == i + 1)
            total[0] += acc[0][0], total[1] += acc[0][2], acc[0][0] = acc[0][2] = 0;
    }
    if (lane % 4 == 0) to[lane / 4] = total[0], to[lane / 4 + 8] = total[1];
    __syncwarp();
}

// The same rows of the shared expert, a warp a part of its inputs. Its inner values were made a step earlier than those of
// the chosen ones, so this is done while others still make those.
template <class P>
__device__ __forceinline__ void fall_shared(const ReachArgs& a, u32 t, u32 tile, u8* q, float* to) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, width = a.shared.width, blocks = width / P::INPUTS, zero = 0;
    u32 first = part_start(warp, blocks), end = part_start(warp + 1, blocks);
    const u8* rows = a.shared.down + (u64)tile * blocks * P::BYTES;
    float acc[1][4] = {{0, 0, 0, 0}};
    if (first < end) {
        P held;
        held.load(rows + (u64)first * P::BYTES, (int)lane);
        inner_row<true>(a, t, 0, first * P::INPUTS, end * P::INPUTS, width, q);
        const Columns<1, true> x({q, (const float4*)(q + width), width}, &zero);
        part_product<P, 1, true>(rows, warp, blocks, held, x, acc);
    }
    if (lane % 4 == 0) to[16 * warp + lane / 4] = acc[0][0], to[16 * warp + lane / 4 + 8] = acc[0][2];
    __syncwarp();
}

__device__ __forceinline__ void fall_any(const ReachArgs& a, u32 expert, u32 t, u32 tile, u32 place, u8* q, float* to,
                                         Barrier& edge) {
    switch (a.routed.down_packing) {
#if HAS(Q4)
        case Q4: return fall_rows<PackQ4>(a, expert, t, tile, place, q, to, edge);
#endif
#if HAS(IQ3)
        case IQ3: return fall_rows<PackIQ3>(a, expert, t, tile, place, q, to, edge);
#endif
#if HAS(Q5)
        case Q5: return fall_rows<PackQ5>(a, expert, t, tile, place, q, to, edge);
#endif
#if HAS(Q6)
        case Q6: return fall_rows<PackQ6>(a, expert, t, tile, place, q, to, edge);
#endif
#if HAS(B8)
        case B8: return fall_rows<PackB8>(a, expert, t, tile, place, q, to, edge);
#endif
#if HAS(K8)
        case K8: return fall_rows<PackK8>(a, expert, t, tile, place, q, to, edge);
#endif
    }
}

__device__ __forceinline__ void fall_shared_any(const ReachArgs& a, u32 t, u32 tile, u8* q, float* to) {
    switch (a.shared.down_packing) {
#if HAS(Q4)
        case Q4: return fall_shared<PackQ4>(a, t, tile, q, to);
#endif
#if HAS(IQ3)
        case IQ3: return fall_shared<PackIQ3>(a, t, tile, q, to);
#endif
#if HAS(Q5)
        case Q5: return fall_shared<PackQ5>(a, t, tile, q, to);
#endif
#if HAS(Q6)
        case Q6: return fall_shared<PackQ6>(a, t, tile, q, to);
#endif
#if HAS(B8)
        case B8: return fall_shared<PackB8>(a, t, tile, q, to);
#endif
#if HAS(K8)
        case K8: return fall_shared<PackK8>(a, t, tile, q, to);
#endif
    }
}

// A block owns 16 rows of a row's result, each warp one of the chosen experts and a part of the shared one; the sum goes
// to the residual stream.
__device__ __forceinline__ void down(const ReachArgs& a, const PersistArgs& p, const Frame& f, u8* scratch, Barrier& edge) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, tiles = (a.inputs + 15) / 16, turn = 0;
    float* sums = (float*)scratch;  // [2][8 chosen, 8 parts of the shared one][16]
    u8* q = scratch + 2 * 16 * 16 * sizeof(float) + warp * (a.stride + a.stride / 2);
#pragma unroll 1
    for (u32 job = blockIdx.x; job < p.rows * tiles; job += gridDim.x, turn ^= 1) {
        u32 t = job / tiles, tile = job % tiles, row = 16 * tile + lane;
        float* to = sums + turn * 16 * 16;
        fall_shared_any(a, t, tile, q, to + 8 * 16);
        if (warp < a.used) fall_any(a, f.chosen[t][warp], t, tile, warp, q, to + 16 * warp, edge);
        edge.wait();
        __syncthreads();
        if (warp > 0 || lane >= 16 || row >= a.inputs) continue;
        float* out = a.residual + (u64)t * a.inputs + row;
        float v = *out, shared = 0;
        for (u32 i = 0; i < a.used; i++) v = fmaf(f.share[t][i], to[16 * i + lane], v);
#pragma unroll
        for (u32 i = 0; i < PARTS; i++) shared += to[16 * (8 + i) + lane];
        *out = fmaf(f.share[t][a.used], shared, v);
    }
}

template <bool ONE>
__device__ __forceinline__ void perform(const Step& s, const PersistArgs& a, Frame& f, u8* scratch, Ring& ring, Barrier& edge) {
    const void* payload = s.payload;
    switch (s.kind) {
        case EMBED: {
            const EmbedArgs& e = *(const EmbedArgs*)payload;
            edge.wait();
            for (u32 i = blockIdx.x * BLOCK + threadIdx.x; i < a.rows * e.inputs; i += gridDim.x * BLOCK)
                e.out[i] = value_at(e.table, e.packing, e.inputs, e.tokens[i / e.inputs], i % e.inputs);
            return;
        }
        case DENSE: return dense<ONE>(*(const DenseArgs*)payload, a, f, scratch, ring, edge);
        case GDN: {
            const GdnArgs& g = *(const GdnArgs*)payload;
            for (u32 job = blockIdx.x; job < g.value_heads * a.spans; job += gridDim.x)
                gdn_head<BLOCK>(g, job % g.value_heads, g.spans[job / g.value_heads], *(GdnScratch*)scratch, edge);
            return;
        }
        case CACHE: {
            const CacheArgs& c = *(const CacheArgs*)payload;
            u32 heads = c.heads + c.kv_heads;
            edge.wait();
            for (u32 job = blockIdx.x * 8 + threadIdx.x / 32; job < a.rows * heads; job += gridDim.x * 8)
                cache_head(c, job / heads, job % heads);
            return;
        }
        case ATTEND: {
            const AttendArgs& t = *(const AttendArgs*)payload;
            u32 groups = t.kv_heads * ((t.heads / t.kv_heads + 7) / 8), jobs = a.rows * groups;
            u32 beside = min(max(1, (int)(gridDim.x / jobs)), (int)t.chunks_max);
            for (u32 job = blockIdx.x; job < jobs * beside; job += gridDim.x)
                attend_rows<true>(t, false, job % jobs / groups, job % groups, job / jobs, beside, *(AttendScratch*)scratch, edge);
            return;
        }
        case JOIN: {
            const AttendJoinArgs& j = *(const AttendJoinArgs*)payload;
            edge.wait();
            for (u32 job = blockIdx.x; job < a.rows * j.heads; job += gridDim.x)
                if (threadIdx.x < j.dim) join_head(j, job / j.heads, job % j.heads, threadIdx.x, edge);
            return;
        }
        case UP: return up(*(const ReachArgs*)payload, a, f, scratch, edge);
        case DOWN: return down(*(const ReachArgs*)payload, a, f, scratch, edge);
    }
}

template <bool ONE> __device__ __forceinline__ void pass(const PersistArgs& a) {
    u8* pool = shared_pool();
    Frame& f = *(Frame*)pool;
    u64* items = (u64*)(pool + sizeof(Frame));
    u8* scratch = (u8*)(items + a.items_max);
    const u64* mine = a.items + (u64)blockIdx.x * a.items_max;
    const u32* stages = (const u32*)a.stages.get();
    for (u32 i = threadIdx.x; i < a.items_max; i += BLOCK) items[i] = mine[i];
    if (threadIdx.x < STAGE_WORDS) ((u32*)&f.stage[0])[threadIdx.x] = stages[threadIdx.x];
    if (threadIdx.x < ROWS_MAX) f.token[threadIdx.x] = min(threadIdx.x, a.rows - 1);
    __syncthreads();
    Ring ring{scratch + a.scratch_bytes, f, items + 1, a.ring_bytes, (u32)items[0], 0, 0, 0};
    ring.begin();
    Barrier edge;
    edge.begin(a.state);
#pragma unroll 1
    for (u32 s = 0; s < a.count; s++) {
        const Step& stage = f.stage[s % 2];
        u32 word = threadIdx.x, next = 0;
        if (s + 1 < a.count && word < STAGE_WORDS) next = stages[(s + 1) * STAGE_WORDS + word];
        edge.stamp = a.stamps.at ? a.stamps + ((u64)blockIdx.x * a.count + s) * 2 : 0;
        perform<ONE>(stage, a, f, scratch, ring, edge);
        edge.wait();
        if (s + 1 < a.count && word < STAGE_WORDS) ((u32*)&f.stage[(s + 1) % 2])[word] = next;
        if (s + 1 == a.count) edge.end();
        else edge.arrive();
    }
}

KERNEL(__launch_bounds__(BLOCK, 2) decode_one, PersistArgs) { pass<true>(a); }
KERNEL(__launch_bounds__(BLOCK, 2) decode_few, PersistArgs) { pass<false>(a); }
