// What gdn.cu computes, with its bits, for many tokens: the convolution and the gates of all tokens side by side, the
// walk over the tokens with nothing else in it and each head's state cut into four, then the gated norm side by side.
#include "gdn.cuh"

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
    Ptr<u8> state;      // [slots][value_heads][128 keys][128 values]
    Ptr<float> window;  // [slots][value_heads][3 taps][384]
    Ptr<WalkSpan> spans;
    Ptr<u32> slot, position;  // of each token
    Ptr<float> mixed;   // [tokens][channels]: qkv after the convolution
    Ptr<float> gates;   // [tokens][value_heads][8]: decay, β, scales of the query and of the key, k·q
    Ptr<float> y;       // [tokens][value_heads·128]
    Ptr<u16> halves;          // or null
    u32 key_heads, value_heads, channels, tokens;
    float eps, pad;
};

// Tokens of a sequence that lie directly before row t of the pass, to three.
__device__ __forceinline__ u32 rows_before(const WalkArgs& a, u32 t) {
    u32 slot = a.slot[t], position = a.position[t], n = 0;
    while (n < 3 && n < t && a.slot[t - n - 1] == slot && a.position[t - n - 1] + n + 1 == position) n++;
    return n;
}

// Convolution of a channel over one token after the other.
struct Taps {
    float w[4], x[4];
    __device__ __forceinline__ Taps(const WalkArgs& a, u32 channel) {
#pragma unroll
        for (u32 j = 0; j < 4; j++) w[j] = a.conv[(u64)channel * 4 + j], x[j] = 0;
    }
    // `follows`: the token before was the last one asked for; `at`: the channel's place in the window of value head
    // `head`.
    __device__ __forceinline__ float next(const WalkArgs& a, u32 t, u32 before, bool follows, u32 channel, u32 head, u32 at) {
        const float* in = a.qkv + (u64)t * a.channels + channel;
        if (follows && before > 0) {
#pragma unroll
            for (u32 j = 0; j < 3; j++) x[j] = x[j + 1];
        } else {
            const float* window = a.window + ((u64)a.slot[t] * a.value_heads + head) * 1152 + at;
#pragma unroll
            for (u32 j = 0; j < 3; j++)
                x[j] = j + before >= 3 ? in[((long long)j - 3) * (long long)a.channels] : window[(before + j) * 384];
        }
        x[3] = *in;
        float c = 0;
#pragma unroll
        for (u32 j = 0; j < 4; j++) c = fmaf(w[j], x[j], c);
        return silu(c);
    }
};

#define PREPARED_TOKENS 8

// Tokens 8·x …; y: query and key of one key head, then 256 channels of values.
KERNEL(__launch_bounds__(256) gdn_prepare, WalkArgs) {
    __shared__ float row[256], sums[8], totals[4];
    __shared__ u32 before[PREPARED_TOKENS];
    u32 i = threadIdx.x, y = blockIdx.y, from = PREPARED_TOKENS * blockIdx.x, count = min(a.tokens - from, (u32)PREPARED_TOKENS);
    bool values = y >= a.key_heads;
    u32 v = (y - a.key_heads) * 256 + i;
    u32 channel = values ? 2 * a.key_heads * 128 + min(v, a.value_heads * 128 - 1) : (i < 128 ? y : a.key_heads + y) * 128 + i % 128;
    Taps taps(a, channel);
    wait_previous();
    if (i < count) before[i] = rows_before(a, from + i);
    __syncthreads();
    for (u32 n = 0; n < count; n++) {
        u32 t = from + n;
        if (values) {
            if (v >= a.value_heads * 128) continue;
            float c = taps.next(a, t, before[n], n > 0, channel, v / 128, 256 + v % 128);
            a.mixed[(u64)t * a.channels + channel] = c;
            continue;
        }
        float c = taps.next(a, t, before[n], n > 0, channel, y, i);
        a.mixed[(u64)t * a.channels + channel] = c;
        __syncthreads();
        row[i] = c;
        float square = warp_sum(__fmul_rn(c, c));
        if (i % 32 == 0) sums[i / 32] = square;
        __syncthreads();
        float q_scale = 1.0f / fmaxf(sqrtf(sums[0] + sums[1] + sums[2] + sums[3]), a.eps) * 0.08838834764831845f;
        float k_scale = 1.0f / fmaxf(sqrtf(sums[4] + sums[5] + sums[6] + sums[7]), a.eps);
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

#define WALK_STAGE 16

// What the walk needs of some tokens; the eight parts of a key or query lie 20 floats apart, so that their readers
// meet different banks.
struct WalkStage {
    float q[WALK_STAGE][160], k[WALK_STAGE][160];
    float v[WALK_STAGE][32], gates[WALK_STAGE][8];
};

__device__ __forceinline__ void fetch_walk(WalkStage& to, const WalkArgs& a, u32 t, u32 end, u32 head, u32 quarter) {
    u32 key_head = head % a.key_heads;
    for (u32 i = threadIdx.x; i < WALK_STAGE * 74; i += 256) {
        u32 n = i / 74, at = i % 74;
        if (t + n >= end) break;
        const float* row = a.mixed + (u64)(t + n) * a.channels;
        u32 piece = at % 32, place = piece / 4 * 20 + piece % 4 * 4;
        if (at < 32) copy_16(&to.q[n][place], row + key_head * 128 + 4 * piece);
        else if (at < 64) copy_16(&to.k[n][place], row + (a.key_heads + key_head) * 128 + 4 * piece);
        else if (at < 72)
            copy_16(&to.v[n][4 * (at - 64)], row + (2 * a.key_heads + head) * 128 + 32 * quarter + 4 * (at - 64));
        else copy_16(&to.gates[n][4 * (at - 72)], a.gates + ((u64)(t + n) * a.value_heads + head) * 8 + 4 * (at - 72));
    }
}

// The last three inputs of the span's channels of this head.
__device__ __forceinline__ void keep_window(const WalkArgs& a, const WalkSpan& span, u32 head) {
    float* window = a.window + ((u64)span.slot * a.value_heads + head) * 1152;
    for (u32 i = threadIdx.x; i < 384; i += 256) {
        u32 key_head = head % a.key_heads, part = i / 128;
        u32 channel = (part == 0 ? key_head : part == 1 ? a.key_heads + key_head : 2 * a.key_heads + head) * 128 + i % 128;
        float x[3];
        for (u32 j = 0; j < 3; j++)
            x[j] = span.len + j >= 3 ? a.qkv[(u64)(span.start + span.len + j - 3) * a.channels + channel]
                                     : window[(span.len + j) * 384 + i];
        for (u32 j = 0; j < 3; j++) window[j * 384 + i] = x[j];
    }
}

// Block (value head and quarter of its columns x, span y) of eight warps, four columns each: lane = 4·part + column
// holds keys 16·part .. + 15 of its column.
template <bool SHORT> __device__ __forceinline__ void walk(const WalkArgs& a, WalkStage stages[2]) {
    u32 head = blockIdx.x / 4, quarter = blockIdx.x % 4, lane = threadIdx.x % 32, part = lane / 4;
    u32 column = threadIdx.x / 32 * 4 + lane % 4, v = 32 * quarter + column;
    wait_previous();
    const WalkSpan span = a.spans[blockIdx.y];
    auto state = (typename Kept<SHORT>::Type*)a.state.get() + ((u64)span.slot * a.value_heads + head) * 16384 + part * 16 * 128 + v;
    u32 t = span.start, end = span.start + span.len;
    fetch_walk(stages[0], a, t, end, head, quarter);
    copies_end();
    float s[16];
#pragma unroll
    for (int k = 0; k < 16; k++) s[k] = Kept<SHORT>::read(state[k * 128]);
    for (u32 n = 0; t < end; t += WALK_STAGE, n++) {
        if (t + WALK_STAGE < end) fetch_walk(stages[(n + 1) % 2], a, t + WALK_STAGE, end, head, quarter);
        copies_end();
        copies_wait<1>();
        __syncthreads();
        const WalkStage& x = stages[n % 2];
        u32 count = min(end - t, (u32)WALK_STAGE);
#pragma unroll 2
        for (u32 i = 0; i < count; i++) {
            const float4 g = *(const float4*)x.gates[i];
            float key[16], kq = x.gates[i][4], value = x.v[i][column], r = 0, o = 0;
#pragma unroll
            for (int k = 0; k < 16; k += 4) {
                const float4 four = *(const float4*)&x.k[i][20 * part + k], query = *(const float4*)&x.q[i][20 * part + k];
                key[k] = four.x, key[k + 1] = four.y, key[k + 2] = four.z, key[k + 3] = four.w;
                r = fmaf(s[k], key[k], r), o = fmaf(s[k], query.x, o);
                r = fmaf(s[k + 1], key[k + 1], r), o = fmaf(s[k + 1], query.y, o);
                r = fmaf(s[k + 2], key[k + 2], r), o = fmaf(s[k + 2], query.z, o);
                r = fmaf(s[k + 3], key[k + 3], r), o = fmaf(s[k + 3], query.w, o);
            }
            r += __shfl_xor_sync(FULL, r, 4), o += __shfl_xor_sync(FULL, o, 4);
            float rs[4], os[4];
#pragma unroll
            for (int p = 0; p < 4; p++) {
                rs[p] = __shfl_sync(FULL, r, (int)(8 * p + lane % 4));
                os[p] = __shfl_sync(FULL, o, (int)(8 * p + lane % 4));
            }
            r = (rs[0] + rs[1] + rs[2] + rs[3]) * g.x * g.w;
            o = (os[0] + os[1] + os[2] + os[3]) * g.x * g.z;
            float delta = g.y * (value - r);
            o = fmaf(delta, kq, o);
#pragma unroll
            for (int k = 0; k < 16; k++) s[k] = Kept<SHORT>::rounded(fmaf(key[k] * g.w, delta, s[k] * g.x));
            if (part == 0) a.y[((u64)(t + i) * a.value_heads + head) * 128 + v] = o;
        }
        __syncthreads();
    }
#pragma unroll
    for (int k = 0; k < 16; k++) state[k * 128] = Kept<SHORT>::written(s[k]);
    if (quarter == 0) keep_window(a, span, head);
}

KERNEL(__launch_bounds__(256) gdn_walk, WalkArgs) {
    __shared__ WalkStage stages[2];
    walk<false>(a, stages);
}

KERNEL(__launch_bounds__(256) gdn_walk_bf16, WalkArgs) {
    __shared__ WalkStage stages[2];
    walk<true>(a, stages);
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
        if (a.halves.at) put_half(y, a.halves, a.value_heads * 128, t, head * 128 + 32 * i + lane);
    }
}
