// Adapters: out[t] += scale·B·(A·x[t]), each row with the factors of its own adapter, for up to four matrices.
//
// lora_inner: inner = scale·A·x, a warp one inner value of eight rows. lora_add: out += B·inner, a thread one output of
// eight rows. Rows of one adapter share the reads of its factors; the operations on a row are the same alone.
// Limits: rank to 64; rows of x and of A on 16 bytes where the inputs are a multiple of four.
#include "lora.cuh"

#define LORA_ROWS 8
#define LORA_OUTPUTS 256

struct LoraPart {
    Ptr<float> x;      // row p reads row p / fan, rows at distance `stride`
    Ptr<float> inner;  // [rows][RANK_MAX]
    Ptr<float> out;    // [rows][outputs]
    Ptr<u32> chosen;   // expert of each row, or null: one matrix for all
    u32 place, inputs, outputs, stride;
    u32 rows, fan;
    u32 used;          // rows that belong to one token
    u32 tile;          // its first unit of outputs among those of all parts
};

struct LoraArgs {
    Who who;
    LoraPart parts[4];
    u32 count, pad;
};

// What eight rows add; the last row stands for those past the end.
struct LoraRows {
    u64 at[LORA_ROWS];  // A or B; 0: nothing is added
    u32 rank[LORA_ROWS];
    float scale[LORA_ROWS];
};

// By the first eight threads of a block; true if all rows have the same factors.
__device__ __forceinline__ bool find_rows(const LoraArgs& a, const LoraPart& s, u32 first, bool inner, LoraRows& m) {
    if (threadIdx.x < LORA_ROWS) {
        u32 row = min(first + threadIdx.x, s.rows - 1), expert = s.chosen.at ? s.chosen[row] : 0;
        const LowRank* f = factors_of(a.who, row / s.used, s.place);
        u64 at = 0;
        if (f) at = inner ? f->a.at + 4ull * expert * f->rank * s.inputs : f->b.at + 4ull * expert * f->rank * s.outputs;
        m.at[threadIdx.x] = at;
        m.rank[threadIdx.x] = f ? f->rank : 0;
        m.scale[threadIdx.x] = f ? f->scale : 0.0f;
    }
    __syncthreads();
    bool same = m.at[0] != 0;
    for (int n = 1; n < LORA_ROWS; n++) same = same && m.at[n] == m.at[0];
    return same;
}

// One row of A times N rows of x by one warp. Which lane sums what depends on the number of inputs alone.
template <int N> __device__ __forceinline__ void dots(const float* a, const float* const* x, u32 inputs, float sum[N]) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N; n++) sum[n] = 0;
    if (inputs % 4 == 0) {
        // A row alone has few loads a step, so it takes four steps' at once.
        constexpr u32 AHEAD = N == 1 ? 4 : 1;
#pragma unroll 1
        for (u32 k = 4 * lane; k < inputs; k += 128 * AHEAD) {
            float4 w[AHEAD], v[AHEAD][N];
#pragma unroll
            for (u32 i = 0; i < AHEAD; i++) {
                if (k + 128 * i >= inputs) break;
                w[i] = *(const float4*)(a + k + 128 * i);
#pragma unroll
                for (int n = 0; n < N; n++) v[i][n] = *(const float4*)(x[n] + k + 128 * i);
            }
#pragma unroll
            for (u32 i = 0; i < AHEAD; i++) {
                if (k + 128 * i >= inputs) break;
#pragma unroll
                for (int n = 0; n < N; n++) {
                    sum[n] = fmaf(w[i].x, v[i][n].x, sum[n]);
                    sum[n] = fmaf(w[i].y, v[i][n].y, sum[n]);
                    sum[n] = fmaf(w[i].z, v[i][n].z, sum[n]);
                    sum[n] = fmaf(w[i].w, v[i][n].w, sum[n]);
                }
            }
        }
    } else {
#pragma unroll 1
        for (u32 k = lane; k < inputs; k += 32) {
            float w = a[k];
#pragma unroll
            for (int n = 0; n < N; n++) sum[n] = fmaf(w, x[n][k], sum[n]);
        }
    }
#pragma unroll
    for (int n = 0; n < N; n++) sum[n] = warp_sum(sum[n]);
}

// x: eight rows; y: part, and eight of its inner values, one a warp.
KERNEL(__launch_bounds__(256) lora_inner, LoraArgs) {
    __shared__ LoraRows m;
    const LoraPart& s = a.parts[blockIdx.y / (RANK_MAX / 8)];
    u32 first = LORA_ROWS * blockIdx.x, r = blockIdx.y % (RANK_MAX / 8) * 8 + threadIdx.x / 32;
    if (first >= s.rows) return;
    after_previous();
    bool same = find_rows(a, s, first, true, m);
    u32 count = min((u32)LORA_ROWS, s.rows - first);
    const float* x[LORA_ROWS];
#pragma unroll
    for (int n = 0; n < LORA_ROWS; n++) x[n] = s.x + (u64)(min(first + n, s.rows - 1) / s.fan) * s.stride;
    float* to = s.inner + (u64)first * RANK_MAX + r;
    if (same && count > 1) {
        if (r >= m.rank[0]) return;
        float sum[LORA_ROWS];
        dots<LORA_ROWS>((const float*)m.at[0] + (u64)r * s.inputs, x, s.inputs, sum);
#pragma unroll
        for (int n = 0; n < LORA_ROWS; n++)
            if (threadIdx.x % 32 == 0 && (u32)n < count) to[n * RANK_MAX] = m.scale[n] * sum[n];
        return;
    }
#pragma unroll
    for (int n = 0; n < LORA_ROWS; n++) {
        if ((u32)n >= count || r >= m.rank[n]) continue;
        float sum[1];
        dots<1>((const float*)m.at[n] + (u64)r * s.inputs, x + n, s.inputs, sum);
        if (threadIdx.x % 32 == 0) to[n * RANK_MAX] = m.scale[n] * sum[0];
    }
}

// x: 256 outputs of a part; y: eight rows.
KERNEL(__launch_bounds__(LORA_OUTPUTS) lora_add, LoraArgs) {
    __shared__ LoraRows m;
    __shared__ float inner[LORA_ROWS][RANK_MAX];
    u32 i = 0;
    while (i + 1 < a.count && blockIdx.x >= a.parts[i + 1].tile) i++;
    const LoraPart& s = a.parts[i];
    u32 out = LORA_OUTPUTS * (blockIdx.x - s.tile) + threadIdx.x, first = LORA_ROWS * blockIdx.y;
    if (first >= s.rows) return;
    after_previous();
    bool same = find_rows(a, s, first, false, m);
    u32 count = min((u32)LORA_ROWS, s.rows - first);
    for (u32 at = threadIdx.x; at < count * RANK_MAX; at += LORA_OUTPUTS)
        if (at % RANK_MAX < m.rank[at / RANK_MAX])
            inner[at / RANK_MAX][at % RANK_MAX] = s.inner[(u64)first * RANK_MAX + at];
    __syncthreads();
    if (out >= s.outputs) return;
    float* to = s.out + (u64)first * s.outputs + out;
    if (same && count == LORA_ROWS) {
        const float* b = (const float*)m.at[0] + out;
        float v[LORA_ROWS];
#pragma unroll
        for (int n = 0; n < LORA_ROWS; n++) v[n] = to[(u64)n * s.outputs];
#pragma unroll 1
        for (u32 r = 0; r < m.rank[0]; r++) {
            float w = b[(u64)r * s.outputs];
#pragma unroll
            for (int n = 0; n < LORA_ROWS; n++) v[n] = fmaf(w, inner[n][r], v[n]);
        }
#pragma unroll
        for (int n = 0; n < LORA_ROWS; n++) to[(u64)n * s.outputs] = v[n];
        return;
    }
#pragma unroll 1
    for (u32 n = 0; n < count; n++) {
        if (!m.at[n]) continue;
        float* one = to + (u64)n * s.outputs;
        *one = add_ranks<16>((const float*)m.at[n] + out, s.outputs, inner[n], m.rank[n], *one);
    }
}
