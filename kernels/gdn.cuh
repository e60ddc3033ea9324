// Gated delta rule over the tokens of a sequence: convolution, gates, state and gated norm. A block owns one value head
// of one sequence and walks over its tokens.
//
// A state is kept as floats or as bf16. What is kept so is rounded behind every token, not where a pass ends: a row's
// numbers must not depend on how its prompt was cut.
//
// 512 threads, or 256 with twice as much each. Thread (v, group): value column v of the state, one or two quarters of the keys,
// held in registers. Head size 128, four taps.
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

// Tokens whose share without the state is made together.
#define GDN_TOKENS 4

struct GdnScratch {
    float row[GDN_TOKENS][384];  // q, k, v of a token after the convolution
    float sums[GDN_TOKENS][8];   // their squares, of queries and keys by warps
    float gates[GDN_TOKENS][4];  // decay, strength, scale of queries and of keys
    float kq[GDN_TOKENS][4];     // k·q by warps
    float parts[2][2][4][128];   // of this token and the one before: Sᵀk and Sᵀq by parts of the keys
    float out[GDN_TOKENS][128], squares[GDN_TOKENS][4];
};

// What `n` tokens from `t` on bring that does not need the state: queries, keys and values after the convolution, whose taps
// are `w` and the inputs before them `x`; `i`: which channel of the head it is.
__device__ __forceinline__ void gdn_convolve(const GdnArgs& a, u32 i, u32 channel, u32 t, u32 n, const float w[4], float x[4],
                                             GdnScratch& m) {
    float in[GDN_TOKENS];
#pragma unroll
    for (u32 k = 0; k < GDN_TOKENS; k++) in[k] = i < 384 && k < n ? a.qkv[(u64)(t + k) * a.channels + channel] : 0;
#pragma unroll
    for (u32 k = 0; k < GDN_TOKENS; k++) {
        if (k >= n || i >= 384) break;
        float c = 0;
        x[3] = in[k];
#pragma unroll
        for (int j = 0; j < 4; j++) c = fmaf(w[j], x[j], c);
#pragma unroll
        for (int j = 0; j < 3; j++) x[j] = x[j + 1];
        c = silu(c);
        m.row[k][i] = c;
        if (i >= 256) continue;
        float square = warp_sum(c * c);
        if (i % 32 == 0) m.sums[k][i / 32] = square;
    }
}

// What their norms and products are: by warps of which each has little of it, while the others begin with the state.
template <int GROUPS> __device__ __forceinline__ void gdn_products(const GdnArgs& a, u32 n, GdnScratch& m) {
    u32 group = threadIdx.x / 128, v = threadIdx.x % 128;
    if (group == GROUPS - 1) {
        for (u32 k = 0; k < n; k++) {
            float kq = warp_sum(m.row[k][v] * m.row[k][128 + v]);
            if (v % 32 == 0) m.kq[k][v / 32] = kq;
        }
    } else if (group == GROUPS - 2 && v < n) {
        const float* q = m.sums[v];
        m.gates[v][2] = 1.0f / fmaxf(sqrtf(q[0] + q[1] + q[2] + q[3]), a.eps) * 0.08838834764831845f;
        m.gates[v][3] = 1.0f / fmaxf(sqrtf(q[4] + q[5] + q[6] + q[7]), a.eps);
    }
}

// A value head of a sequence by GROUPS of 128 threads, each of which holds as many quarters of the keys as there are left.
template <bool SHORT, int GROUPS>
__device__ __forceinline__ void gdn_head(const GdnArgs& a, u32 head, const Span span, GdnScratch& m) {
    const int HELD = 4 / GROUPS, THREADS = 128 * GROUPS, CHANNELS = (384 + THREADS - 1) / THREADS;
    u32 i = threadIdx.x, v = i % 128, group = i / 128;
    u64 home = (u64)span.slot * a.value_heads + head;
    auto state = (typename Kept<SHORT>::Type*)a.state.get() + home * 16384 + group * HELD * 32 * 128 + v;
    float s[HELD * 32];
#pragma unroll
    for (int k = 0; k < HELD * 32; k++) s[k] = Kept<SHORT>::read(state[k * 128]);
    // The channels that this thread convolves: 0..127 queries, ..255 keys, ..383 values.
    u32 key_head = head % a.key_heads, channel[CHANNELS];
    float w[CHANNELS][4], x[CHANNELS][4];
    float* window = a.window + home * 1152;
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
        u32 at = i + c * THREADS, kind = at / 128;
        channel[c] = (kind == 0 ? key_head : kind == 1 ? a.key_heads + key_head : 2 * a.key_heads + head) * 128 + v;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            w[c][j] = at < 384 ? a.conv[(u64)channel[c] * 4 + j] : 0;
            x[c][j] = at < 384 && j < 3 ? window[at + j * 384] : 0;
        }
    }
    float bias = a.bias[head], fade = a.decay[head], share = a.norm[v];
    after_previous();
    for (u32 t = span.start, n; t < span.start + span.len; t += n) {
        n = min((u32)GDN_TOKENS, span.start + span.len - t);
        // Of the tokens whose results this thread writes.
        float z[HELD], alpha = 0, beta = 0;
#pragma unroll
        for (int d = 0; d < HELD; d++) {
            u32 k = group + d * GROUPS;
            z[d] = k < n ? a.z[((u64)(t + k) * a.value_heads + head) * 128 + v] : 0;
        }
        if (i < n) alpha = a.alpha[(u64)(t + i) * a.value_heads + head], beta = a.beta[(u64)(t + i) * a.value_heads + head];
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) gdn_convolve(a, i + c * THREADS, channel[c], t, n, w[c], x[c], m);
        if (i < n) m.gates[i][0] = expf(softplus(alpha + bias) * fade), m.gates[i][1] = sigmoid(beta);
        __syncthreads();
        gdn_products<GROUPS>(a, n, m);
#pragma unroll 1
        for (u32 k = 0; k < n; k++) {
            const float *row = m.row[k], *gates = m.gates[k];
            float(*parts)[4][128] = m.parts[k % 2];
#pragma unroll
            for (int d = 0; d < HELD; d++) {
                u32 part = group * HELD + d;
                // Two halves of a part, as the lanes of gdn_walk.cu have them.
                float rs[2] = {0, 0}, os[2] = {0, 0};
#pragma unroll
                for (int c = 0; c < 32; c++) {
                    rs[c / 16] = fmaf(s[32 * d + c], row[128 + part * 32 + c], rs[c / 16]);
                    os[c / 16] = fmaf(s[32 * d + c], row[part * 32 + c], os[c / 16]);
                }
                parts[0][part][v] = rs[0] + rs[1];
                parts[1][part][v] = os[0] + os[1];
            }
            float decay = gates[0], beta = gates[1];
            __syncthreads();
            float q_scale = gates[2], k_scale = gates[3];
            // (a·S + k δᵀ)ᵀ q = a·Sᵀq + δ·(k·q): one pass over the state serves both products.
            float r = (parts[0][0][v] + parts[0][1][v] + parts[0][2][v] + parts[0][3][v]) * decay * k_scale;
            float o = (parts[1][0][v] + parts[1][1][v] + parts[1][2][v] + parts[1][3][v]) * decay * q_scale;
            float kq = (m.kq[k][0] + m.kq[k][1] + m.kq[k][2] + m.kq[k][3]) * k_scale * q_scale;
            float delta = beta * (row[256 + v] - r);
            o = fmaf(delta, kq, o);
#pragma unroll
            for (int c = 0; c < HELD * 32; c++)
                s[c] = Kept<SHORT>::rounded(fmaf(row[128 + group * HELD * 32 + c] * k_scale, delta, s[c] * decay));
            // All groups hold the same; another one from token to token goes on with it.
            if (group == k % GROUPS) {
                float square = warp_sum(o * o);
                if (i % 32 == 0) m.squares[k][v / 32] = square;
                m.out[k][v] = o;
            }
        }
        __syncthreads();
#pragma unroll
        for (int d = 0; d < HELD; d++) {
            u32 k = group + d * GROUPS;
            if (k >= n) break;
            const float* q = m.squares[k];
            float scale = 1.0f / sqrtf((q[0] + q[1] + q[2] + q[3]) / 128.0f + a.eps);
            float y = m.out[k][v] * scale * share * silu(z[d]);
            a.y[((u64)(t + k) * a.value_heads + head) * 128 + v] = y;
            if (a.halves.at) put_half(y, a.halves, a.value_heads * 128, t + k, head * 128 + v);
        }
    }
#pragma unroll
    for (int k = 0; k < HELD * 32; k++) state[k * 128] = Kept<SHORT>::written(s[k]);
#pragma unroll
    for (int c = 0; c < CHANNELS; c++)
#pragma unroll
        for (int j = 0; j < 3; j++)
            if (i + c * THREADS < 384) window[i + c * THREADS + j * 384] = x[c][j];
}
