// Attention of many tokens over the paged cache of halves or blocks, on tensor cores: queries and weights rounded to
// halves, sums in floats. A block owns up to 128 rows: all query heads of one KV head for some tokens of one sequence, a warp 16 of
// them. Of few tokens it owns 16, for what warps read of shared memory is what takes the time.
// It walks over `split` positions 32 at a time, keys and values by turns. Behind so many, a block for each split leaves
// its sums, and `attention_join` joins them in order. A row's numbers depend on its position and on no other row.
//
// Heads of 128 or 256 values. Shared memory: 33 KB.
#include "blocks.cuh"

#define FLASH_PAGE 64
#define FLASH_KEYS 32

struct FlashSpan {
    u32 slot, start, len, position;
};

struct FlashArgs {
    Ptr<float> q;           // [tokens][heads][dim], normalised and rotated
    Ptr<u8> keys, values;   // the layer's pages
    Ptr<u32> pages;         // [slots][pages_max]
    Ptr<FlashSpan> span;
    Ptr<float> query_gate;  // [tokens][heads][2][dim]
    Ptr<float> y;           // [tokens][heads·dim]
    Ptr<float> part;        // [tokens of the launch][heads][splits][dim + 2]: Σ p·v, maximum, Σ p
    u32 heads, kv_heads, dim, pages_max;
    u32 first, split, splits;  // first tile of the span; positions of a split; splits of a row in `part`, 0: y is written
    u32 each;                  // tokens of a tile
    float scale, pad;
};

// 32 positions from `first` on, as far as the sequence goes; what lies behind is masked by the reader, but must be
// numbers. Blocks become halves on their way, which is over when this is.
template <int DIM, int BITS>
__device__ __forceinline__ void fetch_cached(u16 (*to)[DIM + 8], u8* from, const u32* pages, u32 first, u32 kv,
                                             u32 kv_heads) {
    if constexpr (BITS < 16) {
        const int COUNT = FLASH_KEYS * DIM / 8 / 256;
        Eight<BITS> held[COUNT];
#pragma unroll
        for (int n = 0; n < COUNT; n++) {
            u32 i = threadIdx.x + 256 * n, row = (first % FLASH_PAGE + i / (DIM / 8)) * kv_heads + kv;
            held[n].load(Place<BITS>(from, pages[first / FLASH_PAGE], row, kv_heads, DIM), i % (DIM / 8));
        }
#pragma unroll
        for (int n = 0; n < COUNT; n++) {
            u32 i = threadIdx.x + 256 * n, at = i % (DIM / 8);
            *(uint4*)&to[i / (DIM / 8)][8 * at] = held[n].halves(at);
        }
        return;
    }
    u64 base = ((u64)pages[first / FLASH_PAGE] * FLASH_PAGE + first % FLASH_PAGE) * kv_heads + kv;
    for (u32 i = threadIdx.x; i < FLASH_KEYS * DIM / 8; i += 256) {
        u32 r = i / (DIM / 8), at = i % (DIM / 8) * 8;
        copy_16(&to[r][at], (const u16*)from + (base + (u64)r * kv_heads) * DIM + at);
    }
}

template <int DIM, bool BLOCKS>
__device__ __forceinline__ void flash(const FlashArgs& a, u16 (*keys)[DIM + 8], u16 (*values)[DIM + 8]) {
    const int KEY = BLOCKS ? 8 : 16, VALUE = BLOCKS ? 4 : 16;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, j = lane % 4;
    u32 group = a.heads / a.kv_heads, each = a.each, kv = blockIdx.y;
    const FlashSpan span = a.span[0];
    // The longest first.
    u32 tile = a.first + gridDim.x - 1 - blockIdx.x, last = min(tile * each + each, span.len) - 1;
    u32 begin = blockIdx.z * a.split, end = min(span.position + last + 1, begin + a.split);
    if (begin >= end) return;
    const u32* pages = a.pages + (u64)span.slot * a.pages_max;
    u32 token[2], head[2], position[2];
    bool real[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 row = 16 * warp + g + 8 * h, t = tile * each + row / group;
        real[h] = row / group < each && t <= last;
        t = min(t, last);
        token[h] = span.start + t, position[h] = span.position + t, head[h] = kv * group + row % group;
    }
    // Some warps own no row: they only fetch.
    bool works = 16 * warp / group < each && tile * each + 16 * warp / group <= last;
    fetch_cached<DIM, KEY>(keys, a.keys, pages, begin, kv, a.kv_heads);
    copies_end();
    u32 q[DIM / 16][4];
#pragma unroll
    for (int k = 0; k < DIM / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int h = i % 2;
            const float2 v = *(const float2*)(a.q + ((u64)token[h] * a.heads + head[h]) * DIM + 16 * k + i / 2 * 8 + 2 * j);
            q[k][i] = pack_halves(v.x, v.y);
        }
    float out[DIM / 8][4], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < DIM / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) out[n][i] = 0;
    float scale = a.scale * 1.4426950408889634f;
#pragma unroll 1
    for (u32 first = begin; first < end; first += FLASH_KEYS) {
        __syncthreads();
        fetch_cached<DIM, VALUE>(values, a.values, pages, first, kv, a.kv_heads);
        copies_end();
        copies_wait<1>();
        __syncthreads();
        float s[4][4];
        if (works) {
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) s[n][i] = 0;
            // Four sums by turns: one alone waits for its own last product.
#pragma unroll
            for (int k = 0; k < DIM / 16; k += 2) {
                u32 b[4][4];
#pragma unroll
                for (int n = 0; n < 4; n++) load_matrices(b[n], &keys[8 * n + lane % 8][16 * k + lane / 8 * 8]);
#pragma unroll
                for (int h = 0; h < 2; h++)
#pragma unroll
                    for (int n = 0; n < 4; n++) mma_halves(s[n], q[k + h], b[n][2 * h], b[n][2 * h + 1]);
            }
            float highest[2] = {top[0], top[1]};
            bool seen = first + FLASH_KEYS - 1 <= span.position + tile * each;  // all of them, by all of the block's tokens
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    s[n][i] *= scale;
                    if (!seen && first + 8 * n + 2 * j + i % 2 > position[i / 2]) s[n][i] = -INFINITY;
                    highest[i / 2] = fmaxf(highest[i / 2], s[n][i]);
                }
            float fade[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                highest[h] = fmaxf(highest[h], __shfl_xor_sync(FULL, highest[h], 1));
                highest[h] = fmaxf(highest[h], __shfl_xor_sync(FULL, highest[h], 2));
                fade[h] = exp2f(top[h] - highest[h]);
                top[h] = highest[h];
                sum[h] *= fade[h];
            }
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    s[n][i] = exp2f(s[n][i] - highest[i / 2]);
                    sum[i / 2] += s[n][i];
                }
            // Seldom is one higher than all before: what there is stays as it is.
            if (__reduce_max_sync(FULL, fade[0] != 1.0f || fade[1] != 1.0f)) {
#pragma unroll
                for (int n = 0; n < DIM / 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) out[n][i] *= fade[i / 2];
            }
        }
        __syncthreads();
        if (first + FLASH_KEYS < end) fetch_cached<DIM, KEY>(keys, a.keys, pages, first + FLASH_KEYS, kv, a.kv_heads);
        copies_end();
        copies_wait<1>();
        __syncthreads();
        if (!works) continue;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            u32 p[4] = {pack_halves(s[2 * k][0], s[2 * k][1]), pack_halves(s[2 * k][2], s[2 * k][3]),
                        pack_halves(s[2 * k + 1][0], s[2 * k + 1][1]), pack_halves(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
            for (int n = 0; n < DIM / 8; n += 2) {
                u32 b[4];
                load_matrices_transposed(b, &values[16 * k + lane % 16][8 * n + lane / 16 * 8]);
                mma_halves(out[n], p, b[0], b[1]);
                mma_halves(out[n + 1], p, b[2], b[3]);
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] += __shfl_xor_sync(FULL, sum[h], 1);
        sum[h] += __shfl_xor_sync(FULL, sum[h], 2);
        if (!real[h]) continue;
        if (a.splits) {
            u64 row = (u64)(token[h] - span.start - a.first * each) * a.heads + head[h];
            float* part = a.part + (row * a.splits + blockIdx.z) * (DIM + 2);
#pragma unroll
            for (int n = 0; n < DIM / 8; n++)
                *(float2*)(part + 8 * n + 2 * j) = {out[n][2 * h], out[n][2 * h + 1]};
            if (j == 0) part[DIM] = top[h] * 0.6931471805599453f, part[DIM + 1] = sum[h];
            continue;
        }
        u64 row = (u64)token[h] * a.heads + head[h];
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                u32 k = 8 * n + 2 * j + i;
                float gate = a.query_gate[(2 * row + 1) * DIM + k];
                a.y[row * DIM + k] = out[n][2 * h + i] / sum[h] * sigmoid(gate);
            }
    }
}

#define FLASH(name, dim, blocks)                                          \
    KERNEL(__launch_bounds__(256, 1) name, FlashArgs) {                   \
        __shared__ u16 keys[FLASH_KEYS][dim + 8], values[FLASH_KEYS][dim + 8]; \
        wait_previous();                                                  \
        flash<dim, blocks>(a, keys, values);                              \
    }

FLASH(attention_prefill_128, 128, false)
FLASH(attention_prefill_256, 256, false)
FLASH(attention_prefill_blocks_128, 128, true)
FLASH(attention_prefill_blocks_256, 256, true)
