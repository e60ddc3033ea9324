// Gated delta rule of a layer over the tokens of every sequence: convolution, gates, state and gated norm in one
// launch. A block of 512 threads owns one value head of one sequence and walks over its tokens.
//
// Thread (v, part): value column v of the state, keys 32·part .. + 31, held in registers. Head size 128, four taps.
// Formulas and their source: core/src/engine/model/stages.rs, GdnMix. The window of the last three inputs of a
// channel is kept for each value head apart, also of the queries and keys that several heads share: no two blocks
// touch the same memory.
#include "product.cuh"

struct Span {
    u32 slot, start, len, position;
};

struct GdnArgs {
    Ptr<float> qkv;     // [tokens][channels]: queries, keys, values
    Ptr<float> z;       // [tokens][value_heads·128]
    Ptr<float> alpha;   // [tokens][value_heads]
    Ptr<float> beta;
    Ptr<float> conv;    // [channels][4]
    Ptr<float> decay;   // [value_heads]
    Ptr<float> bias;
    Ptr<float> norm;    // [128]
    Ptr<float> state;   // [slots][value_heads][128 keys][128 values]
    Ptr<float> window;  // [slots][value_heads][3 taps][384]
    Ptr<Span> spans;
    Ptr<float> y;       // [tokens][value_heads·128]
    Ptr<u8> q;          // or null
    Ptr<float4> side;
    u32 key_heads, value_heads, channels, pad;
    float eps, pad2;
};

KERNEL(__launch_bounds__(512) gdn, GdnArgs) {
    __shared__ float row[384];           // q, k, v of the token after the convolution
    __shared__ float sums[12], totals[4];
    __shared__ float parts[2][4][128];   // Sᵀk and Sᵀq by parts of the keys
    u32 head = blockIdx.x, i = threadIdx.x, v = i % 128, part = i / 128;
    Span span = a.spans[blockIdx.y];
    u64 home = (u64)span.slot * a.value_heads + head;
    float* state = a.state + home * 16384 + part * 32 * 128 + v;
    float s[32];
#pragma unroll
    for (int k = 0; k < 32; k++) s[k] = state[k * 128];
    // Which channel this thread convolves: 0..127 queries, ..255 keys, ..383 values.
    u32 key_head = head % a.key_heads;
    u32 channel = (part == 0 ? key_head : part == 1 ? a.key_heads + key_head : 2 * a.key_heads + head) * 128 + v;
    float w[4] = {0, 0, 0, 0}, x[4] = {0, 0, 0, 0};
    float* window = a.window + home * 1152 + i;
    if (i < 384)
        for (int j = 0; j < 4; j++) {
            w[j] = a.conv[(u64)channel * 4 + j];
            if (j < 3) x[j] = window[j * 384];
        }
    after_previous();
    for (u32 t = span.start; t < span.start + span.len; t++) {
        float c = 0;
        if (i < 384) {
            x[3] = a.qkv[(u64)t * a.channels + channel];
            for (int j = 0; j < 4; j++) c = fmaf(w[j], x[j], c);
            for (int j = 0; j < 3; j++) x[j] = x[j + 1];
            c = silu(c);
            row[i] = c;
        }
        float square = warp_sum(i < 256 ? c * c : 0);
        if (i < 256 && i % 32 == 0) sums[i / 32] = square;
        __syncthreads();
        float q_scale = 1.0f / fmaxf(sqrtf(sums[0] + sums[1] + sums[2] + sums[3]), a.eps) * 0.08838834764831845f;
        float k_scale = 1.0f / fmaxf(sqrtf(sums[4] + sums[5] + sums[6] + sums[7]), a.eps);
        u64 gate = (u64)t * a.value_heads + head;
        float decay = expf(softplus(a.alpha[gate] + a.bias[head]) * a.decay[head]), beta = sigmoid(a.beta[gate]);
        // Two halves of a part, as the lanes of gdn_walk.cu have them.
        float rs[2] = {0, 0}, os[2] = {0, 0};
#pragma unroll
        for (int k = 0; k < 32; k++) {
            rs[k / 16] = fmaf(s[k], row[128 + part * 32 + k], rs[k / 16]);
            os[k / 16] = fmaf(s[k], row[part * 32 + k], os[k / 16]);
        }
        parts[0][part][v] = rs[0] + rs[1];
        parts[1][part][v] = os[0] + os[1];
        float kq = warp_sum(i < 128 ? row[i] * row[128 + i] : 0);
        if (i % 32 == 0 && i < 128) totals[i / 32] = kq;
        __syncthreads();
        // (a·S + k δᵀ)ᵀ q = a·Sᵀq + δ·(k·q): one pass over the state serves both products.
        float r = (parts[0][0][v] + parts[0][1][v] + parts[0][2][v] + parts[0][3][v]) * decay * k_scale;
        float o = (parts[1][0][v] + parts[1][1][v] + parts[1][2][v] + parts[1][3][v]) * decay * q_scale;
        kq = (totals[0] + totals[1] + totals[2] + totals[3]) * k_scale * q_scale;
        float delta = beta * (row[256 + v] - r);
        o = fmaf(delta, kq, o);
#pragma unroll
        for (int k = 0; k < 32; k++) s[k] = fmaf(row[128 + part * 32 + k] * k_scale, delta, s[k] * decay);
        square = warp_sum(o * o);
        if (i < 128 && i % 32 == 0) sums[8 + i / 32] = square;  // the four parts hold the same
        __syncthreads();
        if (i < 128) {
            u64 at = (u64)t * a.value_heads * 128 + head * 128 + v;
            float scale = 1.0f / sqrtf((sums[8] + sums[9] + sums[10] + sums[11]) / 128.0f + a.eps);
            float y = o * scale * a.norm[v] * silu(a.z[at]);
            a.y[at] = y;
            if (a.q.at) quantize_block(y, a.q, a.side, a.value_heads * 128, t, head * 4 + i / 32);
        }
    }
#pragma unroll
    for (int k = 0; k < 32; k++) state[k * 128] = s[k];
    if (i < 384)
        for (int j = 0; j < 3; j++) window[j * 384] = x[j];
}
