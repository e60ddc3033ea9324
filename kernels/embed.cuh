// One value of a packed matrix.
#pragma once
#include "product.cuh"

struct EmbedArgs {
    Ptr<u8> table;
    Ptr<u32> tokens;
    Ptr<float> out;  // [tokens][inputs]
    u32 inputs, packing;
};

__device__ __forceinline__ float value_at(const u8* table, u32 packing, u32 inputs, u32 row, u32 k) {
    u64 at = (u64)row * inputs + k;
    switch (packing) {
        case F32: return ((const float*)table)[at];
        case F16: return half_to_float(((const u16*)table)[at]);
        case BF16: return bf16_to_float(((const u16*)table)[at]);
#if HAS(Q4)
        case Q4: return packed_value<PackQ4>(table, inputs, row, k);
#endif
#if HAS(IQ3)
        case IQ3: return packed_value<PackIQ3>(table, inputs, row, k);
#endif
#if HAS(Q5)
        case Q5: return packed_value<PackQ5>(table, inputs, row, k);
#endif
#if HAS(Q6)
        case Q6: return packed_value<PackQ6>(table, inputs, row, k);
#endif
#if HAS(B8)
        case B8: return packed_value<PackB8>(table, inputs, row, k);
#endif
#if HAS(K8)
        case K8: return packed_value<PackK8>(table, inputs, row, k);
#endif
    }
    return 0;
}
