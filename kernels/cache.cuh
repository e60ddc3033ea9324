// Norm and rotation of queries and keys; keys and values into a paged cache.
//
// A page holds 64 positions of one layer: [64][kv_heads][head_dim] halves or floats; pages[slot][position / 64] names
// it, the same in every layer. Heads of 32 to 256 values, a multiple of 32.
#pragma once
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

// One warp: token t and a head, first the query heads, then the KV heads.
__device__ __forceinline__ void cache_head(const CacheArgs& a, u32 t, u32 head) {
    u32 lane = threadIdx.x % 32;
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
