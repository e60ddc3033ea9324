// The layouts in which weights lie on the device, and how a lane turns them into operands of a product.
//
// Rows go in tiles of 16, inputs in blocks of 256 (32 for B8); a tile's blocks follow each other. Within a block the
// bytes lie as lanes take them: lane 4g + j of step t (inputs 32t..) holds, for r = 0..3, the codes
// of row g + 8·(r & 1), inputs 32t + 8j + 4·(r >> 1) + b in byte b. Values are exact: value = A·code + B per row and
// sub-block, with A and B from the file's own scales; a lane's eight inputs have the same ones. Twin: ffi/src/kernels/pack.rs.
//
// bytes of a block (offsets in order): codes w (nibbles, per lane: two words a step, low nibbles even r, high ones odd r;
// or pairs, see `Pairs`), fifth and sixth bits h, scales sc and mins mn (per g: row g, then row g + 8; of 16 values each: per g
// and half of a step, which is lanes j < 2 or j > 1), halves d and dmin (per g: row g low, row g + 8 high).
// Those whose codes name values of a table or a codebook: named.cuh.
#pragma once
#include "packings.cuh"

// How a packing holds its codes: bytes of a lane's operands, their nibbles, operands as they are, or in a way of its own.
#define CODE_BYTES 0
#define NIBBLES 1
#define OWN 2
#define OPERANDS 3

// Scaled weights as halves are this many times what they are, so that small ones keep their bits; 256 and more would overflow.
#define WEIGHT_UNIT 256.0f

// What the sums of a packing's products are multiplied by.
template <class P> __device__ __forceinline__ float unit_of() { return P::FORM == OPERANDS ? 1.0f : 1.0f / WEIGHT_UNIT; }

// A and B of rows g and g + 8 in one sub-block, for codes from which OFFSET was taken.
struct Scale {
    float a[2], b[2];
};

// The same as halves, row g low: of WEIGHT_UNIT times the weights.
struct Pair {
    u32 a, b;
};

__device__ __forceinline__ u32 byte_of(const uint4& v, int i) {
    u32 w = i / 4 == 0 ? v.x : i / 4 == 1 ? v.y : i / 4 == 2 ? v.z : v.w;
    return w >> (8 * (i % 4)) & 255;
}

__device__ __forceinline__ float signed_byte_of(const uint4& v, int i) { return (float)(i8)byte_of(v, i); }

__device__ __forceinline__ u32 word_of(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// A byte under the exponent of 1,024 is that half plus the byte.
#define UNDER_1024 0x64006400u

// Byte i of two words as exact halves, signed or not.
template <bool SIGNED> __device__ __forceinline__ u32 byte_pair(u32 low, u32 high, int i) {
    const u32 UNDER = SIGNED ? UNDER_1024 + 0x00800080u : UNDER_1024;
    u32 bytes = pick_bytes(low, high, 0x0400 + 0x0101 * (u32)i);
    return sub_halves(masked_xor(bytes, 0x00ff00ffu, UNDER), UNDER);
}

__device__ __forceinline__ u32 load_word(const void* p) { return *(const u32*)p; }

// Nibbles of step t.
__device__ __forceinline__ void nibbles(const uint4 w[4], int t, u32 a[4]) {
    u32 low = word_of(w[t / 2], t % 2 * 2), high = word_of(w[t / 2], t % 2 * 2 + 1);
    a[0] = low & 0x0f0f0f0fu;
    a[1] = low >> 4 & 0x0f0f0f0fu;
    a[2] = high & 0x0f0f0f0fu;
    a[3] = high >> 4 & 0x0f0f0f0fu;
}

// Of 2⁸ and 2⁹, and the signs, in both halves of a word.
#define HALF_256 0x5c005c00u
#define HALF_512 0x60006000u
#define HALF_SIGNS 0x80008000u

__device__ __forceinline__ Pair pair_of(const Scale& s) {
    return {pack_halves(WEIGHT_UNIT * s.a[0], WEIGHT_UNIT * s.a[1]), pack_halves(WEIGHT_UNIT * s.b[0], WEIGHT_UNIT * s.b[1])};
}

// Of signed bytes: A = unit·d·scale, as floats and, of a d that has its unit already, as halves.
__device__ __forceinline__ Scale scale_of_bytes(u32 d, float unit, const uint4& sc, int t) {
    Scale s;
    for (int r = 0; r < 2; r++) s.a[r] = unit * half_to_float((u16)(d >> (16 * r))) * signed_byte_of(sc, 8 * r + t), s.b[r] = 0;
    return s;
}
__device__ __forceinline__ u32 pair_of_bytes(u32 d, const uint4& sc, int t) {
    return mul_halves(d, byte_pair<true>(word_of(sc, t / 4), word_of(sc, 2 + t / 4), t % 4));
}

// Q4_K.
struct PackQ4 {
    static const int INPUTS = 256, BYTES = 2368, OFFSET = 0, SIGNED = 0, FORM = NIBBLES;
    uint4 w[4], sc, mn;
    u32 d, dm;
    __device__ __forceinline__ void load(const u8* p, int lane) {
        for (int i = 0; i < 4; i++) w[i] = load_once(p + i * 512 + lane * 16);
        sc = load_once(p + 2048 + lane / 4 * 16);
        mn = load_once(p + 2176 + lane / 4 * 16);
        d = load_word(p + 2304 + lane / 4 * 4);
        dm = load_word(p + 2336 + lane / 4 * 4);
    }
    __device__ __forceinline__ u32 word(int t, int m) const { return word_of(w[t / 2], t % 2 * 2 + m); }
    __device__ __forceinline__ Scale scale(int t) const {
        Scale s;
        for (int r = 0; r < 2; r++) {
            s.a[r] = half_to_float((u16)(d >> (16 * r))) * signed_byte_of(sc, 8 * r + t);
            s.b[r] = -half_to_float((u16)(dm >> (16 * r))) * (float)byte_of(mn, 8 * r + t);
        }
        return s;
    }
    __device__ __forceinline__ Pair pair(int t) const {
        u32 least = byte_pair<false>(word_of(mn, t / 4), word_of(mn, 2 + t / 4), t % 4);
        return {mul_halves(mul_halves(d, HALF_256), byte_pair<true>(word_of(sc, t / 4), word_of(sc, 2 + t / 4), t % 4)),
                mul_halves(mul_halves(dm, HALF_256 ^ HALF_SIGNS), least)};
    }
};

// Codes of B bits in pairs as operands hold them, 16 pairs of two steps in B words: as many pairs a word as find room from bit 0
// of both halves on; where that leaves one pair, its bit b is bit 15 of word b.
template <int B, int OFFSET> struct Pairs {
    static const int EACH = 16 / B;
    uint4 w[B];
    __device__ __forceinline__ void load_pairs(const u8* p, int lane) {
        for (int i = 0; i < B; i++) w[i] = load_once(p + i * 512 + lane * 16);
    }
    // Pair `at` of step t, less OFFSET: where its bits lie higher, that many times smaller.
    __device__ __forceinline__ u32 pair_of_codes(int t, int at) const {
        const u32 BOTH = 0x00010001u, REACH = 10 / B * B;
        u32 q = t % 2 * 8 + at, u = t / 2;
        if (q == B * EACH) return sub_halves(last_pair(u), UNDER_1024 + BOTH * OFFSET);
        u32 v = word_of(w[q / EACH], u), bit = q % EACH * B;
        if (bit >= REACH) v >>= REACH, bit -= REACH;
        u32 under = masked_or(v, (BOTH << B) - BOTH << bit, UNDER_1024);
        if (bit == 0) return sub_halves(under, UNDER_1024 + BOTH * OFFSET);
        return fma_halves(under, BOTH * (15 - bit << 10), BOTH * (0x8000 + (25 - bit << 10) + (OFFSET << bit)));
    }
    __device__ __forceinline__ u32 last_pair(int u) const {
        u32 under = UNDER_1024;
#pragma unroll
        for (int b = 0; b < B; b++) under = masked_or(word_of(w[b], u) >> (15 - b), 0x00010001u << b, under);
        return under;
    }
    __device__ __forceinline__ void exact(int t, u32 x[2][4]) const {
#pragma unroll
        for (int at = 0; at < 8; at++) x[at / 4][at % 4] = pair_of_codes(t, at);
    }
};

// Q5_K.
struct PackQ5 : Pairs<5, 0> {
    static const int INPUTS = 256, BYTES = 2880, OFFSET = 0, SIGNED = 0, FORM = OWN;
    uint4 sc, mn;
    u32 d, dm;
    __device__ __forceinline__ void load(const u8* p, int lane) {
        load_pairs(p, lane);
        sc = load_once(p + 2560 + lane / 4 * 16);
        mn = load_once(p + 2688 + lane / 4 * 16);
        d = load_word(p + 2816 + lane / 4 * 4);
        dm = load_word(p + 2848 + lane / 4 * 4);
    }
    __device__ __forceinline__ Scale scale(int t) const {
        Scale s;
        for (int r = 0; r < 2; r++) {
            s.a[r] = half_to_float((u16)(d >> (16 * r))) * signed_byte_of(sc, 8 * r + t);
            s.b[r] = -half_to_float((u16)(dm >> (16 * r))) * (float)byte_of(mn, 8 * r + t);
        }
        return s;
    }
    __device__ __forceinline__ Pair pair(int t) const {
        u32 least = byte_pair<false>(word_of(mn, t / 4), word_of(mn, 2 + t / 4), t % 4);
        return {mul_halves(mul_halves(d, HALF_256), byte_pair<true>(word_of(sc, t / 4), word_of(sc, 2 + t / 4), t % 4)),
                mul_halves(mul_halves(dm, HALF_256 ^ HALF_SIGNS), least)};
    }
};

// Q6_K: two bits of step t, operand r, byte b at 8b + 2r of word t of h.
struct PackQ6 {
    static const int INPUTS = 256, BYTES = 3360, OFFSET = 32, SIGNED = 0, FORM = CODE_BYTES;
    uint4 w[4], h[2], sc;
    u32 d;
    __device__ __forceinline__ void load(const u8* p, int lane) {
        for (int i = 0; i < 4; i++) w[i] = load_once(p + i * 512 + lane * 16);
        for (int i = 0; i < 2; i++) h[i] = load_once(p + 2048 + i * 512 + lane * 16);
        sc = load_once(p + 3072 + lane / 2 * 16);
        d = load_word(p + 3328 + lane / 4 * 4);
    }
    __device__ __forceinline__ void codes(int t, u32 a[4]) const {
        nibbles(w, t, a);
        u32 bits = word_of(h[t / 4], t % 4);
        for (int r = 0; r < 4; r++) a[r] |= (r < 2 ? bits << (4 - 2 * r) : bits >> (2 * r - 4)) & 0x30303030u;
    }
    __device__ __forceinline__ Scale scale(int t) const { return scale_of_bytes(d, 1.0f, sc, t); }
    __device__ __forceinline__ Pair pair(int t) const { return {pair_of_bytes(mul_halves(d, HALF_256), sc, t), 0}; }
};

// Any other block format of 32 values: signed bytes, A and B as floats (per g: A of g, A of g + 8; then the same of B).
struct PackB8 {
    static const int INPUTS = 32, BYTES = 640, OFFSET = 0, SIGNED = 1, FORM = CODE_BYTES;
    uint4 w;
    float d[2], m[2];
    __device__ __forceinline__ void load(const u8* p, int lane) {
        w = load_once(p + lane * 16);
        for (int r = 0; r < 2; r++) {
            d[r] = __uint_as_float(load_word(p + 512 + lane / 4 * 8 + 4 * r));
            m[r] = __uint_as_float(load_word(p + 576 + lane / 4 * 8 + 4 * r));
        }
    }
    __device__ __forceinline__ void codes(int, u32 a[4]) const {
        for (int r = 0; r < 4; r++) a[r] = word_of(w, r);
    }
    __device__ __forceinline__ Scale scale(int) const {
        Scale s;
        for (int r = 0; r < 2; r++) s.a[r] = d[r], s.b[r] = m[r];
        return s;
    }
    __device__ __forceinline__ Pair pair(int t) const { return pair_of(scale(t)); }
};

// Q8_0: signed bytes and a half for each 32.
struct PackQ8 {
    static const int INPUTS = 32, BYTES = 544, OFFSET = 0, SIGNED = 1, FORM = CODE_BYTES;
    uint4 w;
    u32 d;
    __device__ __forceinline__ void load(const u8* p, int lane) {
        w = load_once(p + lane * 16);
        d = load_word(p + 512 + lane / 4 * 4);
    }
    __device__ __forceinline__ void codes(int, u32 a[4]) const {
        for (int r = 0; r < 4; r++) a[r] = word_of(w, r);
    }
    __device__ __forceinline__ Scale scale(int) const {
        return {{half_to_float((u16)d), half_to_float((u16)(d >> 16))}, {0, 0}};
    }
    __device__ __forceinline__ Pair pair(int) const { return {mul_halves(d, HALF_256), 0}; }
};

// Q3_K: codes 0 to 7 of values from −4 on, a signed byte for each 16.
struct PackQ3 : Pairs<3, 4> {
    static const int INPUTS = 256, BYTES = 1824, OFFSET = 4, SIGNED = 0, FORM = OWN;
    uint4 sc;
    u32 d;
    __device__ __forceinline__ void load(const u8* p, int lane) {
        load_pairs(p, lane);
        sc = load_once(p + 1536 + lane / 2 * 16);
        d = load_word(p + 1792 + lane / 4 * 4);
    }
    __device__ __forceinline__ Scale scale(int t) const { return scale_of_bytes(d, 1.0f, sc, t); }
    __device__ __forceinline__ Pair pair(int t) const { return {pair_of_bytes(mul_halves(d, HALF_256), sc, t), 0}; }
};

// Nibble t of both rows as exact halves: four steps a word, those of row g in the low half.
__device__ __forceinline__ u32 nibble_pair(u32 low, u32 high, int t) {
    return sub_halves(masked_or((t < 4 ? low : high) >> (t % 4 * 4), 0x000f000fu, UNDER_1024), UNDER_1024);
}

// Q2_K: a scale and a least value of four bits each for each 16 (x and y the scales, z and w the least values).
struct PackQ2 : Pairs<2, 0> {
    static const int INPUTS = 256, BYTES = 1344, OFFSET = 0, SIGNED = 0, FORM = OWN;
    uint4 sc;
    u32 d, dm;
    __device__ __forceinline__ void load(const u8* p, int lane) {
        load_pairs(p, lane);
        sc = load_once(p + 1024 + lane / 2 * 16);
        d = load_word(p + 1280 + lane / 4 * 4);
        dm = load_word(p + 1312 + lane / 4 * 4);
    }
    __device__ __forceinline__ Scale scale(int t) const {
        u32 by = nibble_pair(sc.x, sc.y, t), least = nibble_pair(sc.z, sc.w, t);
        Scale s;
        for (int r = 0; r < 2; r++) {
            s.a[r] = half_to_float((u16)(d >> (16 * r))) * half_to_float((u16)(by >> (16 * r)));
            s.b[r] = -half_to_float((u16)(dm >> (16 * r))) * half_to_float((u16)(least >> (16 * r)));
        }
        return s;
    }
    __device__ __forceinline__ Pair pair(int t) const {
        return {mul_halves(mul_halves(d, HALF_256), nibble_pair(sc.x, sc.y, t)),
                mul_halves(mul_halves(dm, HALF_256 ^ HALF_SIGNS), nibble_pair(sc.z, sc.w, t))};
    }
};

// Sixteen bits each, rounded to a half if they are of bfloat16: word r of w[m] has inputs 8j + 4·m + {0, 2} or, of the upper
// two r, {1, 3} of row g + 8·(r & 1), which is how operands have them.
template <bool BRAIN> struct Pack16 {
    static const int INPUTS = 32, BYTES = 1024, OFFSET = 0, SIGNED = 0, FORM = OPERANDS;
    uint4 w[2];
    __device__ __forceinline__ void load(const u8* p, int lane) {
        for (int m = 0; m < 2; m++) w[m] = load_once(p + m * 512 + lane * 16);
    }
    __device__ __forceinline__ u32 operand(int m, int r) const {
        u32 v = word_of(w[m], r);
        return BRAIN ? pack_halves(bf16_to_float((u16)v), bf16_to_float((u16)(v >> 16))) : v;
    }
    // Of input k of the step, row g or, if `upper`, g + 8.
    __device__ __forceinline__ float value(u32 k, u32 upper) const {
        u32 word = word_of(k / 4 % 2 ? w[1] : w[0], (int)(k % 2 * 2 + upper));
        u16 v = (u16)(word >> (k % 4 / 2 * 16));
        return BRAIN ? bf16_to_float(v) : half_to_float(v);
    }
};
typedef Pack16<false> PackH16;
typedef Pack16<true> PackG16;

// The codes of a step as exact halves less OFFSET: x[m][r] is row g + 8·(r & 1), inputs 8j + 4·m + {0, 2} or, of the
// upper two r, {1, 3}. Bytes go under the exponent of 1,024 and back; nibbles likewise, the high ones under 16 times it.
template <class P> __device__ __forceinline__ void half_codes(const P& pack, int t, u32 x[2][4]) {
    const u32 LOW = 0x000f000fu, HIGH = 0x00f000f0u, OFFSET = 0x00010001u * P::OFFSET;
    if constexpr (P::FORM == NIBBLES) {
        const u32 SHARE = 0x2c002c00u, BACK = 0xd400d400u + 16 * OFFSET;  // 1/16, −(64 + OFFSET)
#pragma unroll
        for (int m = 0; m < 2; m++) {
            u32 even = pack.word(t, m), odd = even >> 8;
            x[m][0] = sub_halves(masked_or(even, LOW, UNDER_1024), UNDER_1024 + OFFSET);
            x[m][1] = fma_halves(masked_or(even, HIGH, UNDER_1024), SHARE, BACK);
            x[m][2] = sub_halves(masked_or(odd, LOW, UNDER_1024), UNDER_1024 + OFFSET);
            x[m][3] = fma_halves(masked_or(odd, HIGH, UNDER_1024), SHARE, BACK);
        }
    } else if constexpr (P::FORM == OWN) {
        pack.exact(t, x);
    } else {
        u32 code[4];
        pack.codes(t, code);
        const u32 UNDER = P::SIGNED ? UNDER_1024 + 0x00800080u : UNDER_1024, BYTES = 0x00ff00ffu;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            x[r / 2][r % 2] = sub_halves(masked_xor(code[r], BYTES, UNDER), UNDER + OFFSET);
            x[r / 2][2 + r % 2] = sub_halves(masked_xor(code[r] >> 8, BYTES, UNDER), UNDER + OFFSET);
        }
    }
}

// Operands of the two products m16n8k16 of step t: of the first four of each lane's eight inputs, and of the others, in the
// order of `half_place`. A scale is rounded once, a weight once more.
template <class P> __device__ __forceinline__ void operands(const P& pack, int t, u32 w[2][4]) {
    if constexpr (P::FORM == OPERANDS) {
#pragma unroll
        for (int i = 0; i < 8; i++) w[i / 4][i % 4] = pack.operand(i / 4, i % 4);
    } else {
        half_codes(pack, t, w);
        const Pair s = pack.pair(t);
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int r = 0; r < 4; r++)
                w[m][r] = r % 2 ? fma_halves(w[m][r], both_high(s.a), both_high(s.b))
                                : fma_halves(w[m][r], both_low(s.a), both_low(s.b));
    }
}

// Value `input` of a row, for the kernel that reads single rows.
template <class P> __device__ __forceinline__ float packed_value(const u8* weights, u32 cols, u32 row, u32 input) {
    u32 g = row % 8, upper = row / 8 % 2, k = input % P::INPUTS, t = k / 32;
    u64 block = (u64)(row / 16) * (cols / P::INPUTS) + input / P::INPUTS;
    P pack;
    pack.load(weights + block * P::BYTES, (int)(4 * g + k / 8 % 4));
    if constexpr (P::FORM == OPERANDS) {
        return pack.value(k, upper);
    } else {
        u32 found = 0;
        Scale s = {{0, 0}, {0, 0}};
        // Constant indices keep the block in registers.
#pragma unroll
        for (u32 step = 0; step < P::INPUTS / 32; step++)
            if (step == t) {
                u32 x[2][4];
                half_codes(pack, (int)step, x);
#pragma unroll
                for (u32 i = 0; i < 8; i++)
                    if (i == k / 4 % 2 * 4 + k % 2 * 2 + upper) found = x[i / 4][i % 4];
                s = pack.scale((int)step);
            }
        float code = half_to_float((u16)(found >> (k % 4 / 2 * 16)));
        return upper == 0 ? s.a[0] * code + s.b[0] : s.a[1] * code + s.b[1];
    }
}
