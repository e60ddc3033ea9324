// Layouts whose codes name values: nibbles one of sixteen, bytes four at a time in a codebook. As pack.cuh otherwise.
#pragma once
#include "books.cuh"
#include "pack.cuh"

// Of 2⁵ and 2¹¹ in both halves of a word.
#define HALF_32 0x50005000u
#define HALF_2048 0x68006800u

// Nibbles that name one of sixteen values (bytes of T0 .. T3, from each of which 128 has to be taken): word m of step t has those of
// inputs 8j + 4·m .., four of row g and then four of row g + 8.
template <u32 T0, u32 T1, u32 T2, u32 T3> struct Named {
    static const int INPUTS = 256, OFFSET = 0, SIGNED = 1, FORM = OWN;
    uint4 w[4];
    __device__ __forceinline__ void load_codes(const u8* p, int lane) {
        for (int i = 0; i < 4; i++) w[i] = load_once(p + i * 512 + lane * 16);
    }
    // A byte is found by the lower three bits in both halves of the table, and chosen by the fourth.
    __device__ __forceinline__ void exact(int t, u32 x[2][4]) const {
        const u32 BYTES = 0x00ff00ffu, ZERO = UNDER_1024 + 0x00800080u;
#pragma unroll
        for (int m = 0; m < 2; m++) {
            u32 v = word_of(w[t / 2], t % 2 * 2 + m), at = v & 0x77777777u, half = masked_or(v >> 1, 0x44444444u, 0x32103210u);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                u32 four = pick_bytes(pick_bytes(T0, T1, at >> (16 * r)), pick_bytes(T2, T3, at >> (16 * r)), half >> (16 * r));
                x[m][r] = sub_halves(masked_or(four, BYTES, UNDER_1024), ZERO);
                x[m][2 + r] = sub_halves(masked_or(four >> 8, BYTES, UNDER_1024), ZERO);
            }
        }
    }
};

// −127, −104, −83, −65, −49, −35, −22, −10, 1, 13, 25, 38, 53, 69, 89, 113.
typedef Named<0x3f2d1801, 0x766a5d4f, 0xa6998d81, 0xf1d9c5b5> NamedIQ4;
// 0, 1, 2, 3, 4, 6, 8, 12 and the same negated.
typedef Named<0x83828180, 0x8c888684, 0x7d7e7f80, 0x74787a7c> NamedFP4;
// −8 to 7.
typedef Named<0x7b7a7978, 0x7f7e7d7c, 0x83828180, 0x87868584> NamedQ4;
// 8, 25, 43, 62; from the ninth on the same negated.
typedef Named<0xbeab9988, 0x80808080, 0x42556778, 0x80808080> NamedIQ2;

// IQ4_XS: a signed byte for each 32.
struct PackIQ4XS : NamedIQ4 {
    static const int BYTES = 2208;
    uint4 sc;
    u32 d;
    __device__ __forceinline__ void load(const u8* p, int lane) {
        load_codes(p, lane);
        sc = load_once(p + 2048 + lane / 4 * 16);
        d = load_word(p + 2176 + lane / 4 * 4);
    }
    __device__ __forceinline__ Scale scale(int t) const { return scale_of_bytes(d, 1.0f, sc, t); }
    __device__ __forceinline__ Pair pair(int t) const { return {pair_of_bytes(mul_halves(d, HALF_256), sc, t), 0}; }
};

// IQ2_XXS, IQ2_XS and IQ2_S: a signed byte for each 16, of which an eighth counts.
struct PackIQ2 : NamedIQ2 {
    static const int BYTES = 2336;
    uint4 sc;
    u32 d;
    __device__ __forceinline__ void load(const u8* p, int lane) {
        load_codes(p, lane);
        sc = load_once(p + 2048 + lane / 2 * 16);
        d = load_word(p + 2304 + lane / 4 * 4);
    }
    __device__ __forceinline__ Scale scale(int t) const { return scale_of_bytes(d, 0.125f, sc, t); }
    __device__ __forceinline__ Pair pair(int t) const { return {pair_of_bytes(mul_halves(d, HALF_32), sc, t), 0}; }
};

// Eight blocks of 32 side by side, a half each (per g and step: row g low, row g + 8 high): IQ4_NL and Q4_0.
template <class Names> struct PackHalves : Names {
    static const int BYTES = 2304;
    uint4 d[2];
    __device__ __forceinline__ void load(const u8* p, int lane) {
        this->load_codes(p, lane);
        for (int i = 0; i < 2; i++) d[i] = load_once(p + 2048 + lane / 4 * 32 + 16 * i);
    }
    __device__ __forceinline__ Scale scale(int t) const {
        u32 v = word_of(d[t / 4], t % 4);
        return {{half_to_float((u16)v), half_to_float((u16)(v >> 16))}, {0, 0}};
    }
    __device__ __forceinline__ Pair pair(int t) const { return {mul_halves(word_of(d[t / 4], t % 4), HALF_256), 0}; }
};
typedef PackHalves<NamedIQ4> PackIQ4NL;
typedef PackHalves<NamedQ4> PackQ40;

// MXFP4: eight blocks side by side, an exponent each (per g: row g, then row g + 8).
struct PackMX4 : NamedFP4 {
    static const int BYTES = 2176;
    uint4 e;
    __device__ __forceinline__ void load(const u8* p, int lane) {
        load_codes(p, lane);
        e = load_once(p + 2048 + lane / 4 * 16);
    }
    // 2^(e − 128): the values are twice those of the format.
    __device__ __forceinline__ Scale scale(int t) const {
        Scale s;
        for (int r = 0; r < 2; r++) {
            u32 v = byte_of(e, 8 * r + t);
            s.a[r] = __uint_as_float(v < 2 ? 0x00200000u << v : v - 1 << 23), s.b[r] = 0;
        }
        return s;
    }
    __device__ __forceinline__ Pair pair(int t) const { return pair_of(scale(t)); }
};

// IQ3_S and IQ3_XXS: byte 2·m + (r & 1) of word t of w is the lower part of an index, for inputs 8j + 4·m .. of row g + 8·(r & 1);
// IQ3_S has its ninth bit at 4t + 2·m + (r & 1) of `high`. Bit 15 of both halves of word t / 2 of `signs`, once shifted left by
// 8·(t % 2) + 4·m + r, is the sign of the two values of operand r. Scales are 1 and twice a nibble, as in `nibble_pair`.
template <bool NINE> struct Booked {
    static const int SCALES = NINE ? 1664 : 1536;
    static const int INPUTS = 256, BYTES = SCALES + 96, OFFSET = 0, SIGNED = 0, FORM = OWN;
    uint4 w[2], signs;
    uint2 sc;
    u32 high, d;
    __device__ __forceinline__ void load(const u8* p, int lane) {
        for (int i = 0; i < 2; i++) w[i] = load_once(p + i * 512 + lane * 16);
        signs = load_once(p + 1024 + lane * 16);
        if (NINE) high = load_word(p + 1536 + lane * 4);
        sc = *(const uint2*)(p + SCALES + lane / 4 * 8);
        d = load_word(p + SCALES + 64 + lane / 4 * 4);
    }
    // Eighths of the values (of IQ3_XXS: of their quarters).
    __device__ __forceinline__ void exact(int t, u32 x[2][4]) const {
        const u32 FIELDS = 0x0fc00fc0u, EXPONENT = 0x30003000u;
        const u32* book = NINE ? iq3s_book() : iq3xxs_book();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 index = word_of(w[t / 4], t % 4) >> (8 * i) & 255;
            if (NINE) index |= (high >> (4 * t + i) & 1) << 8;
            u32 four = book[index], sign = word_of(signs, t / 2) << (8 * (t % 2) + i / 2 * 4 + i % 2);
            x[i / 2][i % 2] = masked_or(four, FIELDS, masked_or(sign, HALF_SIGNS, EXPONENT));
            x[i / 2][2 + i % 2] = masked_or(four << 6, FIELDS, masked_or(sign << 2, HALF_SIGNS, EXPONENT));
        }
    }
    __device__ __forceinline__ u32 odd(int t) const {
        u32 word = t < 4 ? sc.x : sc.y, at = t % 4 * 4;
        return sub_halves(masked_or(t % 4 ? word >> (at - 1) : word << 1, 0x001e001eu, UNDER_1024 + 0x00010001u), UNDER_1024);
    }
    __device__ __forceinline__ Scale scale(int t) const {
        Scale s;
        for (int r = 0; r < 2; r++)
            s.a[r] = 8.0f * half_to_float((u16)(d >> (16 * r))) * half_to_float((u16)(odd(t) >> (16 * r))), s.b[r] = 0;
        return s;
    }
    __device__ __forceinline__ Pair pair(int t) const { return {mul_halves(mul_halves(d, HALF_2048), odd(t)), 0}; }
};
typedef Booked<true> PackIQ3S;
typedef Booked<false> PackIQ3XXS;
