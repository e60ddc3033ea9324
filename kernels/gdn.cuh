// Gated delta rule over the tokens of a sequence: convolution, gates, state and gated norm. A block owns one value head
// of one sequence and walks over its tokens.
//
// A state is kept as floats or as bf16. What is kept so is rounded behind every token, not where a pass ends: a row's
// numbers must not depend on how its prompt was cut.
//
// Thread (v, part): value column v of the state, keys 32·part .. + 31, held in registers; with fewer than 512 threads,
// several parts. Head size 128, four taps.
// Formulas and their source: core/src/engine/model/stages.rs, GdnMix. The window of the last three inputs of a
// channel is kept for each value head apart, also of the queries and keys that several heads share: no two blocks
// touch the same memory.
#pragma once
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
    Ptr<u8> state;      // [slots][value_heads][128 keys][128 values]
    Ptr<float> window;  // [slots][value_heads][3 taps][384]
    Ptr<Span> spans;
    Ptr<float> y;       // [tokens][value_heads·128]
    Ptr<u16> halves;          // or null
    u32 key_heads, value_heads, channels, pad;
    float eps, pad2;
};

// A value of a state: floats, or what bf16 leaves of them.
template <bool SHORT> struct Kept {
    typedef float Type;
    static __device__ __forceinline__ float read(float v) { return v; }
    static __device__ __forceinline__ float written(float v) { return v; }
    static __device__ __forceinline__ float rounded(float v) { return v; }
};
template <> struct Kept<true> {
    typedef u16 Type;
    static __device__ __forceinline__ float read(u16 v) { return bf16_to_float(v); }
    static __device__ __forceinline__ u16 written(float v) { return float_to_bf16(v); }
    static __device__ __forceinline__ float rounded(float v) { return bf16_to_float(float_to_bf16(v)); }
};

struct GdnScratch {
    float row[384];           // q, k, v of the token after the convolution
    float sums[12], totals[4];
    float parts[2][4][128];   // Sᵀk and Sᵀq by parts of the keys
};

// What a token brings to a thread: gates, and its channels' inputs.
template <int SOME> struct Brought {
    float alpha, beta, z, qkv[SOME];
    template <int THREADS> __device__ __forceinline__ void ask(const GdnArgs& a, u32 head, u32 t, const u32 channel[SOME]) {
        u64 gate = (u64)t * a.value_heads + head;
        alpha = a.alpha[gate], beta = a.beta[gate], z = threadIdx.x < 128 ? a.z[gate * 128 + threadIdx.x] : 0;
#pragma unroll
        for (int n = 0; n < SOME; n++)
            if (threadIdx.x + THREADS * n < 384) qkv[n] = a.qkv[(u64)t * a.channels + channel[n]];
    }
};

template <int THREADS, bool SHORT>
__device__ __forceinline__ void gdn_head(const GdnArgs& a, u32 head, const Span span, GdnScratch& m) {
    const int PER = 512 / THREADS, SOME = (384 + THREADS - 1) / THREADS;
    float* row = m.row;
    u32 i = threadIdx.x, v = i % 128, part = i / 128 * PER;
    u64 home = (u64)span.slot * a.value_heads + head;
    auto state = (typename Kept<SHORT>::Type*)a.state.get() + home * 16384 + part * 32 * 128 + v;
    float s[PER][32];
#pragma unroll
    for (int p = 0; p < PER; p++)
#pragma unroll
        for (int k = 0; k < 32; k++) s[p][k] = Kept<SHORT>::read(state[(p * 32 + k) * 128]);
    // Which channels this thread convolves: 0..127 queries, ..255 keys, ..383 values.
    u32 key_head = head % a.key_heads, channel[SOME];
    float w[SOME][4], x[SOME][4];
    float* window = a.window + home * 1152;
#pragma unroll
    for (int n = 0; n < SOME; n++) {
        u32 c = i + THREADS * n, kind = c / 128;
        channel[n] = (kind == 0 ? key_head : kind == 1 ? a.key_heads + key_head : 2 * a.key_heads + head) * 128 + v;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            w[n][j] = c < 384 ? a.conv[(u64)channel[n] * 4 + j] : 0;
            x[n][j] = c < 384 && j < 3 ? window[c + j * 384] : 0;
        }
    }
    float bias = a.bias[head], fade = a.decay[head], share = a.norm[v];
    after_previous();
    // All that a token brings is on its way at once, while the one before it is worked on.
    Brought<SOME> next;
    next.template ask<THREADS>(a, head, span.start, channel);
    for (u32 t = span.start; t < span.start + span.len; t++) {
        const Brought<SOME> now = next;
        if (t + 1 < span.start + span.len) next.template ask<THREADS>(a, head, t + 1, channel);
        u64 at = (u64)t * a.value_heads * 128 + head * 128 + v;
        float alpha = now.alpha, strength = now.beta, z = now.z, first = 0;
#pragma unroll
        for (int n = 0; n < SOME; n++) {
            if (i + THREADS * n >= 384) break;
            float c = 0;
            x[n][3] = now.qkv[n];
#pragma unroll
            for (int j = 0; j < 4; j++) c = fmaf(w[n][j], x[n][j], c);
#pragma unroll
            for (int j = 0; j < 3; j++) x[n][j] = x[n][j + 1];
            c = silu(c);
            row[i + THREADS * n] = c;
            if (n == 0) first = c;
        }
        float square = warp_sum(i < 256 ? first * first : 0);
        if (i < 256 && i % 32 == 0) m.sums[i / 32] = square;
        __syncthreads();
        float q_scale = 1.0f / fmaxf(sqrtf(m.sums[0] + m.sums[1] + m.sums[2] + m.sums[3]), a.eps) * 0.08838834764831845f;
        float k_scale = 1.0f / fmaxf(sqrtf(m.sums[4] + m.sums[5] + m.sums[6] + m.sums[7]), a.eps);
        float decay = expf(softplus(alpha + bias) * fade), beta = sigmoid(strength);
#pragma unroll
        for (int p = 0; p < PER; p++) {
            // Two halves of a part, as the lanes of gdn_walk.cu have them.
            float rs[2] = {0, 0}, os[2] = {0, 0};
#pragma unroll
            for (int k = 0; k < 32; k++) {
                rs[k / 16] = fmaf(s[p][k], row[128 + (part + p) * 32 + k], rs[k / 16]);
                os[k / 16] = fmaf(s[p][k], row[(part + p) * 32 + k], os[k / 16]);
            }
            m.parts[0][part + p][v] = rs[0] + rs[1];
            m.parts[1][part + p][v] = os[0] + os[1];
        }
        float kq = warp_sum(i < 128 ? row[i] * row[128 + i] : 0);
        if (i % 32 == 0 && i < 128) m.totals[i / 32] = kq;
        __syncthreads();
        // (a·S + k δᵀ)ᵀ q = a·Sᵀq + δ·(k·q): one pass over the state serves both products.
        float r = (m.parts[0][0][v] + m.parts[0][1][v] + m.parts[0][2][v] + m.parts[0][3][v]) * decay * k_scale;
        float o = (m.parts[1][0][v] + m.parts[1][1][v] + m.parts[1][2][v] + m.parts[1][3][v]) * decay * q_scale;
        kq = (m.totals[0] + m.totals[1] + m.totals[2] + m.totals[3]) * k_scale * q_scale;
        float delta = beta * (row[256 + v] - r);
        o = fmaf(delta, kq, o);
#pragma unroll
        for (int p = 0; p < PER; p++)
#pragma unroll
            for (int k = 0; k < 32; k++)
                s[p][k] = Kept<SHORT>::rounded(fmaf(row[128 + (part + p) * 32 + k] * k_scale, delta, s[p][k] * decay));
        square = warp_sum(o * o);
        if (i < 128 && i % 32 == 0) m.sums[8 + i / 32] = square;  // all parts hold the same
        __syncthreads();
        if (i < 128) {
            float scale = 1.0f / sqrtf((m.sums[8] + m.sums[9] + m.sums[10] + m.sums[11]) / 128.0f + a.eps);
            float y = o * scale * share * silu(z);
            a.y[at] = y;
            if (a.halves.at) put_half(y, a.halves, a.value_heads * 128, t, head * 128 + i);
        }
    }
#pragma unroll
    for (int p = 0; p < PER; p++)
#pragma unroll
        for (int k = 0; k < 32; k++) state[(p * 32 + k) * 128] = Kept<SHORT>::written(s[p][k]);
#pragma unroll
    for (int n = 0; n < SOME; n++)
#pragma unroll
        for (int j = 0; j < 3; j++)
            if (i + THREADS * n < 384) window[i + THREADS * n + j * 384] = x[n][j];
}
