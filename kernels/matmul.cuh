// The arguments of products of matrices with activations, for few tokens (matmul.cu) and for many (gemm.cu).
#pragma once
#include "low.cuh"
#include "norm.cuh"

struct Segment {
    Ptr<u8> weights;
    Ptr<float> out;  // [tokens][stride]
    u32 rows, stride, packing;
    u32 unit;  // its first unit of rows among those of all segments
};

// Up to four matrices over the same inputs.
struct MatmulArgs {
    static const bool LOW = false;
    Segment segments[4];
    Ptr<u16> halves;
    Ptr<float> x;        // [tokens][inputs], read by matrices of floats
    Normed norm;         // of x, for the kernel that normalises it itself; there are no halves then
    Ptr<float> squares;  // [rows / 16] or null: sums of the squares of a single token's outputs, for the next norm
    u32 inputs, tokens, count, add;
    // Units of all segments; from `alike` on they are packed alike, and a block goes from each to the one `step` further.
    u32 units, alike, step, pad;
};

// The same with what adapters add: blocks of inner values first, behind which the segments' units are counted.
struct LowMatmulArgs : MatmulArgs {
    static const bool LOW = true;
    Low low;
};
