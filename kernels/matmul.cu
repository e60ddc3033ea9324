// out[t][row] = Σ_k W[row][k]·x[t][k] for up to four matrices over the same inputs; added to out where `add` says.
//
// matmul_one: one token; matmul_1, _2, _4, _8: up to 8, 16, 32, 64; a block of 8 warps owns one tile of rows, each warp one part
// of the inputs. _deep: of each part two blocks on their way at once, for matrices with few tiles of long rows; _normed: the row
// is normalised by who reads it. matmul_8 takes more tokens, 64 a block (y), whose weights the second-level cache holds. Many
// more: gemm.cu.
// Limits: inputs a multiple of the packing's block; 1 to 4 segments. Shared memory: 38 KB at most.
#include "matmul.cuh"

__device__ __forceinline__ float put(const Segment& s, u32 token, u32 row, float v, u32 add) {
    float* to = s.out + (u64)token * s.stride + row;
    return *to = add ? *to + v : v;
}


// Shared memory of a block; one for all packings, which never meet in a block.
template <int NT> struct Scratch {
    union {
        float sums[PARTS][NT][4][32];
        float floats[8][8];
    };
    u32 token[64];
};

// One tile of 16 rows, its parts by the eight warps; DEEP blocks of each on their way at once. NORMED: the halves of the one
// token are made here, each warp those that it reads.
template <class P, int NT, bool ONE, int DEEP, bool NORMED>
__device__ __forceinline__ void split(const MatmulArgs& a, const Segment& s, u32 tile, Scratch<NT>& m, u16* normed) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = a.inputs / P::INPUTS;
    u32 first = NT == 8 ? 8 * NT * blockIdx.y : 0;
    const u8* rows = s.weights + (u64)tile * blocks * P::BYTES;
    // Of short blocks as many as make a long one.
    const int AHEAD = P::INPUTS < 256 ? 4 * DEEP : DEEP;
    P held[AHEAD] = {};
    hold(rows, warp, blocks, held);
    float acc[NT][4];
    if constexpr (NORMED) {
        const WarpHalves own(a.norm, part_start(warp, blocks) * P::INPUTS, part_start(warp + 1, blocks) * P::INPUTS);
        after_previous();
        own.make(a.norm, a.x, a.inputs, normed);
        part_product<P, NT, ONE>(rows, warp, blocks, held, Columns<NT, ONE>(normed), acc);
    } else {
        if (threadIdx.x < 8 * NT) m.token[threadIdx.x] = min(first + threadIdx.x, a.tokens - 1);
        __syncthreads();
        after_previous();
        part_product<P, NT, ONE>(rows, warp, blocks, held, Columns<NT, ONE>({a.halves, a.inputs}, m.token), acc);
    }
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i += ONE ? 2 : 1) m.sums[warp][n][i][lane] = acc[n][i];
    __syncthreads();
    // Rows run fastest among the threads, so that the writes lie side by side; of a single token, a whole warp for the sums.
    for (u32 at = threadIdx.x; at < (ONE ? 32 : NT * 128); at += 256) {
        u32 row = at % 16, n = ONE ? 0 : at / 128, column = ONE ? 0 : at / 16 % 8;
        u32 from = 4 * (row % 8) + column / 2, i = row / 8 * 2 + column % 2, t = first + 8 * n + column;
        float v = m.sums[0][n][i][from];
        for (int p = 1; p < PARTS; p++) v += m.sums[p][n][i][from];
        bool mine = t < a.tokens && tile * 16 + row < s.rows && (!ONE || at < 16);
        v = mine ? put(s, t, tile * 16 + row, v, a.add) : 0.0f;
        if (!ONE || !a.squares.at) continue;
        float square = sixteen(v);
        if (at == 0) a.squares[tile] = square;
    }
}

// Four rows of floats: two warps a row, each one half of the inputs; eight tokens at a time.
template <int PACKING, int NT, bool ONE, bool NORMED>
__device__ __forceinline__ void floats(const MatmulArgs& a, const Segment& s, u32 tile, Scratch<NT>& m) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = min(tile * 4 + warp / 2, s.rows - 1);
    const FloatPart<PACKING, NT == 1 ? 8 : 0> part(s.weights, row, a.inputs, warp % 2);
    after_previous();
    for (u32 first = 0; first < a.tokens; first += 8) {
        __syncthreads();
        if (threadIdx.x < 8) m.token[threadIdx.x] = min(first + threadIdx.x, a.tokens - 1);
        __syncthreads();
        float acc[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (NORMED) part.template times<1>(NormedRow(a.norm, a.x, a.inputs), m.token, acc);
        else if (ONE || first + 1 == a.tokens) part.template times<1>(PlainRows{a.x, a.inputs}, m.token, acc);
        else part.template times<8>(PlainRows{a.x, a.inputs}, m.token, acc);
        if (lane == 0)
            for (int n = 0; n < 8; n++) m.floats[warp][n] = acc[n];
        __syncthreads();
        if (threadIdx.x < 32) {
            u32 r = threadIdx.x % 4, n = threadIdx.x / 4;
            if (first + n < a.tokens && tile * 4 + r < s.rows)
                put(s, first + n, tile * 4 + r, m.floats[2 * r][n] + m.floats[2 * r + 1][n], a.add);
        }
    }
}

template <int NT, bool ONE, bool NORMED>
__device__ __forceinline__ void any_floats(const MatmulArgs& a, const Segment& s, u32 tile, Scratch<NT>& m) {
    switch (s.packing) {
#if HAS(F32)
        case F32: return floats<F32, NT, ONE, NORMED>(a, s, tile, m);
#endif
#if HAS(F16)
        case F16: return floats<F16, NT, ONE, NORMED>(a, s, tile, m);
#endif
#if HAS(BF16)
        case BF16: return floats<BF16, NT, ONE, NORMED>(a, s, tile, m);
#endif
    }
}

template <int NT, bool ONE, int DEEP, bool NORMED> __device__ __forceinline__ void narrow(const MatmulArgs& a) {
    __shared__ Scratch<NT> m;
    __shared__ uint4 room[NORMED ? NORMED_INPUTS_MAX / 8 : 1];
    u16* normed = (u16*)room;
    u32 i = 0;
    while (i + 1 < a.count && blockIdx.x >= a.segments[i + 1].unit) i++;
    const Segment& s = a.segments[i];
    u32 unit = blockIdx.x - s.unit;
    switch (s.packing) {
#if HAS(Q4)
        case Q4: return split<PackQ4, NT, ONE, DEEP, NORMED>(a, s, unit, m, normed);
#endif
#if HAS(IQ3)
        case IQ3: return split<PackIQ3, NT, ONE, DEEP, NORMED>(a, s, unit, m, normed);
#endif
#if HAS(Q5)
        case Q5: return split<PackQ5, NT, ONE, DEEP, NORMED>(a, s, unit, m, normed);
#endif
#if HAS(Q6)
        case Q6: return split<PackQ6, NT, ONE, DEEP, NORMED>(a, s, unit, m, normed);
#endif
#if HAS(B8)
        case B8: return split<PackB8, NT, ONE, DEEP, NORMED>(a, s, unit, m, normed);
#endif
#if HAS(K8)
        case K8: return split<PackK8, NT, ONE, DEEP, NORMED>(a, s, unit, m, normed);
#endif
        default: return any_floats<NT, ONE, NORMED>(a, s, unit, m);
    }
}

KERNEL(__launch_bounds__(256, 4) matmul_one, MatmulArgs) { narrow<1, true, 1, false>(a); }
KERNEL(__launch_bounds__(256, 2) matmul_one_deep, MatmulArgs) { narrow<1, true, 2, false>(a); }
KERNEL(__launch_bounds__(256, 3) matmul_one_normed, MatmulArgs) { narrow<1, true, 1, true>(a); }
KERNEL(__launch_bounds__(256, 3) matmul_1, MatmulArgs) { narrow<1, false, 1, false>(a); }
KERNEL(__launch_bounds__(256, 2) matmul_1_deep, MatmulArgs) { narrow<1, false, 2, false>(a); }
KERNEL(__launch_bounds__(256, 2) matmul_2, MatmulArgs) { narrow<2, false, 1, false>(a); }
KERNEL(__launch_bounds__(256, 2) matmul_4, MatmulArgs) { narrow<4, false, 1, false>(a); }
KERNEL(__launch_bounds__(256, 2) matmul_8, MatmulArgs) { narrow<8, false, 1, false>(a); }
