// The arguments of the kernels in each.cu.
#pragma once
#include "expert.cuh"
#include "low.cuh"
#include "norm.cuh"

// Experts of a token, the shared one counted.
#define EACH_MAX 9

struct EachArgs {
    static const bool LOW = false;
    Expert routed, shared;
    Ptr<u8> router;       // [experts + 1][inputs], floats
    Ptr<float> x;         // [tokens][inputs]: the residual stream where its readers normalise it, else what the first blocks make of it
    Ptr<u16> halves;      // the latter as halves
    Normed norm;
    Ptr<float> logits;    // [tokens][experts + 1]
    Ptr<u32> chosen;      // [tokens][used], in the order of the choice
    Ptr<u16> hh;          // inner values [tokens][used + 1][stride]
    Ptr<float> residual;  // [tokens][inputs]
    Ptr<float> squares;   // [tokens][inputs / 16] or null: sums of the squares of the residual stream, for the next norm
    Ptr<u32> arrived;     // blocks that have normalised a token, and that have written logits; none before and behind these kernels
    u32 inputs, used, experts, stride, tokens, router_packing;
    u32 beside, pad;      // blocks that share an expert's rows of gate and up
};

// The same with what adapters add to the shared expert: `low.of` says the parts of gate, up and down, and the inner values of the
// first two are made by blocks of their own.
struct LowEachArgs : EachArgs {
    static const bool LOW = true;
    Low low;
};
