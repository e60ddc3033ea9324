// Attention over a paged cache of keys and values.
//
// A page holds 64 positions of one layer: [64][kv_heads][head_dim] halves or floats; pages[slot][position / 64] names
// it, the same in every layer. Heads of 32 to 256 values, a multiple of 32.
#include "product.cuh"

#define PAGE 64

struct CacheArgs {
    Ptr<float> query_gate;  // [tokens][heads][2][dim]
    Ptr<float> k, v;        // [tokens][kv_heads][dim]
    Ptr<float> q_norm, k_norm;
    Ptr<float> angles;      // [positions][rope_dims / 2][cos, sin]
    Ptr<float> q;           // [tokens][heads][dim], normalised and rotated
    Ptr<u8> keys, values;   // the layer's pages
    Ptr<u32> pages;         // [slots][pages_max]
    Ptr<u32> slot, position;  // of each token
    u32 heads, kv_heads, dim, rope_dims, pages_max, halves;
    float eps, pad;
};

__device__ __forceinline__ void put_cached(u8* to, u64 at, float v, u32 halves) {
    if (halves) ((u16*)to)[at] = float_to_half(v);
    else ((float*)to)[at] = v;
}

// Norm and rotation of one head by a warp: lane holds values lane, lane + 32 …
__device__ __forceinline__ void turn(float x[8], const CacheArgs& a, const float* w, const float* angles) {
    u32 lane = threadIdx.x % 32;
    float square = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) square = fmaf(x[i], x[i], square);
    float scale = 1.0f / sqrtf(warp_sum(square) / (float)a.dim + a.eps);
    float y[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u32 k = lane + 32 * i;
        y[i] = k < a.dim ? x[i] * scale * w[k] : 0;
    }
    u32 pairs = a.rope_dims / 2;
    // The partner of value k is k ± pairs, on lane (lane ± pairs) mod 32 and, for whole 32s, in another register.
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float other = 0;
        u32 k = lane + 32 * i, partner = k < pairs ? k + pairs : k - pairs;
#pragma unroll
        for (int from = 0; from < 8; from++) {
            float seen = __shfl_sync(FULL, y[from], (int)(partner % 32));
            if ((u32)from == partner / 32) other = seen;
        }
        x[i] = y[i];
        if (k < a.rope_dims) {
            u32 p = k < pairs ? k : k - pairs;
            float c = angles[2 * p], s = angles[2 * p + 1];
            x[i] = k < pairs ? y[i] * c - other * s : y[i] * c + other * s;
        }
    }
}

// One warp (block of 32 threads) a token (x) and head (y): first the query heads, then the KV heads.
KERNEL(__launch_bounds__(32) attention_cache, CacheArgs) {
    u32 t = blockIdx.x, head = blockIdx.y, lane = threadIdx.x;
    after_previous();
    u32 position = a.position[t];
    const float* angles = a.angles + (u64)position * a.rope_dims;
    float x[8];
    if (head < a.heads) {
        const float* from = a.query_gate + ((u64)t * a.heads + head) * 2 * a.dim;
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = lane + 32 * i < a.dim ? from[lane + 32 * i] : 0;
        turn(x, a, a.q_norm, angles);
        float* to = a.q + ((u64)t * a.heads + head) * a.dim;
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (lane + 32 * i < a.dim) to[lane + 32 * i] = x[i];
        return;
    }
    head -= a.heads;
    const float* from = a.k + ((u64)t * a.kv_heads + head) * a.dim;
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = lane + 32 * i < a.dim ? from[lane + 32 * i] : 0;
    turn(x, a, a.k_norm, angles);
    u64 page = a.pages[(u64)a.slot[t] * a.pages_max + position / PAGE];
    u64 to = ((page * PAGE + position % PAGE) * a.kv_heads + head) * a.dim;
    from = a.v + ((u64)t * a.kv_heads + head) * a.dim;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (lane + 32 * i < a.dim) {
            put_cached(a.keys, to + lane + 32 * i, x[i], a.halves);
            put_cached(a.values, to + lane + 32 * i, from[lane + 32 * i], a.halves);
        }
}

// Flash decoding: a chunk of positions a block. The chunks and the order within them depend on the position alone.
struct AttentionArgs {
    Ptr<float> q;           // [tokens][heads][dim]
    Ptr<u8> keys, values;
    Ptr<u32> pages, slot, position;
    Ptr<float> part;        // [tokens][heads][chunks_max][dim + 2]: Σ p·v, maximum, Σ p
    u32 heads, kv_heads, dim, pages_max, halves, chunk, chunks_max, pad;
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
    u32 length = a.position[t] + 1;
    const u32* pages = a.pages + (u64)a.slot[t] * a.pages_max;
    for (u32 k = lane; k < a.dim; k += 32) queries[warp][k] = a.q[((u64)t * a.heads + head) * a.dim + k] * a.scale;
    for (u32 chunk = blockIdx.z; (u64)chunk * a.chunk < length; chunk += gridDim.z) {
        float top = -INFINITY, sum = 0, out[8];
#pragma unroll
        for (int i = 0; i < 8; i++) out[i] = 0;
        u32 end = min(length, (chunk + 1) * a.chunk);
        for (u32 first = chunk * a.chunk; first < end; first += 32) {
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

// Joins the chunks in order, applies the gate and quantises. A block of `dim` threads (at most 256) a head (y).
struct JoinArgs {
    Ptr<float> part, query_gate;
    Ptr<u32> position;
    Ptr<float> y;     // [tokens][heads·dim]
    Ptr<u8> q;        // or null
    Ptr<float4> side;
    u32 heads, dim, chunk, chunks_max;
};

KERNEL(__launch_bounds__(256) attention_join, JoinArgs) {
    u32 t = blockIdx.x, head = blockIdx.y, k = threadIdx.x;
    after_previous();
    u32 chunks = a.position[t] / a.chunk + 1;
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
    if (a.q.at) quantize_block(y, a.q, a.side, a.heads * a.dim, t, (head * a.dim + k) / 32);
}
