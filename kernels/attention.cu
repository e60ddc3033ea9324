// Attention over a paged cache of keys and values.
#include "cache.cuh"

// A block of one warp a token (x) and head (y).
KERNEL(__launch_bounds__(32) attention_cache, CacheArgs) {
    after_previous();
    cache_head(a, blockIdx.x, blockIdx.y);
}

// Flash decoding: a chunk of positions a block. The chunks and the order within them depend on the position alone.
struct AttentionArgs {
    Ptr<float> q;           // [tokens][heads][dim]
    Ptr<u8> keys, values;
    Ptr<u32> pages, slot, position;
    Ptr<float> part;        // [tokens][heads][chunks_max][dim + 2]: Σ p·v, maximum, Σ p
    u32 heads, kv_heads, dim, pages_max, halves, chunks_max;
    float scale, pad2;
};

__device__ __forceinline__ float cached(const u8* from, u64 at, u32 halves) {
    return halves ? half_to_float(((const u16*)from)[at]) : ((const float*)from)[at];
}

// Block (token x, KV head and group of eight query heads y, chunks z, z + grid …) of 8 warps, one query head each:
// 32 positions at a time lie in shared memory, first keys, then values. Shared memory: 44 KB.
KERNEL(__launch_bounds__(256) attention, AttentionArgs) {
    __shared__ float queries[8][256];
    __shared__ float tile[32][257];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = blockIdx.x;
    u32 group = a.heads / a.kv_heads, groups = (group + 7) / 8, kv = blockIdx.y / groups;
    u32 member = blockIdx.y % groups * 8 + warp, head = kv * group + min(member, group - 1);
    after_previous();
    u32 length = a.position[t] + 1, size = chunk_of(length);
    const u32* pages = a.pages + (u64)a.slot[t] * a.pages_max;
    for (u32 k = lane; k < a.dim; k += 32) queries[warp][k] = a.q[((u64)t * a.heads + head) * a.dim + k] * a.scale;
    for (u32 chunk = blockIdx.z; (u64)chunk * size < length; chunk += gridDim.z) {
        float top = -INFINITY, sum = 0, out[8];
#pragma unroll
        for (int i = 0; i < 8; i++) out[i] = 0;
        u32 end = min(length, (chunk + 1) * size);
        for (u32 first = chunk * size; first < end; first += 32) {
            u64 page = pages[first / PAGE];
            u64 base = ((page * PAGE + first % PAGE) * a.kv_heads + kv) * a.dim;
            u32 rows = min(32u, end - first), step = a.kv_heads * a.dim;
            __syncthreads();
            for (u32 r = warp; r < rows; r += 8)
                for (u32 k = lane; k < a.dim; k += 32) tile[r][k] = cached(a.keys, base + (u64)r * step + k, a.halves);
            __syncthreads();
            float score = 0;
            if (lane < rows)
                for (u32 k = 0; k < a.dim; k++) score = fmaf(tile[lane][k], queries[warp][k], score);
            else
                score = -INFINITY;
            float highest = fmaxf(top, warp_max(score));
            float p = expf(score - highest), fade = expf(top - highest);
            sum = fmaf(sum, fade, warp_sum(p));
            top = highest;
            __syncthreads();
            for (u32 r = warp; r < rows; r += 8)
                for (u32 k = lane; k < a.dim; k += 32)
                    tile[r][k] = cached(a.values, base + (u64)r * step + k, a.halves);
            __syncthreads();
#pragma unroll
            for (int i = 0; i < 8; i++) out[i] *= fade;
            for (u32 r = 0; r < rows; r++) {
                float weight = __shfl_sync(FULL, p, (int)r);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    if (lane + 32 * i < a.dim) out[i] = fmaf(weight, tile[r][lane + 32 * i], out[i]);
            }
        }
        if (member < group) {
            float* to = a.part + (((u64)t * a.heads + head) * a.chunks_max + chunk) * (a.dim + 2);
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (lane + 32 * i < a.dim) to[lane + 32 * i] = out[i];
            if (lane == 0) to[a.dim] = top, to[a.dim + 1] = sum;
        }
    }
}

// Joins the chunks in order, applies the gate and rounds to halves. A block of `dim` threads (at most 256) a head (y).
struct JoinArgs {
    Ptr<float> part, query_gate;
    Ptr<u32> position;
    Ptr<float> y;     // [tokens][heads·dim]
    Ptr<u16> halves;        // or null
    u32 heads, dim, chunk, chunks_max;  // positions of a chunk; 0: as `chunk_of` says
};

KERNEL(__launch_bounds__(256) attention_join, JoinArgs) {
    u32 t = blockIdx.x, head = blockIdx.y, k = threadIdx.x;
    after_previous();
    u32 last = a.position[t], chunks = last / (a.chunk ? a.chunk : chunk_of(last + 1)) + 1;
    const float* from = a.part + ((u64)t * a.heads + head) * a.chunks_max * (a.dim + 2);
    float top = -INFINITY, sum = 0, out = 0;
    for (u32 c = 0; c < chunks; c++) top = fmaxf(top, from[c * (a.dim + 2) + a.dim]);
    for (u32 c = 0; c < chunks; c++) {
        const float* part = from + c * (a.dim + 2);
        float weight = expf(part[a.dim] - top);
        sum = fmaf(weight, part[a.dim + 1], sum);
        out = fmaf(weight, part[k], out);
    }
    float gate = a.query_gate[(((u64)t * a.heads + head) * 2 + 1) * a.dim + k];
    float y = out / sum * sigmoid(gate);
    a.y[((u64)t * a.heads + head) * a.dim + k] = y;
    if (a.halves.at) put_half(y, a.halves, a.heads * a.dim, t, head * a.dim + k);
}
