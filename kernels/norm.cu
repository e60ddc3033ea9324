// Between layers: the experts' results are added to the residual stream, the sum is normalised and quantised.
#include "product.cuh"

// x[t] += Σ_k weight[t][k]·y[t·used + k] + shared[t]·y[tokens·used + t] (in this order) where y is given; then
// n = x / √(mean x² + eps) · w, as floats and quantised. A block of 256 threads a token. Widths to 8,192.
struct NormArgs {
    Ptr<float> x;      // [tokens][width], written back if y is given
    Ptr<float> y;      // [tokens·(used + 1)][width] or null
    Ptr<float> weight; // [tokens][used + 1], the shared expert's last
    Ptr<float> w;      // [width]
    Ptr<float> n;      // [tokens][stride] or null: where the first value of the row goes
    Ptr<u8> q;         // or null; the width is then a multiple of 32
    Ptr<float4> side;
    u32 width, stride, tokens, used;
    float eps;
    u32 pad;
};

KERNEL(__launch_bounds__(256) rms_norm, NormArgs) {
    __shared__ float scratch[8];
    u32 t = blockIdx.x;
    after_previous();
    float* x = a.x + (u64)t * a.width;
    float held[32], square = 0;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        u32 k = threadIdx.x + 256 * i;
        if (k >= a.width) break;
        float v = x[k];
        if (a.y.at) {
            for (u32 e = 0; e <= a.used; e++) {
                u64 row = e < a.used ? (u64)t * a.used + e : (u64)a.tokens * a.used + t;
                v = fmaf(a.weight[(u64)t * (a.used + 1) + e], a.y[row * a.width + k], v);
            }
            x[k] = v;
        }
        held[i] = v;
        square = fmaf(v, v, square);
    }
    float scale = 1.0f / sqrtf(block_sum(square, scratch, 8) / (float)a.width + a.eps);
#pragma unroll
    for (int i = 0; i < 32; i++) {
        u32 k = threadIdx.x + 256 * i;
        if (k - threadIdx.x % 32 >= a.width) break;
        float v = k < a.width ? held[i] * scale * a.w[k] : 0;
        if (a.n.at && k < a.width) a.n[(u64)t * a.stride + k] = v;
        if (a.q.at) quantize_block(v, a.q, a.side, a.width, t, k / 32);
    }
}

// Quantises rows as they are: one warp a block of 32, eight warps a thread block.
struct QuantizeArgs {
    Ptr<float> x;  // [tokens][width]
    Ptr<u8> q;
    Ptr<float4> side;
    u32 width, tokens;
};

KERNEL(__launch_bounds__(256) quantize, QuantizeArgs) {
    u32 block = blockIdx.x * 8 + threadIdx.x / 32, blocks = a.width / 32;
    if (block >= a.tokens * blocks) return;
    after_previous();
    float v = a.x[(u64)block * 32 + threadIdx.x % 32];
    quantize_block(v, a.q, a.side, a.width, block / blocks, block % blocks);
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
