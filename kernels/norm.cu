// Between layers: the experts' results are added to the residual stream, the sum is normalised and rounded to halves.
#include "norm.cuh"

// x[t] += Σ_k weight[t][k]·y[t·used + k] + shared[t]·y[tokens·used + t] (in this order) where y is given; then
// n = x / √(mean x² + eps) · w, as floats and as halves. A block of 256 threads a token. Widths to 8,192, a
// multiple of 4.
struct NormArgs {
    Ptr<float> x;      // [tokens][width], written back if y is given
    Ptr<float> y;      // [tokens·(used + 1)][width] or null
    Ptr<float> weight; // [tokens][used + 1], the shared expert's last
    Ptr<float> w;      // [width]
    Ptr<float> n;      // [tokens][stride] or null: where the first value of the row goes
    Ptr<u16> halves;   // or null; the width is then a multiple of 32
    u32 width, stride, tokens, used;
    float eps;
    u32 pad;
};

// In round r, thread i holds values 4i + 1024r .. + 3; the norm's weights are in flight before the wait.
KERNEL(__launch_bounds__(256) rms_norm, NormArgs) {
    __shared__ RowSums m;
    u32 t = blockIdx.x;
    float4 held[8], w[8];
#pragma unroll
    for (u32 r = 0; r < 8; r++) w[r] = load_four(a.w, 4 * threadIdx.x + 1024 * r, a.width);
    after_previous();
    float* x = a.x + (u64)t * a.width;
#pragma unroll
    for (u32 r = 0; r < 8; r++) held[r] = load_four(x, 4 * threadIdx.x + 1024 * r, a.width);
    if (a.y.at) {
        for (u32 e = 0; e <= a.used; e++) {
            u64 row = e < a.used ? (u64)t * a.used + e : (u64)a.tokens * a.used + t;
            float weight = a.weight[(u64)t * (a.used + 1) + e];
#pragma unroll
            for (u32 r = 0; r < 8; r++) {
                float4 y = load_four(a.y + row * a.width, 4 * threadIdx.x + 1024 * r, a.width);
                held[r].x = fmaf(weight, y.x, held[r].x);
                held[r].y = fmaf(weight, y.y, held[r].y);
                held[r].z = fmaf(weight, y.z, held[r].z);
                held[r].w = fmaf(weight, y.w, held[r].w);
            }
        }
#pragma unroll
        for (u32 r = 0; r < 8; r++) {
            u32 k = 4 * threadIdx.x + 1024 * r;
            if (k < a.width) *(float4*)(x + k) = held[r];
        }
    }
    float* n = a.n.at ? a.n + (u64)t * a.stride : nullptr;
    put_normalised(held, w, a.width, a.eps, m, n, a.halves.at ? a.halves + (u64)t * a.width : nullptr);
}

// Rounds rows as they are, four values a thread; the width is a multiple of 32.
struct HalveArgs {
    Ptr<float> x;  // [tokens][width]
    Ptr<u16> halves;
    u32 fours, pad;  // of all rows
};

KERNEL(__launch_bounds__(256) halve, HalveArgs) {
    u32 at = blockIdx.x * 256 + threadIdx.x;
    if (at >= a.fours) return;
    after_previous();
    put_four(*(const float4*)(a.x + 4 * (u64)at), a.halves + (u64)at / 8 * 32, 4 * (at % 8));
}

// Copies the rows that somebody asked for: out[i] = x[rows[i]]. A block of 256 threads a row.
struct GatherArgs {
    Ptr<float> x, out;  // [..][width]
    Ptr<u32> rows;
    u32 width, pad;
};

KERNEL(__launch_bounds__(256) gather, GatherArgs) {
    after_previous();
    const float* from = a.x + (u64)a.rows[blockIdx.x] * a.width;
    for (u32 k = threadIdx.x; k < a.width; k += 256) a.out[(u64)blockIdx.x * a.width + k] = from[k];
}
