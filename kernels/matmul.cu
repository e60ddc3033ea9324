// out[t][row] = Σ_k W[row][k]·x[t][k] for up to four matrices over the same inputs; added to out where `add` says.
//
// matmul_one: one token; matmul_1, _2, _4, _8: up to 8, 16, 32, 64; a block of 8 warps owns a tile of rows, each warp one part
// of the inputs. Up to 8 tokens it goes on to further tiles, where there are more than fit at once: their weights are on their
// way while the sums of the last one are joined. _deep: of each part two blocks on their way at once, for matrices with few tiles
// of long rows. _long: of more tiles, or of rows so long that their activations are fetched. _normed: the row is normalised by who reads it. matmul_8 takes more tokens, 64 a block (y), whose weights the
// second-level cache holds. Many more: gemm.cu.
// What is added to is read before the wait: it is at least two kernels old. _low: with what adapters add (low.cuh).
// Limits: inputs a multiple of the packing's block; 1 to 4 segments. Shared memory: 38 KB at most.
#include "matmul.cuh"

// Shared memory of a block; one for all packings. Of up to 8 tokens there are sums of two tiles: one is joined while the next
// is multiplied.
template <int NT, bool LOW> struct Scratch {
    static const int TILES = NT == 1 ? 2 : 1, SUMS = PARTS + LOW;  // what adapters add stands behind the parts
    union {
        float sums[TILES][SUMS][NT][4][32];
        float floats[8][8];
    };
    u32 token[64];
    u32 group[LOW ? 64 : 1];
};

// Part of the adapters that a unit's matrix is.
__device__ __forceinline__ u32 part_of(const MatmulArgs&, u32) { return NO_ADAPTER; }
__device__ __forceinline__ u32 part_of(const LowMatmulArgs& a, u32 segment) { return a.low.of[segment]; }

// A unit of rows among those of all matrices, and whose it is.
struct Unit {
    u32 at, segment = 0;
    __device__ __forceinline__ Unit(const MatmulArgs& a, u32 at) : at(at) {
        while (segment + 1 < a.count && at >= a.segments[segment + 1].unit) segment++;
    }
    __device__ __forceinline__ const Segment& of(const MatmulArgs& a) const { return a.segments[segment]; }
    __device__ __forceinline__ u32 tile(const MatmulArgs& a) const { return at - of(a).unit; }
};

// The outputs of a tile that a thread joins from the warps' parts: rows run fastest among the threads, so that the writes lie side
// by side; of a single token, a whole warp for the sums. Other warps from turn to turn.
template <int NT, bool ONE> struct Joined {
    static const int EACH = NT < 2 ? 1 : NT / 2;
    u32 at;

    __device__ __forceinline__ Joined(u32 turn) : at((threadIdx.x - (ONE ? 32 : 128) * turn) % 256) {}
    // Where output `e` goes; null: it is nobody's.
    __device__ __forceinline__ float* to(const MatmulArgs& a, const Unit& unit, u32 first, int e) const {
        const Segment& s = unit.of(a);
        u32 column = at / 16 + 16 * e, t = first + column, row = 16 * unit.tile(a) + at % 16;
        return column < (ONE ? 1 : 8 * NT) && t < a.tokens && row < s.rows ? s.out + (u64)t * s.stride + row : nullptr;
    }
    template <class A, int SUMS>
    __device__ __forceinline__ void put(const A& a, const Unit& unit, u32 first, float before,
                                        const float (&sums)[SUMS][NT][4][32]) const {
        if (at >= (ONE ? 32 : NT * 128)) return;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            u32 r = at % 16, c = ONE ? 0 : at / 16 + 16 * e, from = 4 * (r % 8) + c % 8 / 2, i = r / 8 * 2 + c % 2;
            float v = sums[0][c / 8][i][from];
            for (int p = 1; p < PARTS; p++) v += sums[p][c / 8][i][from];
            if (A::LOW && part_of(a, unit.segment) != NO_ADAPTER) v += sums[SUMS - 1][c / 8][i][from];
            float* out = to(a, unit, first, e);
            if (a.add && out) v = (NT == 1 ? before : *out) + v;
            if (out) *out = v;
            if (!ONE || !a.squares.at) continue;
            float square = sixteen(out ? v : 0.0f);
            if (at == 0) a.squares[unit.tile(a)] = square;
        }
    }
};

// What a warp knows of adapters ahead of the wait: factors of its group for the tile that comes next, and whose a single token is.
template <int NT, bool ONE> struct LowAhead {
    LowTiles own;
    u32 one;

    __device__ __forceinline__ LowAhead(const LowMatmulArgs& a, const Unit& unit, Scratch<NT, true>& m) {
        one = ONE ? group_of(a.low, 0) : 0;
        if (!ONE && threadIdx.x < 8 * NT) m.group[threadIdx.x] = group_of(a.low, min(threadIdx.x, a.tokens - 1));
        next(a, unit);
    }
    __device__ __forceinline__ LowAhead(const MatmulArgs&, const Unit&, Scratch<NT, false>&) {}

    __device__ __forceinline__ void next(const LowMatmulArgs& a, const Unit& unit) {
        own = low_ahead(a.low, threadIdx.x / 32, part_of(a, unit.segment), unit.tile(a));
    }

    // What adapters add to a tile, behind the sums of its parts.
    __device__ __forceinline__ void put(const LowMatmulArgs& a, const Unit& unit, const Scratch<NT, true>& m,
                                        float (&to)[NT][4][32]) const {
        u32 part = part_of(a, unit.segment), g = threadIdx.x % 32 / 4;
        if (part == NO_ADAPTER) return;
        auto row = [&](int n) { return inner_of(a.low, a.tokens, part, ONE ? 0 : m.token[8 * n + g]); };
        auto whose = [&](u32 column) { return ONE ? one : m.group[column]; };
        low_add<NT>(a.low, part, unit.tile(a), threadIdx.x / 32, own, threadIdx.x / 32, whose, row, to);
    }
};

// Sixteen inner values of an adapter for its tokens; the warps share the inputs as those of any tile.
template <int NT, bool ONE, bool NORMED>
__device__ __forceinline__ void low_inner(const LowMatmulArgs& a, Scratch<NT, true>& m, u16* normed) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = a.inputs / PackH16::INPUTS;
    const LowUnit unit(a.low, blockIdx.x, a.inputs);
    PackH16 held[4] = {};
    if (unit.rows) low_hold(unit.rows, blocks, held);
    if (threadIdx.x < 8 * NT) {
        m.token[threadIdx.x] = min(threadIdx.x, a.tokens - 1);
        m.group[threadIdx.x] = group_of(a.low, m.token[threadIdx.x]);
    }
    __syncthreads();
    if constexpr (NORMED) {
        u32 from = unit.rows ? part_start(warp, blocks) * PackH16::INPUTS : 0;
        const WarpHalves own(a.norm, from, unit.rows ? part_start(warp + 1, blocks) * PackH16::INPUTS : 0);
        after_previous();
        own.make(a.norm, a.x, a.inputs, normed);
    } else {
        after_previous();
    }
    if (unit.rows) {
        const auto x = NORMED ? Columns<NT, ONE>(normed) : Columns<NT, ONE>({a.halves, a.inputs}, m.token);
        float acc[NT][4];
        part_product<PackH16, NT>(unit.rows, warp, blocks, held, x, acc);
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) m.sums[0][warp][n][i][lane] = acc[n][i];
        __syncthreads();
        for (u32 at = threadIdx.x; at < 128 * NT; at += 256) {
            u32 r = at % 16, c = at / 16, from = 4 * (r % 8) + c % 8 / 2, i = r / 8 * 2 + c % 2;
            float v = m.sums[0][0][c / 8][i][from];
            for (int p = 1; p < PARTS; p++) v += m.sums[0][p][c / 8][i][from];
            if (c < a.tokens && m.group[c] == unit.group)
                inner_of(a.low, a.tokens, unit.part, c)[half_place(16 * unit.rank + r)] = to_half(v);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) arrive(a.low.arrived);
}

// The block's tiles of 16 rows from `unit` on, the parts of each by the eight warps; DEEP blocks of a part on their way at once.
// NORMED: the halves of the one token are made here, each warp those that it reads. LONG: it fetches them.
template <class P, int NT, bool ONE, int DEEP, bool NORMED, bool TURNS, bool LONG, class A>
__device__ __forceinline__ void split(const A& a, Unit unit, Scratch<NT, A::LOW>& m, uint4* room) {
    u16* normed = (u16*)room;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = a.inputs / P::INPUTS;
    u32 first = NT == 8 ? 8 * NT * blockIdx.y : 0;
    auto rows = [&](const Unit& u) { return u.of(a).weights + (u64)u.tile(a) * blocks * P::BYTES; };
    // Of short blocks as many as make a long one.
    const int AHEAD = P::INPUTS < 256 ? 4 * DEEP : DEEP;
    P held[AHEAD] = {};
    hold(rows(unit), warp, blocks, held);
    open_books(unit.of(a).packing, F32);
    // What is added to, of the few tokens where waiting for it would show.
    auto before = [&](u32 turn) {
        const float* out = NT == 1 && a.add ? Joined<NT, ONE>(turn).to(a, unit, first, 0) : nullptr;
        return out ? *out : 0.0f;
    };
    float had = before(0);
    LowAhead<NT, ONE> low(a, unit, m);
    if constexpr (NORMED) {
        const WarpHalves own(a.norm, part_start(warp, blocks) * P::INPUTS, part_start(warp + 1, blocks) * P::INPUTS);
        after_previous();
        own.make(a.norm, a.x, a.inputs, normed);
    } else {
        if (threadIdx.x < 8 * NT) m.token[threadIdx.x] = min(first + threadIdx.x, a.tokens - 1);
        __syncthreads();
        after_previous();
    }
    const auto x = [&] {
        if constexpr (LONG) return Fetched(a.halves, room + 32 * warp);
        else return NORMED ? Columns<NT, ONE>(normed) : Columns<NT, ONE>({a.halves, a.inputs}, m.token);
    }();
#pragma unroll 1
    for (u32 turn = 0;; turn++) {
        float acc[NT][4];
        part_product<P, NT>(rows(unit), warp, blocks, held, x, acc);
        Unit next = unit;
        bool more = TURNS && unit.at >= a.alike && unit.at + a.step < a.units;
        if (more) next = Unit(a, unit.at + a.step), hold(rows(next), warp, blocks, held);
        auto& sums = m.sums[turn % Scratch<NT, A::LOW>::TILES];
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i += ONE ? 2 : 1) sums[warp][n][i][lane] = acc[n][i];
        if constexpr (A::LOW) low.put(a, unit, m, sums[PARTS]);
        __syncthreads();
        Joined<NT, ONE>(turn).put(a, unit, first, had, sums);
        if (!more) return;
        unit = next;
        had = before(turn + 1);
        if constexpr (A::LOW) low.next(a, unit);
    }
}

// Four rows of floats: two warps a row, each one half of the inputs; eight tokens at a time.
template <int PACKING, int NT, bool ONE, bool NORMED, bool LOW>
__device__ __forceinline__ void floats(const MatmulArgs& a, const Segment& s, u32 tile, Scratch<NT, LOW>& m) {
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
            if (first + n >= a.tokens || tile * 4 + r >= s.rows) continue;
            float* to = s.out + (u64)(first + n) * s.stride + tile * 4 + r;
            float v = m.floats[2 * r][n] + m.floats[2 * r + 1][n];
            *to = a.add ? *to + v : v;
        }
    }
}

template <int NT, bool ONE, bool NORMED, bool LOW>
__device__ __forceinline__ void any_floats(const MatmulArgs& a, const Segment& s, u32 tile, Scratch<NT, LOW>& m) {
#define FLOATS(P) return floats<P, NT, ONE, NORMED, LOW>(a, s, tile, m)
    switch (s.packing) {
        FLOAT_CASES(FLOATS)
    }
}

template <int NT, bool ONE, int DEEP, bool NORMED, bool TURNS, bool LONG = false, class A>
__device__ __forceinline__ void narrow(const A& a) {
    __shared__ Scratch<NT, A::LOW> m;
    __shared__ uint4 room[NORMED ? NORMED_INPUTS_MAX / 8 : LONG ? 256 : 1];
    if constexpr (A::LOW)
        if (blockIdx.x < low_units(a.low)) return low_inner<NT, ONE, NORMED>(a, m, (u16*)room);
    const Unit unit(a, blockIdx.x);
#define SPLIT(P) return split<P, NT, ONE, DEEP, NORMED, TURNS, LONG>(a, unit, m, room)
    switch (unit.of(a).packing) {
        TILE_CASES(SPLIT)
        default: return any_floats<NT, ONE, NORMED>(a, unit.of(a), unit.tile(a), m);
    }
}

KERNEL(__launch_bounds__(256, 4) matmul_one, MatmulArgs) { narrow<1, true, 1, false, false>(a); }
KERNEL(__launch_bounds__(256, 2) matmul_one_deep, MatmulArgs) { narrow<1, true, 2, false, false>(a); }
KERNEL(__launch_bounds__(256, 3) matmul_one_long, MatmulArgs) { narrow<1, true, 1, false, false, true>(a); }
KERNEL(__launch_bounds__(256, 3) matmul_one_normed, MatmulArgs) { narrow<1, true, 1, true, true>(a); }
KERNEL(__launch_bounds__(256, 3) matmul_1, MatmulArgs) { narrow<1, false, 1, false, true>(a); }
KERNEL(__launch_bounds__(256, 2) matmul_1_deep, MatmulArgs) { narrow<1, false, 2, false, false>(a); }
KERNEL(__launch_bounds__(256, 2) matmul_2, MatmulArgs) { narrow<2, false, 1, false, false>(a); }
KERNEL(__launch_bounds__(256, 2) matmul_4, MatmulArgs) { narrow<4, false, 1, false, false>(a); }
KERNEL(__launch_bounds__(256, 2) matmul_8, MatmulArgs) { narrow<8, false, 1, false, false>(a); }

KERNEL(__launch_bounds__(256, 2) matmul_one_low, LowMatmulArgs) { narrow<1, true, 2, false, false>(a); }
KERNEL(__launch_bounds__(256, 3) matmul_one_normed_low, LowMatmulArgs) { narrow<1, true, 1, true, true>(a); }
KERNEL(__launch_bounds__(256, 3) matmul_1_low, LowMatmulArgs) { narrow<1, false, 1, false, true>(a); }
KERNEL(__launch_bounds__(256, 2) matmul_1_deep_low, LowMatmulArgs) { narrow<1, false, 2, false, false>(a); }
KERNEL(__launch_bounds__(256, 2) matmul_4_low, LowMatmulArgs) { narrow<4, false, 1, false, false>(a); }
