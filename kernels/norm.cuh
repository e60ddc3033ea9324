// The root mean square of a row, summed in one order by whoever needs it: squares of each 16 values by halves, four of these
// sums a lane, lanes by halves.
//
// Rows by a block of 256 threads: in round r, thread i holds values 4i + 1024r .. + 3.
#pragma once
#include "product.cuh"

__device__ __forceinline__ float4 load_four(const float* from, u32 k, u32 width) {
    return k < width ? *(const float4*)(from + k) : make_float4(0, 0, 0, 0);
}

// Values k .. k + 3 of a row, k a multiple of four, in the order of `half_place`.
__device__ __forceinline__ void put_four(float4 v, u16* row, u32 k) {
    u32 low = to_half(v.x) | (u32)to_half(v.z) << 16, high = to_half(v.y) | (u32)to_half(v.w) << 16;
    *(uint2*)(row + k) = make_uint2(low, high);
}

// Its operation is named, for it must not be fused with a sum.
__device__ __forceinline__ float squared(float v) { return fmaf(v, v, 0.0f); }

// The sum of 16 squares, on 16 lanes that hold a value each.
__device__ __forceinline__ float sixteen(float v) {
    float s = squared(v);
    for (int step = 8; step > 0; step /= 2) s += __shfl_xor_sync(FULL, s, step);
    return s;
}

// The same on four lanes that hold four values each.
__device__ __forceinline__ float sixteen(const float4& v) {
    float4 s = make_float4(squared(v.x), squared(v.y), squared(v.z), squared(v.w));
    for (int step = 2; step > 0; step /= 2) {
        s.x += __shfl_xor_sync(FULL, s.x, step);
        s.y += __shfl_xor_sync(FULL, s.y, step);
        s.z += __shfl_xor_sync(FULL, s.z, step);
        s.w += __shfl_xor_sync(FULL, s.w, step);
    }
    return (s.x + s.z) + (s.y + s.w);
}

// 1 / √(mean x² + eps), on every lane of a warp; `sums`: of each 16 values, zeros up to a multiple of four.
__device__ __forceinline__ float norm_scale(const float* sums, u32 width, float eps) {
    float sum = 0;
    for (u32 i = 4 * (threadIdx.x % 32); 16 * i < width; i += 128) {
        const float4 s = *(const float4*)(sums + i);
        sum += (s.x + s.y) + (s.z + s.w);
    }
    return 1.0f / sqrtf(warp_sum(sum) / (float)width + eps);
}

// A row that who reads it normalises: x as it is, the sums of its squares, and the norm's weights.
struct Normed {
    Ptr<float> squares;  // [inputs / 16]; null: what is read is normalised already
    Ptr<float> weights;  // [inputs]
    float eps;
    u32 pad;
};

#define NORMED_INPUTS_MAX 4096

__device__ __forceinline__ float4 normalised(const float4& x, float scale, const float4& w) {
    return make_float4(x.x * scale * w.x, x.y * scale * w.y, x.z * scale * w.z, x.w * scale * w.w);
}

// A row of activations, normalised as it is read.
struct NormedRow {
    const float *x, *weights;
    float scale;
    __device__ __forceinline__ NormedRow(const Normed& n, const float* x, u32 inputs)
        : x(x), weights(n.weights), scale(norm_scale(n.squares, inputs, n.eps)) {}
    __device__ __forceinline__ float4 four(int, u32, u32 k) const {
        return normalised(*(const float4*)(x + k), scale, *(const float4*)(weights + k));
    }
    __device__ __forceinline__ float one(int, u32, u32 k) const { return x[k] * scale * weights[k]; }
};

// Inputs from .. to of a row as halves, by the warp that reads them: made from normalised floats in shared memory. The norm's
// weights are on their way before the wait, the first 256 of them.
struct WarpHalves {
    float4 w[2];
    u32 from, to;

    __device__ __forceinline__ WarpHalves(const Normed& n, u32 from, u32 to) : from(from), to(to) {
        u32 lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < 2; i++) w[i] = load_four(n.weights, from + 4 * lane + 128 * i, to);
    }
    __device__ __forceinline__ void make(const Normed& n, const float* x, u32 inputs, u16* halves) const {
        u32 first = from + 4 * (threadIdx.x % 32);
        float4 held[2];
#pragma unroll
        for (int i = 0; i < 2; i++) held[i] = load_four(x, first + 128 * i, to);
        float scale = norm_scale(n.squares, inputs, n.eps);
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (first + 128 * i < to) put_four(normalised(held[i], scale, w[i]), halves, first + 128 * i);
        for (u32 k = first + 256; k < to; k += 128)
            put_four(normalised(load_four(x, k, to), scale, load_four(n.weights, k, to)), halves, k);
        __syncwarp();
    }
};

// Sums of the squares of a row, by 16 values.
struct RowSums {
    float4 sums[128];
};

// A row of up to 8,192 values as floats and as halves, either of them null, by a block of 256 threads.
__device__ __forceinline__ void put_normalised(const float4 (&held)[8], const float4 (&w)[8], u32 width, float eps, RowSums& m,
                                               float* n, u16* halves) {
    float* sums = (float*)m.sums;
#pragma unroll
    for (u32 r = 0; r < 8; r++) {
        if (1024 * r >= width) break;
        float sum = sixteen(held[r]);
        if (threadIdx.x % 4 == 0) sums[(threadIdx.x + 256 * r) / 4] = sum;
    }
    __syncthreads();
    float scale = norm_scale(sums, width, eps);
#pragma unroll
    for (u32 r = 0; r < 8; r++) {
        u32 k = 4 * threadIdx.x + 1024 * r;
        if (1024 * r >= width) break;
        float4 v = normalised(held[r], scale, w[r]);
        if (n && k < width) *(float4*)(n + k) = v;
        if (halves && k < width) put_four(v, halves, k);
    }
}
