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

// Sixteen rows of gate and up of one chosen expert a block; the next ones' weights are loaded before these are joined.
template <class P>
__device__ __forceinline__ void rise_rows(const ReachArgs& a, const Frame& f, u32 rows, const DenseScratch& m) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = a.inputs / P::INPUTS, tiles = a.routed.width / 16;
    u32 units = rows * a.used * tiles, first = part_start(warp, blocks), zero = 0;
    bool some = first < part_start(warp + 1, blocks);
    u64 bytes = (u64)blocks * P::BYTES;
    float acc[1][4];
    auto row_of = [&](u32 u) { return u / tiles / a.used; };
    auto place = [&](u32 u) { return u / tiles % a.used; };
    auto matrix = [&](const u8* of, u64 step, u32 u) {
        return of + f.chosen[row_of(u)][place(u)] * step + u % tiles * bytes;
    };
    P gate = {}, up = {};
    if (blockIdx.x < units && some) {
        gate.load(matrix(a.routed.gate, a.routed.gate_bytes, blockIdx.x) + first * P::BYTES, (int)lane);
        up.load(matrix(a.routed.up, a.routed.up_bytes, blockIdx.x) + first * P::BYTES, (int)lane);
    }
    u32 turn = 0;
#pragma unroll 1
    for (u32 u = blockIdx.x; u < units; u += gridDim.x, turn ^= 1) {
        u32 t = row_of(u), next = u + gridDim.x;
        float* sums = m.sums + turn * 2 * PARTS * 16;
        const Columns<1, true> x({m.q + t * a.inputs, m.side + t * (a.inputs / 32), a.inputs}, &zero);
        part_product<P, 1, true>(matrix(a.routed.gate, a.routed.gate_bytes, u), warp, blocks, gate, x, acc);
        if (lane % 4 == 0) sums[16 * warp + lane / 4] = acc[0][0], sums[16 * warp + lane / 4 + 8] = acc[0][2];
        if (next < units && some) gate.load(matrix(a.routed.gate, a.routed.gate_bytes, next) + first * P::BYTES, (int)lane);
        part_product<P, 1, true>(matrix(a.routed.up, a.routed.up_bytes, u), warp, blocks, up, x, acc);
        if (lane % 4 == 0)
            sums[16 * (PARTS + warp) + lane / 4] = acc[0][0], sums[16 * (PARTS + warp) + lane / 4 + 8] = acc[0][2];
        if (next < units && some) up.load(matrix(a.routed.up, a.routed.up_bytes, next) + first * P::BYTES, (int)lane);
        __syncthreads();
        if (threadIdx.x >= 16) continue;
        float g = sums[lane], v = sums[16 * PARTS + lane];
#pragma unroll
        for (int p = 1; p < PARTS; p++) g += sums[16 * p + lane], v += sums[16 * (PARTS + p) + lane];
        a.h[((u64)t * (a.used + 1) + place(u)) * a.stride + 16 * (u % tiles) + lane] = silu(g) * v;
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

// A warp quantises the inner values of one expert, as whoever made them would have.
__device__ __forceinline__ void inner_row(const ReachArgs& a, u32 t, u32 place, bool shared, u32 width, u8* q) {
    float4* side = (float4*)(q + width);
    for (u32 from = 0; from < width; from += 128) {
        u32 k = from + threadIdx.x % 32 * 4;
        float4 v = make_float4(0, 0, 0, 0);
        if (k < width && shared) {
            const float4 g = *(const float4*)(a.gate + (u64)t * width + k), u = *(const float4*)(a.up + (u64)t * width + k);
            v = make_float4(silu(g.x) * u.x, silu(g.y) * u.y, silu(g.z) * u.z, silu(g.w) * u.w);
        } else if (k < width) {
            v = *(const float4*)(a.h + ((u64)t * (a.used + 1) + place) * a.stride + k);
        }
        quantize_four(v, q, side, k, width);
    }
    __syncwarp();
}

// Sixteen rows of one expert by one warp, whose weights are on their way before the wait.
template <class P>
__device__ __forceinline__ void fall_rows(const ReachArgs& a, const Expert& e, u32 expert, u32 t, u32 tile, u32 place,
                                          u8* q, float* to, Barrier& edge) {
    u32 lane = threadIdx.x % 32, blocks = e.width / P::INPUTS, zero = 0;
    const u8* rows = e.down + expert * e.down_bytes + (u64)tile * blocks * P::BYTES;
    const int DEEP = sizeof(P) <= 120 ? 2 : 1;
    P held[DEEP] = {};
#pragma unroll
    for (int d = 0; d < DEEP; d++)
        if ((u32)d < blocks) held[d].load(rows + d * P::BYTES, (int)lane);
    edge.wait();
    inner_row(a, t, place, place == a.used, e.width, q);
    const Columns<1, true> x({q, (const float4*)(q + e.width), e.width}, &zero);
    float total[2] = {0, 0}, acc[1][4] = {{0, 0, 0, 0}};
    u32 part = 0;
#pragma unroll 1
    for (u32 i = 0; i < blocks; i += DEEP) {
#pragma unroll
        for (int d = 0; d < DEEP; d++) {
            if (i + d >= blocks) break;
            block_product<P, 1, true>(held[d], x, i + d, acc);
            if (i + d + DEEP < blocks) held[d].load(rows + (u64)(i + d + DEEP) * P::BYTES, (int)lane);
            while (part_start(part + 1, blocks) <= i + d) part++;
            if (part_start(part + 1, blocks) == i + d + 1)
                total[0] += acc[0][0], total[1] += acc[0][2], acc[0][0] = acc[0][2] = 0;
        }
    }
    if (lane % 4 == 0) to[lane / 4] = total[0], to[lane / 4 + 8] = total[1];
    __syncwarp();
}

__device__ __forceinline__ void fall_any(const ReachArgs& a, u32 expert, u32 t, u32 tile, u32 place, u8* q, float* to,
                                         Barrier& edge) {
    const Expert& e = place == a.used ? a.shared : a.routed;
    switch (e.down_packing) {
#if HAS(Q4)
        case Q4: return fall_rows<PackQ4>(a, e, expert, t, tile, place, q, to, edge);
#endif
#if HAS(IQ3)
        case IQ3: return fall_rows<PackIQ3>(a, e, expert, t, tile, place, q, to, edge);
#endif
#if HAS(Q5)
        case Q5: return fall_rows<PackQ5>(a, e, expert, t, tile, place, q, to, edge);
#endif
#if HAS(Q6)
        case Q6: return fall_rows<PackQ6>(a, e, expert, t, tile, place, q, to, edge);
#endif
#if HAS(B8)
        case B8: return fall_rows<PackB8>(a, e, expert, t, tile, place, q, to, edge);
#endif
#if HAS(K8)
        case K8: return fall_rows<PackK8>(a, e, expert, t, tile, place, q, to, edge);
#endif
    }
}

// A block owns 16 rows of a row's result, each warp one of the chosen experts (the first one the shared one as well, if
// there are eight others); the sum goes to the residual stream.
__device__ __forceinline__ void down(const ReachArgs& a, const PersistArgs& p, const Frame& f, u8* scratch, Barrier& edge) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, tiles = (a.inputs + 15) / 16, turn = 0;
    float* sums = (float*)scratch;  // [2][9][16]
    u8* q = scratch + 2 * 9 * 16 * sizeof(float) + warp * (a.stride + a.stride / 2);
#pragma unroll 1
    for (u32 job = blockIdx.x; job < p.rows * tiles; job += gridDim.x, turn ^= 1) {
        u32 t = job / tiles, tile = job % tiles, row = 16 * tile + lane;
        float* to = sums + turn * 9 * 16;
        for (u32 place = warp; place <= a.used; place += 8)
            fall_any(a, place < a.used ? f.chosen[t][place] : 0, t, tile, place, q, to + 16 * place, edge);
        edge.wait();
        __syncthreads();
        if (warp > 0 || lane >= 16 || row >= a.inputs) continue;
        float* out = a.residual + (u64)t * a.inputs + row;
        float v = *out;
        for (u32 i = 0; i <= a.used; i++) v = fmaf(f.share[t][i], to[16 * i + lane], v);
        *out = v;
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
    Ring ring{scratch + a.scratch_bytes, f.at, items + 1, a.ring_bytes, (u32)items[0], 0, 0, 0};
    ring.fill();
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
