// Norm and rotation of queries and keys; keys and values into a paged cache.
//
// A page holds 64 positions of one layer: [64][kv_heads][head_dim] halves or floats, or blocks (blocks.cuh);
// pages[slot][position / 64] names it, the same in every layer. Heads of 32 to 256 values, a multiple of 32.
#pragma once
#include "blocks.cuh"
#include "pages.cuh"

// How keys and values are kept.
#define KV_FLOATS 0
#define KV_HALVES 1
#define KV_BLOCKS 2

struct CacheArgs {
    Ptr<float> query_gate;  // [tokens][heads][2][dim]
    Ptr<float> k, v;        // [tokens][kv_heads][dim]
    Ptr<float> q_norm, k_norm;
    Ptr<float> angles;      // [positions][rope_dims / 2][cos, sin]
    Ptr<float> q;           // [tokens][heads][dim], normalised and rotated
    Ptr<u8> keys, values;   // the layer's pages
    Ptr<u32> pages;         // [slots][pages_max]
    Ptr<u32> slot, position;  // of each token
    u32 heads, kv_heads, dim, rope_dims, pages_max, kind;
    float eps, pad;
};

__device__ __forceinline__ void put_cached(u8* to, u64 at, float v, u32 kind) {
    if (kind == KV_HALVES) ((u16*)to)[at] = float_to_half(v);
    else ((float*)to)[at] = v;
}

// Norm and rotation of the head at `from` by a warp: lane holds values lane, lane + 32 … The partner of a rotated value is
// loaded and normalised a second time, which is less than to find it on another lane.
__device__ __forceinline__ void turn(float x[8], const CacheArgs& a, const float* from, const float* w, const float* angles) {
    u32 lane = threadIdx.x % 32, pairs = a.rope_dims / 2;
    float square = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u32 k = lane + 32 * i;
        x[i] = k < a.dim ? from[k] : 0;
        square = fmaf(x[i], x[i], square);
    }
    float scale = 1.0f / sqrtf(warp_sum(square) / (float)a.dim + a.eps);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u32 k = lane + 32 * i;
        float y = k < a.dim ? x[i] * scale * w[k] : 0;
        if (k < a.rope_dims) {
            u32 partner = k < pairs ? k + pairs : k - pairs;
            float other = from[partner] * scale * w[partner];
            y = rotated(y, other, *(const float2*)(angles + 2 * min(k, partner)), k < pairs);
        }
        x[i] = y;
    }
}

// One warp: token t and a head, first the query heads, then the KV heads.
__device__ __forceinline__ void cache_head(const CacheArgs& a, u32 t, u32 head) {
    u32 lane = threadIdx.x % 32, position = a.position[t];
    bool query = head < a.heads;
    if (!query) head -= a.heads;
    const float* from = query ? a.query_gate + ((u64)t * a.heads + head) * 2 * a.dim
                              : a.k + ((u64)t * a.kv_heads + head) * a.dim;
    u32 page = query ? 0 : a.pages[(u64)a.slot[t] * a.pages_max + position / PAGE];
    u32 row = position % PAGE * a.kv_heads + head;
    u64 at = ((u64)page * PAGE * a.kv_heads + row) * a.dim;
    const float* value = a.v + ((u64)t * a.kv_heads + head) * a.dim;
    float* to = a.q + ((u64)t * a.heads + head) * a.dim;
    float x[8];
    turn(x, a, from, query ? a.q_norm : a.k_norm, a.angles + (u64)position * a.rope_dims);
    if (a.kind == KV_BLOCKS) {
        mix_head(x, a.dim);
        if (!query) {
            put_blocks(Place<8>(a.keys, page, row, a.kv_heads, a.dim), x, a.dim, true);
#pragma unroll
            for (int i = 0; i < 8; i++) x[i] = lane + 32 * i < a.dim ? value[lane + 32 * i] : 0;
            put_blocks(Place<4>(a.values, page, row, a.kv_heads, a.dim), x, a.dim, true);
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u32 k = lane + 32 * i;
        if (k < a.dim && query) to[k] = x[i];
        if (k < a.dim && !query) put_cached(a.keys, at + k, x[i], a.kind), put_cached(a.values, at + k, value[k], a.kind);
    }
}
