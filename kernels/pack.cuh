// The layouts in which weights lie on the device, and how a lane turns them into operands of a product.
//
// Rows go in tiles of 16, inputs in blocks of 256 (32 for B8); a tile's blocks follow each other. Within a block the
// bytes lie as the lanes of m16n8k32 take them: lane 4g + j of step t (inputs 32t..) holds, for r = 0..3, the codes
// of row g + 8·(r & 1), inputs 32t + 16·(r >> 1) + 4j + b in byte b. Values are exact: value = A·code + B per row and
// sub-block, with A and B from the file's own scales. Twin: ffi/src/kernels/pack.rs.
//
// bytes of a block (offsets in order): nibbles w (per lane: two words a step, low nibbles even r, high ones odd r),
// fifth or fifth and sixth bits h, scales sc and mins mn (per g: row g, then row g + 8), halves d and dmin (per g: row
// g low, row g + 8 high).
#pragma once
#include "common.cuh"

// Macros, so that the preprocessor can leave out what a model has not.
#define F32 0
#define F16 1
#define BF16 2
#define Q4 3
#define IQ3 4
#define Q5 5
#define Q6 6
#define B8 7
#define K8 8

// A and B of rows g and g + 8 in one sub-block.
struct Scale {
    float a[2], b[2];
};

__device__ __forceinline__ u32 byte_of(const uint4& v, int i) {
    u32 w = i / 4 == 0 ? v.x : i / 4 == 1 ? v.y : i / 4 == 2 ? v.z : v.w;
    return w >> (8 * (i % 4)) & 255;
}

__device__ __forceinline__ float signed_byte_of(const uint4& v, int i) { return (float)(i8)byte_of(v, i); }

__device__ __forceinline__ u32 word_of(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Sixteen bytes of weights: from shared memory, or from where they are read once.
template <bool SHARED> __device__ __forceinline__ uint4 fetch(const void* p) {
    return SHARED ? *(const uint4*)p : load_once(p);
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

// Q4_K.
struct PackQ4 {
    static const int INPUTS = 256, BYTES = 2368, SUB = 32;
    uint4 w[4], sc, mn;
    u32 d, dm;
    template <bool SHARED = false> __device__ __forceinline__ void load(const u8* p, int lane) {
        for (int i = 0; i < 4; i++) w[i] = fetch<SHARED>(p + i * 512 + lane * 16);
        sc = fetch<SHARED>(p + 2048 + lane / 4 * 16);
        mn = fetch<SHARED>(p + 2176 + lane / 4 * 16);
        d = load_word(p + 2304 + lane / 4 * 4);
        dm = load_word(p + 2336 + lane / 4 * 4);
    }
    __device__ __forceinline__ void codes(int t, u32 a[4]) const { nibbles(w, t, a); }
    __device__ __forceinline__ Scale scale(int t, int) const {
        Scale s;
        for (int r = 0; r < 2; r++) {
            s.a[r] = half_to_float((u16)(d >> (16 * r))) * signed_byte_of(sc, 8 * r + t);
            s.b[r] = -half_to_float((u16)(dm >> (16 * r))) * (float)byte_of(mn, 8 * r + t);
        }
        return s;
    }
};

// IQ3_S: values −15, −13 … 15 as codes 0 … 15.
struct PackIQ3 {
    static const int INPUTS = 256, BYTES = 2208, SUB = 32;
    uint4 w[4], sc;
    u32 d;
    template <bool SHARED = false> __device__ __forceinline__ void load(const u8* p, int lane) {
        for (int i = 0; i < 4; i++) w[i] = fetch<SHARED>(p + i * 512 + lane * 16);
        sc = fetch<SHARED>(p + 2048 + lane / 4 * 16);
        d = load_word(p + 2176 + lane / 4 * 4);
    }
    __device__ __forceinline__ void codes(int t, u32 a[4]) const { nibbles(w, t, a); }
    __device__ __forceinline__ Scale scale(int t, int) const {
        Scale s;
        for (int r = 0; r < 2; r++) {
            float f = half_to_float((u16)(d >> (16 * r))) * signed_byte_of(sc, 8 * r + t);
            s.a[r] = 2.0f * f;
            s.b[r] = -15.0f * f;
        }
        return s;
    }
};

// Q5_K: bit of step t, operand r, byte b at 8b + 4·(t % 2) + r of word t / 2 of h.
struct PackQ5 {
    static const int INPUTS = 256, BYTES = 2880, SUB = 32;
    uint4 w[4], h, sc, mn;
    u32 d, dm;
    template <bool SHARED = false> __device__ __forceinline__ void load(const u8* p, int lane) {
        for (int i = 0; i < 4; i++) w[i] = fetch<SHARED>(p + i * 512 + lane * 16);
        h = fetch<SHARED>(p + 2048 + lane * 16);
        sc = fetch<SHARED>(p + 2560 + lane / 4 * 16);
        mn = fetch<SHARED>(p + 2688 + lane / 4 * 16);
        d = load_word(p + 2816 + lane / 4 * 4);
        dm = load_word(p + 2848 + lane / 4 * 4);
    }
    __device__ __forceinline__ void codes(int t, u32 a[4]) const {
        nibbles(w, t, a);
        u32 bits = word_of(h, t / 2);
        for (int r = 0; r < 4; r++) {
            int at = t % 2 * 4 + r;
            a[r] |= (at >= 4 ? bits >> (at - 4) : bits << (4 - at)) & 0x10101010u;
        }
    }
    __device__ __forceinline__ Scale scale(int t, int) const {
        Scale s;
        for (int r = 0; r < 2; r++) {
            s.a[r] = half_to_float((u16)(d >> (16 * r))) * signed_byte_of(sc, 8 * r + t);
            s.b[r] = -half_to_float((u16)(dm >> (16 * r))) * (float)byte_of(mn, 8 * r + t);
        }
        return s;
    }
};

// Q6_K: two bits of step t, operand r, byte b at 8b + 2r of word t of h.
struct PackQ6 {
    static const int INPUTS = 256, BYTES = 3360, SUB = 16;
    uint4 w[4], h[2], sc[2];
    u32 d;
    template <bool SHARED = false> __device__ __forceinline__ void load(const u8* p, int lane) {
        for (int i = 0; i < 4; i++) w[i] = fetch<SHARED>(p + i * 512 + lane * 16);
        for (int i = 0; i < 2; i++) h[i] = fetch<SHARED>(p + 2048 + i * 512 + lane * 16);
        for (int i = 0; i < 2; i++) sc[i] = fetch<SHARED>(p + 3072 + lane / 4 * 32 + i * 16);
        d = load_word(p + 3328 + lane / 4 * 4);
    }
    __device__ __forceinline__ void codes(int t, u32 a[4]) const {
        nibbles(w, t, a);
        u32 bits = word_of(h[t / 4], t % 4);
        for (int r = 0; r < 4; r++) a[r] |= (r < 2 ? bits << (4 - 2 * r) : bits >> (2 * r - 4)) & 0x30303030u;
    }
    __device__ __forceinline__ Scale scale(int t, int half) const {
        Scale s;
        for (int r = 0; r < 2; r++) {
            s.a[r] = half_to_float((u16)(d >> (16 * r))) * signed_byte_of(sc[r], 2 * t + half);
            s.b[r] = -32.0f * s.a[r];
        }
        return s;
    }
};

// Any block format of 32 values: signed bytes, A and B as floats (per g: A of g, A of g + 8; then the same of B).
struct PackB8 {
    static const int INPUTS = 32, BYTES = 640, SUB = 32;
    uint4 w;
    float d[2], m[2];
    template <bool SHARED = false> __device__ __forceinline__ void load(const u8* p, int lane) {
        w = fetch<SHARED>(p + lane * 16);
        for (int r = 0; r < 2; r++) {
            d[r] = __uint_as_float(load_word(p + 512 + lane / 4 * 8 + 4 * r));
            m[r] = __uint_as_float(load_word(p + 576 + lane / 4 * 8 + 4 * r));
        }
    }
    __device__ __forceinline__ void codes(int, u32 a[4]) const {
        for (int r = 0; r < 4; r++) a[r] = word_of(w, r);
    }
    __device__ __forceinline__ Scale scale(int, int) const {
        Scale s;
        for (int r = 0; r < 2; r++) s.a[r] = d[r], s.b[r] = m[r];
        return s;
    }
};

// Any block format of 256 values: signed bytes, 16 scales and mins a row, d and −dmin as floats (as in B8).
struct PackK8 {
    static const int INPUTS = 256, BYTES = 4736, SUB = 16;
    const u8* w;  // read step by step: this layout is for what has no denser one
    uint4 sc[2], mn[2];
    float d[2], dm[2];
    template <bool SHARED = false> __device__ __forceinline__ void load(const u8* p, int lane) {
        w = p + lane * 16;
        for (int r = 0; r < 2; r++) {
            sc[r] = fetch<SHARED>(p + 4096 + lane / 4 * 32 + r * 16);
            mn[r] = fetch<SHARED>(p + 4352 + lane / 4 * 32 + r * 16);
            d[r] = __uint_as_float(load_word(p + 4608 + lane / 4 * 8 + 4 * r));
            dm[r] = __uint_as_float(load_word(p + 4672 + lane / 4 * 8 + 4 * r));
        }
    }
    __device__ __forceinline__ void codes(int t, u32 a[4]) const {
        uint4 v = *(const uint4*)(w + t * 512);
        for (int r = 0; r < 4; r++) a[r] = word_of(v, r);
    }
    __device__ __forceinline__ Scale scale(int t, int half) const {
        Scale s;
        for (int r = 0; r < 2; r++) {
            s.a[r] = d[r] * signed_byte_of(sc[r], 2 * t + half);
            s.b[r] = dm[r] * (float)byte_of(mn[r], 2 * t + half);
        }
        return s;
    }
};

// Codes of one step, the value of one of them, for the kernel that reads single rows.
template <class P> __device__ __forceinline__ float packed_value(const u8* weights, u32 cols, u32 row, u32 input) {
    u32 g = row % 8, upper = row / 8 % 2, k = input % P::INPUTS, t = k / 32, half = k / 16 % 2;
    u64 block = (u64)(row / 16) * (cols / P::INPUTS) + input / P::INPUTS;
    P pack;
    pack.load(weights + block * P::BYTES, (int)(4 * g + k / 4 % 4));
    u32 a[4] = {0, 0, 0, 0};
    Scale s = {{0, 0}, {0, 0}};
    // Constant indices keep the block in registers.
#pragma unroll
    for (u32 step = 0; step < P::INPUTS / 32; step++)
        if (step == t) {
            pack.codes((int)step, a);
            s = half == 0 ? pack.scale((int)step, 0) : pack.scale((int)step, 1);
        }
    u32 r = 2 * half + upper, word = r == 0 ? a[0] : r == 1 ? a[1] : r == 2 ? a[2] : a[3];
    float code = (float)(i8)(word >> (8 * (k % 4)) & 255);
    return upper == 0 ? s.a[0] * code + s.b[0] : s.a[1] * code + s.b[1];
}

// Row tiles of a matrix: 16 rows where it is packed, 4 where it is floats.
__device__ __forceinline__ u32 tile_rows(u32 packing) { return packing <= BF16 ? 4 : 16; }
