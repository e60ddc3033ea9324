// One value of a packed matrix.
#pragma once
#include "product.cuh"

struct EmbedArgs {
    Ptr<u8> table;
    Ptr<u32> tokens;
    Ptr<float> out;  // [tokens][inputs]
    u32 inputs, packing;
    Ptr<u32> clear;  // words that are none before what comes behind, and how many
    u32 words, pad;
};

__device__ __forceinline__ float value_at(const u8* table, u32 packing, u32 inputs, u32 row, u32 k) {
    u64 at = (u64)row * inputs + k;
#define PACKED_VALUE(P) return packed_value<P>(table, inputs, row, k)
    switch (packing) {
        case F32: return ((const float*)table)[at];
        case F16: return half_to_float(((const u16*)table)[at]);
        case BF16: return bf16_to_float(((const u16*)table)[at]);
        TILE_CASES(PACKED_VALUE)
    }
    return 0;
}
