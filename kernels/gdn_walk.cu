// What gdn.cu computes, with its bits, for many tokens: the convolution and the gates of all tokens side by side, the
// walk over the tokens with nothing else in it and each head's state cut into four, then the gated norm side by side.
#include "product.cuh"

struct WalkSpan {
    u32 slot, start, len, position;
};

struct WalkArgs {
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
    Ptr<WalkSpan> spans;
    Ptr<u32> slot, position;  // of each token
    Ptr<float> mixed;   // [tokens][channels]: qkv after the convolution
    Ptr<float> keys;    // [tokens][key_heads·128], normalised
    Ptr<float> gates;   // [tokens][value_heads][8]: decay, β, scales of the query and of the key, k·q
    Ptr<float> y;       // [tokens][value_heads·128]
    Ptr<u8> q;          // or null
    Ptr<float4> side;
    u32 key_heads, value_heads, channels, tokens;
    float eps, pad;
};

// Convolution of channel `channel` at token t; `at`: its place in the window of value head `head`.
__device__ __forceinline__ float convolved(const WalkArgs& a, u32 t, u32 channel, u32 head, u32 at) {
    u32 slot = a.slot[t], position = a.position[t], before = 0;
    while (before < 3 && before < t && a.slot[t - before - 1] == slot && a.position[t - before - 1] + before + 1 == position)
        before++;
    const float* window = a.window + ((u64)slot * a.value_heads + head) * 1152 + at;
    float c = 0;
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        float x = j + before >= 3 ? a.qkv[(u64)(t + j - 3) * a.channels + channel] : window[(before + j) * 384];
        c = fmaf(a.conv[(u64)channel * 4 + j], x, c);
    }
    return silu(c);
}

#define PREPARED_TOKENS 4

// Tokens 4·x …; y: query and key of one key head, then 256 channels of values.
KERNEL(__launch_bounds__(256) gdn_prepare, WalkArgs) {
    __shared__ float row[256], sums[8], totals[4];
    u32 i = threadIdx.x, y = blockIdx.y;
    wait_previous();
    for (u32 t = PREPARED_TOKENS * blockIdx.x; t < min(PREPARED_TOKENS * (blockIdx.x + 1), a.tokens); t++) {
        if (y >= a.key_heads) {
            u32 v = (y - a.key_heads) * 256 + i;
            if (v >= a.value_heads * 128) continue;
            u32 channel = 2 * a.key_heads * 128 + v;
            a.mixed[(u64)t * a.channels + channel] = convolved(a, t, channel, v / 128, 256 + v % 128);
            continue;
        }
        u32 channel = (i < 128 ? y : a.key_heads + y) * 128 + i % 128;
        float c = convolved(a, t, channel, y, i);
        a.mixed[(u64)t * a.channels + channel] = c;
        __syncthreads();
        row[i] = c;
        float square = warp_sum(__fmul_rn(c, c));
        if (i % 32 == 0) sums[i / 32] = square;
        __syncthreads();
        float q_scale = 1.0f / fmaxf(sqrtf(sums[0] + sums[1] + sums[2] + sums[3]), a.eps) * 0.08838834764831845f;
        float k_scale = 1.0f / fmaxf(sqrtf(sums[4] + sums[5] + sums[6] + sums[7]), a.eps);
        if (i >= 128) a.keys[((u64)t * a.key_heads + y) * 128 + i - 128] = c * k_scale;
        float kq = warp_sum(i < 128 ? __fmul_rn(row[i], row[128 + i]) : 0);
        if (i % 32 == 0 && i < 128) totals[i / 32] = kq;
        __syncthreads();
        u32 head = y + i * a.key_heads;
        if (head < a.value_heads) {
            u64 gate = (u64)t * a.value_heads + head;
            float* to = a.gates + gate * 8;
            to[0] = expf(softplus(a.alpha[gate] + a.bias[head]) * a.decay[head]);
            to[1] = sigmoid(a.beta[gate]);
            to[2] = q_scale;
            to[3] = k_scale;
            to[4] = (totals[0] + totals[1] + totals[2] + totals[3]) * k_scale * q_scale;
        }
    }
}

#define WALK_STAGE 8

// What the walk needs of some tokens; the four parts of a key or query lie 36 floats apart, so that their readers
// meet different banks.
struct WalkStage {
    float q[WALK_STAGE][144], k[WALK_STAGE][144], normal[WALK_STAGE][144];
    float v[WALK_STAGE][32], gates[WALK_STAGE][8];
};

__device__ __forceinline__ void fetch_walk(WalkStage& to, const WalkArgs& a, u32 t, u32 end, u32 head, u32 quarter) {
    u32 key_head = head % a.key_heads;
    for (u32 i = threadIdx.x; i < WALK_STAGE * 106; i += 128) {
        u32 n = i / 106, at = i % 106;
        if (t + n >= end) break;
        const float* row = a.mixed + (u64)(t + n) * a.channels;
        u32 piece = at % 32, place = piece / 8 * 36 + piece % 8 * 4;
        if (at < 32) copy_16(&to.q[n][place], row + key_head * 128 + 4 * piece);
        else if (at < 64) copy_16(&to.k[n][place], row + (a.key_heads + key_head) * 128 + 4 * piece);
        else if (at < 96) copy_16(&to.normal[n][place], a.keys + ((u64)(t + n) * a.key_heads + key_head) * 128 + 4 * piece);
        else if (at < 104)
            copy_16(&to.v[n][4 * (at - 96)], row + (2 * a.key_heads + head) * 128 + 32 * quarter + 4 * (at - 96));
        else copy_16(&to.gates[n][4 * (at - 104)], a.gates + ((u64)(t + n) * a.value_heads + head) * 8 + 4 * (at - 104));
    }
}

// The last three inputs of the span's channels of this head.
__device__ __forceinline__ void keep_window(const WalkArgs& a, const WalkSpan& span, u32 head) {
    float* window = a.window + ((u64)span.slot * a.value_heads + head) * 1152;
    for (u32 i = threadIdx.x; i < 384; i += 128) {
        u32 key_head = head % a.key_heads, part = i / 128;
        u32 channel = (part == 0 ? key_head : part == 1 ? a.key_heads + key_head : 2 * a.key_heads + head) * 128 + i % 128;
        float x[3];
        for (u32 j = 0; j < 3; j++)
            x[j] = span.len + j >= 3 ? a.qkv[(u64)(span.start + span.len + j - 3) * a.channels + channel]
                                     : window[(span.len + j) * 384 + i];
        for (u32 j = 0; j < 3; j++) window[j * 384 + i] = x[j];
    }
}

// Block (value head and quarter of its columns x, span y) of four warps, eight columns each: lane = 8·part + column
// holds keys 32·part .. + 31 of its column.
KERNEL(__launch_bounds__(128) gdn_walk, WalkArgs) {
    __shared__ WalkStage stages[2];
    u32 head = blockIdx.x / 4, quarter = blockIdx.x % 4, lane = threadIdx.x % 32, part = lane / 8;
    u32 column = threadIdx.x / 32 * 8 + lane % 8, v = 32 * quarter + column;
    wait_previous();
    const WalkSpan span = a.spans[blockIdx.y];
    float* state = a.state + ((u64)span.slot * a.value_heads + head) * 16384 + part * 32 * 128 + v;
    u32 t = span.start, end = span.start + span.len;
    fetch_walk(stages[0], a, t, end, head, quarter);
    copies_end();
    float s[32];
#pragma unroll
    for (int k = 0; k < 32; k++) s[k] = state[k * 128];
    for (u32 n = 0; t < end; t += WALK_STAGE, n++) {
        if (t + WALK_STAGE < end) fetch_walk(stages[(n + 1) % 2], a, t + WALK_STAGE, end, head, quarter);
        copies_end();
        copies_wait();
        __syncthreads();
        const WalkStage& x = stages[n % 2];
        u32 count = min(end - t, (u32)WALK_STAGE);
#pragma unroll 1
        for (u32 i = 0; i < count; i++) {
            const float4 g = *(const float4*)x.gates[i];
            float kq = x.gates[i][4], r = 0, o = 0;
#pragma unroll
            for (int k = 0; k < 32; k += 4) {
                const float4 key = *(const float4*)&x.k[i][36 * part + k], query = *(const float4*)&x.q[i][36 * part + k];
                r = fmaf(s[k], key.x, r), o = fmaf(s[k], query.x, o);
                r = fmaf(s[k + 1], key.y, r), o = fmaf(s[k + 1], query.y, o);
                r = fmaf(s[k + 2], key.z, r), o = fmaf(s[k + 2], query.z, o);
                r = fmaf(s[k + 3], key.w, r), o = fmaf(s[k + 3], query.w, o);
            }
            float rs[4], os[4];
#pragma unroll
            for (int p = 0; p < 4; p++) {
                rs[p] = __shfl_sync(FULL, r, (int)(8 * p + lane % 8));
                os[p] = __shfl_sync(FULL, o, (int)(8 * p + lane % 8));
            }
            r = (rs[0] + rs[1] + rs[2] + rs[3]) * g.x * g.w;
            o = (os[0] + os[1] + os[2] + os[3]) * g.x * g.z;
            float delta = g.y * (x.v[i][column] - r);
            o = fmaf(delta, kq, o);
#pragma unroll
            for (int k = 0; k < 32; k += 4) {
                const float4 key = *(const float4*)&x.normal[i][36 * part + k];
                s[k] = fmaf(key.x, delta, s[k] * g.x);
                s[k + 1] = fmaf(key.y, delta, s[k + 1] * g.x);
                s[k + 2] = fmaf(key.z, delta, s[k + 2] * g.x);
                s[k + 3] = fmaf(key.w, delta, s[k + 3] * g.x);
            }
            if (part == 0) a.y[((u64)(t + i) * a.value_heads + head) * 128 + v] = o;
        }
        __syncthreads();
    }
#pragma unroll
    for (int k = 0; k < 32; k++) state[k * 128] = s[k];
    if (quarter == 0) keep_window(a, span, head);
}

// Gated norm in place, a warp a token and head.
KERNEL(__launch_bounds__(256) gdn_finish, WalkArgs) {
    u32 at = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, t = at / a.value_heads, head = at % a.value_heads;
    wait_previous();
    if (t >= a.tokens) return;
    float o[4], sum[4];
    u64 from = ((u64)t * a.value_heads + head) * 128 + lane;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        o[i] = a.y[from + 32 * i];
        sum[i] = warp_sum(__fmul_rn(o[i], o[i]));
    }
    float scale = 1.0f / sqrtf((sum[0] + sum[1] + sum[2] + sum[3]) / 128.0f + a.eps);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float y = o[i] * scale * a.norm[lane + 32 * i] * silu(a.z[from + 32 * i]);
        a.y[from + 32 * i] = y;
        if (a.q.at) quantize_block(y, a.q, a.side, a.value_heads * 128, t, head * 4 + i);
    }
}
