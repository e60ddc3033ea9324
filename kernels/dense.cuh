// A stage of the persistent kernel: out = W·x or out += W·x for up to four matrices over the same inputs, of up to eight
// rows; where a norm is given, over norm(x), which every block makes for itself. The numbers of `rms_norm` and of
// matmul.cu.
#pragma once
#include "frame.cuh"
#include "norm.cuh"

// Tiles of a block between two barriers of its threads.
#define BATCH 4

struct DensePart {
    Ptr<u8> weights;
    Ptr<float> out;  // [rows of the pass][rows]
    u32 rows, packing;
    u32 tile;        // its first tile among those of all parts
    u32 staged;      // its tiles are items of the ring
};

struct DenseArgs {
    DensePart parts[4];
    Ptr<u8> q;           // the inputs, quantised and as floats; floats alone where a norm is given
    Ptr<float4> side;
    Ptr<float> x, norm;
    u32 inputs, count, tiles, add;
    float eps;
    u32 pad;
};

// What a dense stage has of the scratch: quantised rows, which the experts' stage finds there, then sums.
struct DenseScratch {
    u8* q;
    float4* side;
    float* sums;  // [BATCH][PARTS][4][32]
    __device__ __forceinline__ DenseScratch(u8* scratch, const PersistArgs& a, u32 inputs)
        : q(scratch), side((float4*)(scratch + ROWS_MAX * inputs)), sums((float*)(scratch + a.rows_bytes)) {}
};

// Quantises norm(x) of every row; `scale` stays for those who read floats. A thread has 4·R values of a row.
template <bool ONE, int R>
__device__ __forceinline__ void normalise(const DenseArgs& d, u32 rows, Frame& f, const DenseScratch& m, Barrier& edge) {
    u32 width = d.inputs, warp = threadIdx.x / 32;
    float4 w[R];
#pragma unroll
    for (u32 r = 0; r < R; r++) w[r] = load_four(d.norm, 4 * threadIdx.x + 1024 * r, width);
    edge.wait();
    float4 held[ONE ? R : 1];
    for (u32 t = 0; t < (ONE ? 1 : rows); t++) {
        float square = 0;
#pragma unroll
        for (u32 r = 0; r < R; r++) {
            float4 h = load_four(d.x + (u64)t * width, 4 * threadIdx.x + 1024 * r, width);
            if (ONE) held[r] = h;
            square = fmaf(h.x, h.x, square);
            square = fmaf(h.y, h.y, square);
            square = fmaf(h.z, h.z, square);
            square = fmaf(h.w, h.w, square);
        }
        square = warp_sum(square);
        if (threadIdx.x % 32 == 0) m.sums[8 * t + warp] = square;
    }
    __syncthreads();
    for (u32 t = 0; t < (ONE ? 1 : rows); t++) {
        float total = 0;
#pragma unroll
        for (u32 i = 0; i < 8; i++) total += m.sums[8 * t + i];
        float scale = 1.0f / sqrtf(total / (float)width + d.eps);
        if (threadIdx.x == 0) f.scale[t] = scale;
#pragma unroll
        for (u32 r = 0; r < R; r++) {
            u32 k = 4 * threadIdx.x + 1024 * r;
            if (1024 * r >= width) break;
            float4 h = ONE ? held[r] : load_four(d.x + (u64)t * width, k, width);
            float4 v = make_float4(h.x * scale * w[r].x, h.y * scale * w[r].y, h.z * scale * w[r].z, h.w * scale * w[r].w);
            quantize_four(v, m.q + t * width, m.side + t * (width / 32), k, width);
        }
    }
    __syncthreads();
}

// norm(x) value by value, where its scale is known.
struct NormedRows {
    const float *x, *w, *scale;
    u32 inputs;
    __device__ __forceinline__ float one(u32 t, u32 k) const { return x[(u64)t * inputs + k] * scale[t] * w[k]; }
    __device__ __forceinline__ float4 four(u32 t, u32 k) const {
        const float4 h = *(const float4*)(x + (u64)t * inputs + k), n = *(const float4*)(w + k);
        float s = scale[t];
        return make_float4(h.x * s * n.x, h.y * s * n.y, h.z * s * n.z, h.w * s * n.w);
    }
};

// `n` tiles, `gridDim.x` apart: each warp its part of the inputs.
template <class P, bool ONE>
__device__ __forceinline__ void tiles_product(const DensePart& p, u32 inputs, u32 tile, u32 n, const Ring& ring,
                                              const Quantised& in, const u32* token, float* sums) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = inputs / P::INPUTS;
    const Columns<1, ONE> x(in, token);
#pragma unroll 1
    for (u32 j = 0; j < n; j++) {
        float acc[1][4] = {{0, 0, 0, 0}};
        // From shared memory or from where it lies, by one copy of the product.
        const u8* rows = p.staged ? ring.item(j) : p.weights + (u64)(tile + j * gridDim.x) * blocks * P::BYTES;
#pragma unroll 1
        for (u32 at = part_start(warp, blocks); at < part_start(warp + 1, blocks); at++) {
            P held;
            held.template load<true>(rows + at * P::BYTES, (int)lane);
            block_product<P, 1, ONE>(held, x, at, acc);
        }
#pragma unroll
        for (int i = 0; i < 4; i += ONE ? 2 : 1) sums[((j * PARTS + warp) * 4 + i) * 32 + lane] = acc[0][i];
    }
}

template <int PACKING, bool ONE>
__device__ __forceinline__ void floats_product(const DenseArgs& d, const DensePart& p, u32 tile, const Ring& ring,
                                               const Frame& f, float* sums) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = min(4 * tile + warp / 2, p.rows - 1);
    const u8* weights = p.staged ? ring.item(0) : p.weights.get();
    if (p.staged) row -= 4 * tile;
    float acc[ONE ? 1 : ROWS_MAX];
    if (d.norm.at) {
        const NormedRows x{d.x, d.norm, f.scale, d.inputs};
        float_rows<PACKING, ONE ? 1 : ROWS_MAX>(weights, row, d.inputs, warp % 2, x, f.token, acc);
    } else {
        const PlainRows x{d.x, d.inputs};
        float_rows<PACKING, ONE ? 1 : ROWS_MAX>(weights, row, d.inputs, warp % 2, x, f.token, acc);
    }
    if (lane == 0)
        for (int n = 0; n < (ONE ? 1 : ROWS_MAX); n++) sums[ROWS_MAX * warp + n] = acc[n];
}

template <bool ONE>
__device__ __forceinline__ void any_product(const DenseArgs& d, const DensePart& p, u32 tile, u32 n, const Ring& ring,
                                            const Quantised& in, const Frame& f, float* sums) {
    switch (p.packing) {
#if HAS(F32)
        case F32: return floats_product<F32, ONE>(d, p, tile, ring, f, sums);
#endif
#if HAS(F16)
        case F16: return floats_product<F16, ONE>(d, p, tile, ring, f, sums);
#endif
#if HAS(BF16)
        case BF16: return floats_product<BF16, ONE>(d, p, tile, ring, f, sums);
#endif
#if HAS(Q4)
        case Q4: return tiles_product<PackQ4, ONE>(p, d.inputs, tile, n, ring, in, f.token, sums);
#endif
#if HAS(IQ3)
        case IQ3: return tiles_product<PackIQ3, ONE>(p, d.inputs, tile, n, ring, in, f.token, sums);
#endif
#if HAS(Q5)
        case Q5: return tiles_product<PackQ5, ONE>(p, d.inputs, tile, n, ring, in, f.token, sums);
#endif
#if HAS(Q6)
        case Q6: return tiles_product<PackQ6, ONE>(p, d.inputs, tile, n, ring, in, f.token, sums);
#endif
#if HAS(B8)
        case B8: return tiles_product<PackB8, ONE>(p, d.inputs, tile, n, ring, in, f.token, sums);
#endif
#if HAS(K8)
        case K8: return tiles_product<PackK8, ONE>(p, d.inputs, tile, n, ring, in, f.token, sums);
#endif
    }
}

// Parts in order, and out.
template <bool ONE>
__device__ __forceinline__ void put_sums(const DenseArgs& d, const DensePart& p, u32 rows, u32 tile, u32 n,
                                         const float* sums) {
    const u32 EACH = ONE ? 16 : 128;
    bool floats = p.packing <= BF16;
    for (u32 at = threadIdx.x; at < (floats ? 4 * rows : n * EACH); at += BLOCK) {
        u32 row, t;
        float v;
        if (floats) {
            row = 4 * tile + at % 4, t = at / 4;
            v = sums[ROWS_MAX * 2 * (at % 4) + t] + sums[ROWS_MAX * (2 * (at % 4) + 1) + t];
        } else {
            u32 j = at / EACH, r = at % 16, from = 4 * (r % 8), i = r / 8 * 2;
            t = at % EACH / 16, row = 16 * (tile + j * gridDim.x) + r;
            from += t / 2, i += t % 2;
            const float* part = sums + (j * PARTS * 4 + i) * 32 + from;
            v = part[0];
            for (int q = 1; q < PARTS; q++) v += part[q * 4 * 32];
        }
        if (t >= rows || row >= p.rows) continue;
        float* to = p.out + (u64)t * p.rows + row;
        *to = d.add ? *to + v : v;
    }
}

template <bool ONE>
__device__ __forceinline__ void dense(const DenseArgs& d, const PersistArgs& a, Frame& f, u8* scratch, Ring& ring,
                                      Barrier& edge) {
    const DenseScratch m(scratch, a, d.inputs);
    if (d.norm.at && d.inputs <= 2048) normalise<ONE, 2>(d, a.rows, f, m, edge);
    else if (d.norm.at) normalise<ONE, 8>(d, a.rows, f, m, edge);
    else edge.wait();
    const Quantised in = d.norm.at ? Quantised{m.q, m.side, d.inputs} : Quantised{d.q, d.side, d.inputs};
    u32 i = 0;
    for (u32 tile = blockIdx.x, n; tile < d.tiles; tile += n * gridDim.x) {
        while (i + 1 < d.count && tile >= d.parts[i + 1].tile) i++;
        const DensePart& p = d.parts[i];
        u32 end = i + 1 < d.count ? d.parts[i + 1].tile : d.tiles, left = (end - tile + gridDim.x - 1) / gridDim.x;
        n = p.packing <= BF16 || left > BATCH ? 1 : left;
        if (p.staged) {
            n = min(n, ring.held());
            ring.ready(n);
        } else {
            n = 1;
            __syncthreads();
        }
        // Tiles a grid apart within the part.
        any_product<ONE>(d, p, tile - p.tile, n, ring, in, f, m.sums);
        __syncthreads();
        put_sums<ONE>(d, p, a.rows, tile - p.tile, n, m.sums);
        if (p.staged) ring.release(n);
    }
}
