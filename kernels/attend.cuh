// Attention of few tokens over a paged cache of halves or blocks, 64 positions at a time, with the keys and values that lie
// there already in flight before the wait, and those of the next page while one is multiplied.
#pragma once
#include "blocks.cuh"
#include "pages.cuh"

// `settled`: every token is the only one of its sequence, so that all earlier positions were written by earlier passes;
// the kernel then normalises and rotates queries and keys itself and puts the new position into the cache.
struct AttendArgs {
    Ptr<float> q;           // [tokens][heads][dim], normalised and rotated; read where not settled
    Ptr<float> query_gate;  // [tokens][heads][2][dim], as k, v and what follows read where settled
    Ptr<float> k, v;        // [tokens][kv_heads][dim]
    Ptr<float> q_norm, k_norm;
    Ptr<float> angles;      // [positions][rope_dims / 2][cos, sin]
    Ptr<u8> keys, values;
    Ptr<u32> pages, slot, position;
    Ptr<float> part;        // [tokens][heads][chunks_max][dim + 2]: Σ p·v, maximum, Σ p
    u32 heads, kv_heads, dim, rope_dims, pages_max, pad, chunks_max, settled;
    float scale, eps;
};

// Norm and rotation of one head by a warp: lane holds values lane, lane + 32 …
__device__ __forceinline__ void turn_head(float x[8], const AttendArgs& a, const float w[8], const float2 angle[8]) {
    u32 lane = threadIdx.x % 32;
    float square = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) square = fmaf(x[i], x[i], square);
    float scale = 1.0f / sqrtf(warp_sum(square) / (float)a.dim + a.eps);
    float y[8];
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = lane + 32 * i < a.dim ? x[i] * scale * w[i] : 0;
    u32 pairs = a.rope_dims / 2;
    // The partner of value k is k ± pairs, on lane (lane ± pairs) mod 32 and, for whole 32s, in another register.
#pragma unroll
    for (int i = 0; i < 8; i++) {
        x[i] = y[i];
        if (32 * (u32)i >= a.rope_dims) continue;
        float other = 0;
        u32 k = lane + 32 * i, partner = k < pairs ? k + pairs : k - pairs;
#pragma unroll
        for (int from = 0; from < 8; from++) {
            if (32 * (u32)from >= a.rope_dims) continue;
            float seen = __shfl_sync(FULL, y[from], (int)(partner % 32));
            if ((u32)from == partner / 32) other = seen;
        }
        if (k < a.rope_dims) x[i] = rotated(y[i], other, angle[i], k < pairs);
    }
}

__device__ __forceinline__ void load_head(float x[8], const float* from, u32 dim) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u32 k = threadIdx.x % 32 + 32 * i;
        x[i] = k < dim ? from[k] : 0;
    }
}

// Eight values of a row of halves: BITS of blocks.cuh for a cache that is not packed.
template <> struct Eight<16> {
    uint4 held;
    __device__ __forceinline__ uint4 halves(u32) const { return held; }
};

// Rows from .. to of a page's keys or values; warp w owns rows w, w + 8 …, a lane eight values.
__device__ __forceinline__ void load_rows(Eight<16> held[8], const AttendArgs& a, u8* base, u32 page, u32 kv, u32 from, u32 to,
                                          bool mine) {
    u32 warp = threadIdx.x / 32;
    base += 2 * (((u64)page * PAGE * a.kv_heads + kv) * a.dim);
#pragma unroll
    for (u32 j = 0; j < 8; j++) {
        u32 r = warp + 8 * j;
        if (mine && r >= from && r < to)
            held[j].held = *(const uint4*)(base + 2 * ((u64)r * a.kv_heads * a.dim + 8 * (threadIdx.x % 32)));
    }
}
template <int BITS>
__device__ __forceinline__ void load_rows(Eight<BITS> held[8], const AttendArgs& a, u8* base, u32 page, u32 kv, u32 from,
                                          u32 to, bool mine) {
    u32 warp = threadIdx.x / 32;
#pragma unroll
    for (u32 j = 0; j < 8; j++) {
        u32 r = warp + 8 * j;
        if (mine && r >= from && r < to)
            held[j].load(Place<BITS>(base, page, r * a.kv_heads + kv, a.kv_heads, a.dim), threadIdx.x % 32);
    }
}

#define ROW_HALVES 264

template <int BITS>
__device__ __forceinline__ void store_rows(const Eight<BITS> held[8], u16 (*tile)[ROW_HALVES], u32 to, bool mine) {
#pragma unroll
    for (u32 j = 0; j < 8; j++)
        if (mine && threadIdx.x / 32 + 8 * j < to)
            *(uint4*)(tile[threadIdx.x / 32 + 8 * j] + 8 * (threadIdx.x % 32)) = held[j].halves(threadIdx.x % 32);
}

// The new position over what was loaded in its row, by the warp that owns the row.
__device__ __forceinline__ void put_new(const u16 row[8], u16 (*tile)[ROW_HALVES], bool fresh, u32 at, u32 dim) {
    if (!fresh || at >= PAGE) return;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (threadIdx.x % 32 + 32 * i < dim) tile[at][threadIdx.x % 32 + 32 * i] = row[i];
}

// The new position's key and value as blocks; both become what their readers see.
__device__ __forceinline__ void new_blocks(const AttendArgs& a, float key[8], float value[8], u32 page, u32 kv, u32 position,
                                           bool store) {
    u32 row = position % PAGE * a.kv_heads + kv;
    mix_head(key, a.dim);
    put_blocks(Place<8>(a.keys, page, row, a.kv_heads, a.dim), key, a.dim, store);
    put_blocks(Place<4>(a.values, page, row, a.kv_heads, a.dim), value, a.dim, store);
}

// Halves of a row of queries, and floats of one of scores, such that lanes meet different banks.
#define QUERY_HALVES 264
#define SCORES 68
#define WEIGHTS 72

struct AttendScratch {
    uint4 tile[PAGE * ROW_HALVES / 8];
    u16 queries[8][QUERY_HALVES];
    float scores[2][8][SCORES];  // by halves of the dimensions
    u16 weights[8][WEIGHTS];
    float fade[8];
};

// scores[part][head][position] of 64 positions: a warp multiplies 16 of them, by half of the dimensions, with all heads.
__device__ __forceinline__ void attend_scores(AttendScratch& m, u32 dim) {
    u16(*tile)[ROW_HALVES] = (u16(*)[ROW_HALVES])m.tile;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, j = lane % 4, rows = warp % 4 * 16, part = warp / 4;
    u32 steps = (dim + 15) / 16, to = part == 0 ? (steps + 1) / 2 : steps;
    float s[4] = {0, 0, 0, 0};
#pragma unroll 4
    for (u32 k = part == 0 ? 0 : (steps + 1) / 2; k < to; k++) {
        u32 w[4];
        load_matrices(w, &tile[rows + lane % 16][16 * k + lane / 16 * 8]);
        mma_halves(s, w, *(const u32*)&m.queries[g][16 * k + 2 * j], *(const u32*)&m.queries[g][16 * k + 2 * j + 8]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) m.scores[part][2 * j + i % 2][rows + g + i / 2 * 8] = s[i];
}

// Weights of 64 positions for the warp's head, of which the first `rows` count.
__device__ __forceinline__ void attend_weights(AttendScratch& m, u32 rows, float& top, float& sum) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float s[2], p[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 at = lane + 32 * h;
        s[h] = at < rows ? m.scores[0][warp][at] + m.scores[1][warp][at] : -INFINITY;
    }
    float highest = fmaxf(top, warp_max(fmaxf(s[0], s[1]))), fade = expf(top - highest);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        p[h] = expf(s[h] - highest);
        m.weights[warp][lane + 32 * h] = float_to_half(p[h]);
    }
    sum = fmaf(sum, fade, warp_sum(p[0] + p[1]));
    top = highest;
    if (lane == 0) m.fade[warp] = fade;
}

// out[n][i] += weights times values: dimensions 32·warp + 16n + g (and + 8 for i > 1) of heads 2j + i % 2.
__device__ __forceinline__ void attend_values(const AttendScratch& m, u32 dim, float out[2][4]) {
    const u16(*tile)[ROW_HALVES] = (const u16(*)[ROW_HALVES])m.tile;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, j = lane % 4;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        u32 first = 32 * warp + 16 * n;
        if (first >= dim) break;
#pragma unroll
        for (int i = 0; i < 4; i++) out[n][i] *= m.fade[2 * j + i % 2];
#pragma unroll
        for (int k = 0; k < PAGE / 16; k++) {
            u32 w[4];
            load_matrices_transposed(w, &tile[16 * k + lane / 16 * 8 + lane % 8][first + lane / 8 % 2 * 8]);
            mma_halves(out[n], w, *(const u32*)&m.weights[g][16 * k + 2 * j], *(const u32*)&m.weights[g][16 * k + 2 * j + 8]);
        }
    }
}

// Token t, KV head and group of eight query heads y, chunks z, z + zs … by 8 warps. Positions are multiplied with all heads
// on tensor cores, queries and weights rounded to halves, sums in floats; a warp weighs one head's. BLOCKS: the cache holds those
// in place of halves.
template <bool BLOCKS>
__device__ __forceinline__ void attend_rows(const AttendArgs& a, bool settled, u32 t, u32 y, u32 z, u32 zs,
                                            AttendScratch& m) {
    u16(*tile)[ROW_HALVES] = (u16(*)[ROW_HALVES])m.tile;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 group = a.heads / a.kv_heads, groups = (group + 7) / 8, kv = y / groups;
    u32 first_head = kv * group + y % groups * 8, some = min(8u, group - y % groups * 8);
    u32 head = first_head + min(warp, some - 1), length = a.position[t] + 1, size = chunk_of(length);
    if ((u64)z * size >= length) return after_previous();
    const u32* pages = a.pages + (u64)a.slot[t] * a.pages_max;
    bool mine = 8 * lane < a.dim, waited = false;
    Eight<BLOCKS ? 8 : 16> k[8];
    Eight<BLOCKS ? 4 : 16> v[8];
    // One warp makes the new position, which the block with its chunk alone needs, and puts it into the cache.
    bool owner = settled && warp == 7 && (length - 1) / size % zs == z;
    u16 new_key[8], new_value[8];
    float w[8], u[8];
    float2 angle[8];
    if (settled) {
        load_head(w, a.q_norm, a.dim);
        if (owner) load_head(u, a.k_norm, a.dim);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            u32 at = lane + 32 * i, p = at < a.rope_dims / 2 ? at : at - a.rope_dims / 2;
            if (at < a.rope_dims) angle[i] = *(const float2*)(a.angles + (u64)(length - 1) * a.rope_dims + 2 * p);
        }
    }
    // What no position fills must be numbers: its weight is zero.
    for (u32 i = threadIdx.x; i < PAGE * ROW_HALVES / 8; i += 256) m.tile[i] = make_uint4(0, 0, 0, 0);
    for (u32 chunk = z; (u64)chunk * size < length; chunk += zs) {
        float top = -INFINITY, sum = 0, out[2][4] = {};
        u32 end = min(length, (chunk + 1) * size);
        bool fresh = owner && end == length, asked = false;
        for (u32 first = chunk * size; first < end; first += PAGE) {
            // Positions that the cache has by now, and those that it had before the wait.
            u32 page = pages[first / PAGE], rows = min((u32)PAGE, end - first);
            u32 known = settled ? min(rows, length - 1 - first) : rows, early = waited || settled ? known : 0;
            if (!asked) {
                load_rows(k, a, a.keys, page, kv, 0, early, mine);
                load_rows(v, a, a.values, page, kv, 0, early, mine);
            }
            if (!waited) {
                waited = true;
                after_previous();
                float x[8], key[8], value[8];
                if (!settled) {
                    load_head(x, a.q + ((u64)t * a.heads + head) * a.dim, a.dim);
                    load_rows(k, a, a.keys, page, kv, early, known, mine);
                    load_rows(v, a, a.values, page, kv, early, known, mine);
                } else {
                    load_head(x, a.query_gate + ((u64)t * a.heads + head) * 2 * a.dim, a.dim);
                    if (owner) {
                        load_head(key, a.k + ((u64)t * a.kv_heads + kv) * a.dim, a.dim);
                        load_head(value, a.v + ((u64)t * a.kv_heads + kv) * a.dim, a.dim);
                    }
                    turn_head(x, a, w, angle);
                    if (BLOCKS) mix_head(x, a.dim);
                    if (owner) {
                        turn_head(key, a, u, angle);
                        if (BLOCKS) new_blocks(a, key, value, pages[(length - 1) / PAGE], kv, length - 1, y % groups == 0);
#pragma unroll
                        for (int i = 0; i < 8; i++) new_key[i] = float_to_half(key[i]), new_value[i] = float_to_half(value[i]);
                    }
                }
#pragma unroll
                for (int i = 0; i < 8; i++) m.queries[warp][lane + 32 * i] = float_to_half(x[i] * a.scale);
            }
            if (!BLOCKS && fresh && length <= first + rows && y % groups == 0) {
                u64 to = 2 * ((((u64)page * PAGE + length - 1 - first) * a.kv_heads + kv) * a.dim);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    if (lane + 32 * i < a.dim) {
                        ((u16*)(a.keys + to))[lane + 32 * i] = new_key[i];
                        ((u16*)(a.values + to))[lane + 32 * i] = new_value[i];
                    }
            }
            __syncthreads();
            store_rows(k, tile, known, mine);
            put_new(new_key, tile, fresh, length - 1 - first, a.dim);
            __syncthreads();
            // The next page is on its way while this one is multiplied.
            u32 next = first + PAGE, more = next < end ? min((u32)PAGE, (settled ? min(end, length - 1) : end) - next) : 0;
            asked = true;
            if (more > 0) load_rows(k, a, a.keys, pages[next / PAGE], kv, 0, more, mine);
            attend_scores(m, a.dim);
            __syncthreads();
            store_rows(v, tile, known, mine);
            put_new(new_value, tile, fresh, length - 1 - first, a.dim);
            if (more > 0) load_rows(v, a, a.values, pages[next / PAGE], kv, 0, more, mine);
            attend_weights(m, rows, top, sum);
            __syncthreads();
            attend_values(m, a.dim, out);
        }
        u32 g = lane / 4, j = lane % 4, step = a.dim + 2;
        float* to = a.part + (((u64)t * a.heads + first_head) * a.chunks_max + chunk) * step;
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 at = 32 * warp + 16 * n + g + i / 2 * 8, h = 2 * j + i % 2;
                if (at < a.dim && h < some) to[(u64)h * a.chunks_max * step + at] = out[n][i];
            }
        if (lane == 0 && warp < some)
            to[(u64)warp * a.chunks_max * step + a.dim] = top, to[(u64)warp * a.chunks_max * step + a.dim + 1] = sum;
    }
}

// Joins the chunks in order, applies the gate and rounds to halves.
struct AttendJoinArgs {
    Ptr<float> part, query_gate;
    Ptr<u32> position;
    Ptr<float> y;     // [tokens][heads·dim]
    Ptr<u16> halves;        // or null
    u32 heads, dim, pad, chunks_max;
};

// Value k of a head of token t.
__device__ __forceinline__ void join_head(const AttendJoinArgs& a, u32 t, u32 head, u32 k) {
    u32 lane = k % 32;
    u32 last = a.position[t], chunks = last / chunk_of(last + 1) + 1, step = a.dim + 2;
    const float* from = a.part + ((u64)t * a.heads + head) * a.chunks_max * step;
    after_previous();
    float gate = a.query_gate[(((u64)t * a.heads + head) * 2 + 1) * a.dim + k];
    float top = -INFINITY, sum = 0, out = 0;
    for (u32 c = lane; c < chunks; c += 32) top = fmaxf(top, from[c * step + a.dim]);
    top = warp_max(top);
    for (u32 first = 0; first < chunks; first += 32) {
        u32 c = min(first + lane, chunks - 1);
        float weight = expf(from[c * step + a.dim] - top), share = from[c * step + a.dim + 1];
#pragma unroll 8
        for (u32 i = 0; i < min(32u, chunks - first); i++) {
            float w = __shfl_sync(FULL, weight, (int)i);
            sum = fmaf(w, __shfl_sync(FULL, share, (int)i), sum);
            out = fmaf(w, from[(first + i) * step + k], out);
        }
    }
    float y = out / sum * sigmoid(gate);
    a.y[((u64)t * a.heads + head) * a.dim + k] = y;
    if (a.halves.at) put_half(y, a.halves, a.heads * a.dim, t, head * a.dim + k);
}
